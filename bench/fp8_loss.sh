#!/bin/sh
# fp8_loss.sh -- validation losses of a small Llama in bf16 and in FP8, on our own sources.
#     bench/fp8_loss.sh [SEED] [STEPS]       from the root of the repository; runs are in build/fp8
set -eu
seed=${1:-1} steps=${2:-400} out=build/fp8
mkdir -p "$out"
find src -name '*.[ch]' -print0 | sort -z | xargs -0 cat >"$out/sources.txt"
find tests/unit -name '*.c' -print0 | sort -z | xargs -0 cat >"$out/held-out.txt"

train() { # NAME KEY=VALUE...
    name=$1-seed$seed
    shift
    build/release/sheaf train examples/llama-tiny.yaml model.num_hidden_layers=6 \
        "data.train=$out/sources.txt" "data.valid=$out/held-out.txt" "run.dir=$out/$name" \
        run.fresh=true "run.steps=$steps" run.valid_every=100 "run.seed=$seed" "$@" >"$out/$name.txt"
    printf '%-16s' "$name"
    sed -n 's/.*"step": \([0-9]*\),.*"valid_loss": \([0-9.]*\).*/  \1: \2/p' \
        "$out/$name/metrics.jsonl" | tr -d '\n'
    printf '\n'
}

train bf16 precision.compute=bf16
train fp8-tensor precision.compute=fp8
train fp8-delayed precision.compute=fp8 precision.scaling=delayed
train fp8-block precision.compute=fp8 precision.scaling=block
