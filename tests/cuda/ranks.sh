#!/usr/bin/env bash
# ranks.sh -- ranks on a GPU, on a machine that has one but cannot build the program.
#
#     tests/cuda/ranks.sh bundle [FOLDER]    where it can be built: program, tests and libraries, to
#                                            build/gpu-bundle
#     tests/cuda/ranks.sh run [FOLDER]       where the GPU is: runs the tests of that folder
#
# The CUDA libraries themselves are those of the machine with the GPU. Exit status 77: no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${2:-build/gpu-bundle} build=${SHEAF_BUILD:-build/release}

bundle() {
    rm -rf "$folder" && mkdir -p "$folder/lib"
    cp "$build"/{sheaf,sheaf-cuda.so,tests/cuda/test_cuda_ranks} "$folder"
    strip --strip-debug "$folder"/{sheaf,sheaf-cuda.so,test_cuda_ranks}
    ldd "$folder"/{sheaf,test_cuda_ranks} | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|pthread|dl)\.so/ {print $3}' |
        sort -u | xargs -I{} cp -L {} "$folder/lib"
    du -sh "$folder"
}

run() {
    local root
    root=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    export LD_LIBRARY_PATH=$PWD/$folder/lib:$root/lib64:${LD_LIBRARY_PATH-}
    "$folder/sheaf" --version
    "$folder/test_cuda_ranks" "$folder/sheaf-cuda.so"
}

case ${1-} in
bundle | run) "$1" ;;
*) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
