#!/usr/bin/env bash
# simd_build.sh -- builds Sheaf with narrower instructions, and runs the tests of device cpu there.
#
#     tests/simd_build.sh base|avx2
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHEAF_CUDA=OFF -DSHEAF_SIMD="$1" >"$folder/log"
tests=()
for source in tests/unit/test_cpu_*.c tests/unit/test_kernels_empty.c; do
    tests+=("$(basename "$source" .c)")
done
cmake --build "$folder" --target "${tests[@]}" >>"$folder/log" || { tail -50 "$folder/log"; exit 1; }
ctest --test-dir "$folder" --output-on-failure -R "^($(IFS="|"; echo "${tests[*]}"))\$"

# No object file may contain wider instructions. grep reads all of the disassembly: with -q it would
# exit early and fail the pipe.
if [[ $1 == base ]] && objdump -d "$folder/libsheaf_core.a" | grep '%ymm' >"$folder/wide"; then
    echo "a build for plain x86-64 holds AVX instructions"
    exit 1
fi
if [[ $1 == avx2 ]] && objdump -d "$folder/libsheaf_core.a" | grep '%zmm' >"$folder/wide"; then
    echo "a build for AVX2 holds AVX-512 instructions"
    exit 1
fi
