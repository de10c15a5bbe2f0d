#!/usr/bin/env bash
# ranks.sh -- tests ranks and their graphs on a machine with a GPU that cannot build the program.
#
#     tests/cuda/ranks.sh bundle [FOLDER]    on the build machine: copies program, tests, libraries
#                                            to FOLDER (build/gpu-bundle)
#     tests/cuda/ranks.sh run [FOLDER]       on the machine with the GPU: runs the tests of FOLDER
#     tests/cuda/ranks.sh nccl [FOLDER]      the same for the tests of NCCL, with one rank
#
# The CUDA libraries and NCCL are those of the machine with the GPU. Exit status 77: no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${2:-build/gpu-bundle} build=${SHEAF_BUILD:-build/release}

bundle() {
    rm -rf "$folder" && mkdir -p "$folder/lib"
    cp "$build"/{sheaf,sheaf-cuda.so,sheaf-nccl.so,tests/cuda/test_cuda_{ranks,capture},tests/nccl/test_nccl_{comm,ranks}} "$folder"
    strip --strip-debug "$folder"/{sheaf,sheaf-*.so,test_*}
    ldd "$folder"/{sheaf,test_cuda_ranks} | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|pthread|dl)\.so/ {print $3}' |
        sort -u | xargs -I{} cp -L {} "$folder/lib"
    du -sh "$folder"
}

libraries() {
    local root
    root=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    export LD_LIBRARY_PATH=$PWD/$folder/lib:$root/lib64:$root/lib:${LD_LIBRARY_PATH-}
    "$folder/sheaf" --version
}

# Training steps of the program: NCCL is opened, named in the output, and changes no loss.
train() { # train NAME KEY=VALUE...
    "$folder/sheaf" train examples/llama-tiny.yaml data.train=README.md data.valid= run.valid_every=0 run.steps=4 \
        run.dir="$scratch/$1" run.device=cuda numerics.deterministic=true "${@:2}" >"$scratch/$1.out" ||
        { cat "$scratch/$1.out"; return 1; }
    grep -o '"loss": [0-9.]*' "$scratch/$1/metrics.jsonl" >"$scratch/$1.losses"
}

nccl() {
    libraries
    for test in test_nccl_comm test_nccl_ranks; do "$folder/$test" "$folder/sheaf-cuda.so"; done
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    train without
    train with run.comm=nccl
    grep "between ranks NCCL" "$scratch/with.out"
    diff "$scratch/without.losses" "$scratch/with.losses" && wc -l <"$scratch/with.losses"
    echo "nccl: all passed"
}

run() {
    libraries
    for test in test_cuda_ranks test_cuda_capture; do "$folder/$test" "$folder/sheaf-cuda.so"; done
}

case ${1-} in
bundle | run | nccl) "$1" ;;
*) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
