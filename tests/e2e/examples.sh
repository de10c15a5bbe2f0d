#!/usr/bin/env bash
# examples.sh BINARY -- every run file in examples/ is explained and trained for three steps.
set -u
sheaf=$1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
passed=0 failed=0

check() { # name of the check, command...
    if "${@:2}" >"$top/out" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: $1" && cat "$top/out"
    fi
}

"$sheaf" data build --moving-shapes 20 --frames 6 --size 8 -o "$top/shapes.npy" >/dev/null || exit 1
for file in examples/*.yaml; do
    set -- run.valid_every=2 run.dir="$top/run" run.fresh=true
    [ "$file" = examples/demo.yaml ] && set -- "$@" data.train=CONTRIBUTING.md # ./x demo makes its own
    if [ "$file" = examples/stdit-tiny.yaml ]; then # clips that its user builds
        set -- "$@" data.train="$top/shapes.npy" data.valid="$top/shapes.npy"
    else
        set -- "$@" data.valid=LICENSE
    fi
    check "$file: explain" "$sheaf" explain "$file"
    check "$file: train" "$sheaf" train "$file" "$@" run.steps=3
    check "$file: three steps" test "$(wc -l <"$top/run/metrics.jsonl")" = 3
    check "$file: in bf16" "$sheaf" train "$file" "$@" run.steps=3 precision.compute=bf16
    check "$file: on ref in f64" "$sheaf" train "$file" "$@" precision.compute=f64 run.steps=1 batch.global=1 batch.micro=1
    check "$file: the metrics are described" "$sheaf" inspect "$top/run/metrics.jsonl"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
