#!/usr/bin/env bash
# old_names.sh BINARY -- a run folder with keys and value names of an earlier version resumes,
# evaluates, generates and reshapes. The same names in a run file or an argument are refused, and
# the message gives the new ones. tests/golden/old_run is a run of 2 steps with
# parallel.arrange=true and parallel.recompute=[attn.q.turned, *.k.turned, mlp.*]; the losses of
# steps 3 and 4 below are those that the earlier version computed when it resumed.
set -u
sheaf=$1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
cp tests/golden/old_run/text.txt "$top/text"
passed=0 failed=0
check() { # name of the check, command...
    if "${@:2}" >"$top/out" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: $1"
        tail -n 5 "$top/out"
    fi
}
refused() { # part of the message, command...
    "${@:2}" >"$top/message" 2>&1
    [ $? = 2 ] && grep -qF -- "$1" "$top/message" || { cat "$top/message"; return 1; }
}
prints() { # part of the output, command...
    "${@:2}" >"$top/message" 2>&1 && grep -qF -- "$1" "$top/message" || { cat "$top/message"; return 1; }
}
copy() { cp -r tests/golden/old_run/run "$top/$1"; }
losses() { # run folder: steps 3 and 4 within 1e-4, since other instruction sets round differently
    sed 's/.*"step": \([0-9]*\),.*"loss": \([^,]*\),.*/\1 \2/' "$1/metrics.jsonl" | tail -n 2 |
        awk '{ want = $1 == 3 ? 5.54505634 : $1 == 4 ? 5.54600823 : 0; d = $2 - want; if (d < 0) d = -d
               if (d > 1e-4) exit 1; n++ } END { if (n != 2) exit 1 }'
}

copy resumed
check "resumes" "$sheaf" train "$top/resumed/config.yaml" run.dir="$top/resumed" data.train="$top/text" run.steps=4
check "with the losses of the earlier version" losses "$top/resumed"
check "config.yaml then has the new key" grep -q '^  prepack: true$' "$top/resumed/config.yaml"
check "and the new value names" grep -qF 'recompute: ["attn.q.rope", "*.k.rope", "mlp.*"]' "$top/resumed/config.yaml"
copy run
check "evaluates" prints "2,300 tokens" "$sheaf" eval "$top/run" --text "$top/text"
check "generates" "$sheaf" generate "$top/run" -p "The quick" -n 4
check "is inspected" prints "parallel.prepack=true" "$sheaf" inspect "$top/run"
check "reshapes" "$sheaf" reshape "$top/run" "$top/wide" mesh.tp=2
check "to a run that continues" "$sheaf" train "$top/wide/config.yaml" data.train="$top/text" run.steps=4
check "with the same losses" losses "$top/wide"
check "its weights start another run" "$sheaf" train "$top/run/config.yaml" model.init="$top/run" run.dir="$top/init" \
    data.train="$top/text" run.steps=1

# The same file outside of a run folder is a request, which can be edited.
cp tests/golden/old_run/run/config.yaml "$top/mine.yaml"
new_key="parallel.arrange: now parallel.prepack"
check "old value name in a run file" refused "now parallel.recompute=attn.q.rope,*.k.rope,mlp.*" \
    "$sheaf" train "$top/mine.yaml" run.dir="$top/x"
sed -i '/turned/d' "$top/mine.yaml"
check "old key in a run file" refused "$new_key" "$sheaf" train "$top/mine.yaml" run.dir="$top/x"
check "old key as an argument" refused "$new_key" "$sheaf" explain model.name=llama-tiny parallel.arrange=true
check "old key of reshape" refused "$new_key" "$sheaf" reshape "$top/run" "$top/x" parallel.arrange=true
check "old key of help" refused "arrange: now parallel.prepack" "$sheaf" help arrange
for key in recompute offload; do
    check "old value name in parallel.$key" refused "now parallel.$key=attn.q.rope" \
        "$sheaf" explain model.name=llama-tiny parallel.$key=attn.q.turned
    check "in a pattern" refused "now parallel.$key=mlp.*,*.rope" \
        "$sheaf" explain model.name=llama-tiny "parallel.$key=mlp.*,*.turned"
done
check "nothing is written" test ! -e "$top/x" -a ! -e "$top/x.tmp"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
