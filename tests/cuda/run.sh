#!/usr/bin/env bash
# run.sh -- builds sheaf-cuda.so and its tests with only nvcc and gcc, and runs them.
#
#     tests/cuda/run.sh [-C] [TEST ...]     in build/cuda-tests; -C: also under compute-sanitizer
#
# For machines with a GPU but without cmocka, jansson or CMake. peer_errors.c is no test: it writes
# the files that peer_errors.py compares with PyTorch. Exit status: 0 all passed, 77 skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${SHEAF_CUDA_TESTS:-build/cuda-tests} check= tests=()
for word in "$@"; do
    if [[ $word == -C ]]; then check=1; else tests+=("$word"); fi
done
[[ ${#tests[@]} -gt 0 ]] || tests=($(ls tests/cuda/test_cuda_*.c | grep -v "_ranks\|_capture")) # ranks.sh runs those
mkdir -p "$out"
jobs=$(nproc)
arch=${SHEAF_CUDA_ARCH:-native}
cudnn=() # attention by cuDNN if CUDNN_FRONTEND_INCLUDE is set
[[ -z ${CUDNN_FRONTEND_INCLUDE-} ]] || cudnn=(-DSHEAF_CUDNN "-I$CUDNN_FRONTEND_INCLUDE")
root=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")

# Keeps objects that are newer than their source and all headers.
newest=$(find src tests bench -name "*.h" -o -name "*.cuh" -o -name "*.def" | xargs ls -t | head -1 || true)
export newest
compile() { # compile OBJECT SOURCE COMMAND...
    [[ $1 -nt $2 && $1 -nt $newest ]] && return 0
    "${@:3}" -c "$2" -o "$1" || { echo "run.sh: $2 does not compile" >&2; return 1; }
}
export -f compile
{
    for source in $(find src/device/cuda -name "*.cu"); do
        code="-arch=$arch"
        [[ $source != */pingpong.cu && $source != */hopper_*.cu ]] || code="-gencode arch=compute_90a,code=sm_90a"
        echo "compile $out/$(tr / _ <<<"${source#src/}").o $source nvcc $code -std=c++17 -O3 -Isrc ${cudnn[*]} -Xcompiler -fPIC"
    done
    for source in $(find src/device/cuda -name "*.c"); do
        echo "compile $out/$(tr / _ <<<"${source#src/}").o $source gcc -std=c11 -O2 -fPIC -Isrc ${cudnn[*]} -isystem $root/include"
    done
    for source in src/base/*.c src/device/*.c src/device/ref/*.c; do
        name=$(tr / _ <<<"${source#src/}")
        echo "compile $out/$name.host.o $source gcc -std=c11 -O3 -ffp-contract=off -Isrc"
    done
    for source in "${tests[@]}" bench/cuda/cuda_{kernels,clips}.c bench/support/kernels.c; do
        echo "compile $out/$(basename "$source").main.o $source gcc -std=c11 -O2 -Itests/cuda/shim -Itests -Ibench -Isrc"
    done
} | xargs -P "$jobs" -I{} bash -c '{}'
nvcc -shared -cudart shared -o "$out/sheaf-cuda.so" "$out"/*.cu.o $(ls "$out"/*.c.o | grep -v host) -L"$root/lib64" -lcublasLt \
    -Xlinker -rpath -Xlinker "$root/lib64"
for source in "${tests[@]}" bench/cuda/cuda_{kernels,clips}.c; do
    name=$(basename "$source" .c)
    support=()
    [[ $name != cuda_kernels && $name != cuda_clips ]] || support=("$out/kernels.c.main.o")
    gcc -rdynamic -o "$out/$name" "$out/$name.c.main.o" "${support[@]}" "$out"/*.host.o -lpthread -lm -ldl
done

failed=0
for source in "${tests[@]}"; do
    name=$(basename "$source" .c) status=0
    echo "== $name"
    "$out/$name" || status=$?
    [[ $status != 77 ]] || exit 77
    [[ $status == 0 ]] || failed=1
    [[ -z $check ]] || compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 "$out/$name" | tail -4 || failed=1
done
[[ $failed == 0 ]] && echo "all passed"
exit $failed
