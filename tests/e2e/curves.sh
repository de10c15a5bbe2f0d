#!/usr/bin/env bash
# curves.sh BINARY -- a hundred steps: the fast device in f32 against the oracle in f64, and bf16
# against f32. The same model, seed and samples; AdamW, warmup, clip. The curves differ by no more
# than the precision of the types allows.
set -u
sheaf=$1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
cp LICENSE "$top/text" # a text that does not change
common=(model.name=llama-tiny model.num_hidden_layers=2 data.train="$top/text" data.seq_len=64 batch.global=6 batch.micro=4
    optim.lr=1e-3 optim.warmup=10 run.steps=100)

curve() { # name, key=value...
    "$sheaf" train "${common[@]}" run.dir="$top/$1" "${@:2}" >/dev/null || exit 1
    sed 's/.*"loss": \([^,]*\),.*/\1/' "$top/$1/metrics.jsonl" >"$top/$1.loss"
}
# Prints the largest distance of two curves, whether it is within the limit, and some losses.
compare() { # name, name, limit of the mean distance; a single step may be ten times as far
    paste "$top/$1.loss" "$top/$2.loss" | awk -v a="$1" -v b="$2" -v limit="$3" '
        { d = $1 - $2; if (d < 0) d = -d; sum += d; if (d > most || d != d) { most = d; at = NR } }
        NR == 1 || NR % 25 == 0 { printf "step %3d   %s %.6f   %s %.6f\n", NR, a, $1, b, $2 }
        NR == 1 { first = $1 } { last = $1 }
        END {
            printf "%s and %s: %.2g apart on average (limit %g), at most %.2g, at step %d\n", a, b, sum / NR, limit, most, at
            exit !(NR == 100 && sum / NR <= limit && most <= 10 * limit && last < first - 2)
        }'
}

curve f64 precision.compute=f64 run.device=ref
curve f32 precision.compute=f32 run.device=cpu
curve bf16 precision.compute=bf16 run.device=cpu
failed=0
compare f64 f32 1e-6 || failed=$((failed + 1))
compare f32 bf16 5e-3 || failed=$((failed + 1))
echo "$((2 - failed)) passed, $failed failed"
[ $failed = 0 ]
