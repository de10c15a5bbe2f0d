#!/usr/bin/env bash
# run.sh -- builds the fuzz targets with clang into FOLDER and runs each for a few seconds.
#
#     tests/fuzz/run.sh FOLDER [SECONDS]      default: 15 seconds each
#
# Status 0: no failure; 1: a failure, with the input that caused it; 77: no clang with libFuzzer, so
# nothing was run.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1
seconds=${2:-15}
mkdir -p "$folder"

skip() {
    printf 'SKIPPED: no parser was fuzzed: %s\n' "$*"
    exit 77
}

command -v clang >/dev/null || skip "clang is not installed (Debian: apt-get install clang)"
printf 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);\nint LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }\n' >"$folder/try.c"
clang -fsanitize=fuzzer "$folder/try.c" -o "$folder/try" 2>/dev/null ||
    skip "this clang has no libFuzzer (Debian: apt-get install libclang-rt-14-dev)"

CC=clang cmake -S . -B "$folder" -G Ninja -DSHEAF_FUZZ=ON -DCMAKE_BUILD_TYPE=Debug >"$folder/cmake.txt"
cmake --build "$folder" --target fuzz >"$folder/build.txt" || {
    tail -n 40 "$folder/build.txt"
    exit 1
}

. tests/fuzz/seeds.sh

status=0
for target in tests/fuzz/fuzz_*.c; do
    name=$(basename "$target" .c)
    mkdir -p "$folder/corpus/$name" "$folder/seeds/$name"
    if "$folder/tests/fuzz/$name" "$folder/corpus/$name" "$folder/seeds/$name" -timeout=20 \
        -max_total_time="$seconds" -artifact_prefix="$folder/$name-" >"$folder/$name.txt" 2>&1; then
        printf '%s: nothing found; %s\n' "$name" "$(grep -a '^Done' "$folder/$name.txt" || true)"
    else
        status=1
        printf '%s: FOUND; the end of %s:\n' "$name" "$folder/$name.txt"
        grep -av '^#' "$folder/$name.txt" | tail -n 30
    fi
done
exit $status
