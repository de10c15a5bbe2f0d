#!/usr/bin/env bash
# steps.sh -- training steps of eight shapes on a GPU, beside PyTorch if it is installed.
#
#     bench/cuda/steps.sh [SHAPE ...]        all of them, or those with the given numbers: 1 to 8
#
# `./x bench cuda [SHAPE ...]` builds first. SHEAF_BUILD names a build folder other than build/cuda
# and build/release. SHEAF_BENCH_PYTHON names the Python that has PyTorch; SHEAF_BENCH_PEER=0 leaves
# PyTorch out.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${SHEAF_BUILD-} python=${SHEAF_BENCH_PYTHON:-python3}
shapes=(
    "gpt2-124m 64 1024 50304" "gpt2-350m 32 1024 50304" "gpt2-774m 32 1024 50304"
    "gpt2-1558m 16 1024 50304" "llama3.2-1b 8 4096 128256" "llama3.2-1b 1 32768 128256"
    "bench/cuda/moe-64x768.json 8 4096 50304 2" "bench/cuda/moe-8x4096.json 8 4096 50304 2" # in two micro-batches
)
[[ $# -gt 0 ]] || set -- 1 2 3 4 5 6 7 8
for number in "$@"; do
    [[ $number == [1-8] ]] || { echo "steps.sh: no shape \"$number\"; the shapes are 1 to 8" >&2; exit 2; }
done
for folder in build/cuda build/release; do
    [[ $build || ! -x $folder/bench/cuda_step ]] || build=$folder
done
[[ -x $build/bench/cuda_step ]] || { echo "steps.sh: no cuda_step in ${build:-build/cuda or build/release}; run ./x build cuda" >&2; exit 2; }
peer=${SHEAF_BENCH_PEER:-1}
"$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || peer=0
[[ $peer == 1 ]] || echo "steps.sh: without PyTorch"
kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
for number in "$@"; do
    read -r model sequences tokens vocab micros <<<"${shapes[number - 1]}"
    options=(model="$model" sequences="$sequences" micros="${micros:-1}" seq_len="$tokens" vocab="$vocab" autotune="$kept/$number")
    echo "== $model, $sequences x $tokens"
    "$build/bench/cuda_step" "${options[@]}"
    "$build/bench/cuda_step" "${options[@]}" steps=1 warm=0 | sed -n 's/^first step/again, algorithms kept: first step/p'
    "$build/bench/cuda_step" "${options[@]}" steps=5 deterministic=1 | sed -n 's/^step:/deterministic:/p'
    script=torch_step.py
    [[ $model != *.json ]] || script=torch_moe_step.py
    [[ $peer == 0 ]] || "$python" "bench/cuda/$script" "$model" "$sequences" "$tokens"
done
