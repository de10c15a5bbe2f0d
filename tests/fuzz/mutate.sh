#!/usr/bin/env bash
# mutate.sh FOLDER [COUNT] [SEED] -- runs each mutate_NAME of FOLDER on COUNT (2000) mutations of
# valid files; a fault prints the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/../.."
programs=$1 count=${2:-2000} number=${3:-1}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
. tests/fuzz/seeds.sh
status=0
for target in tests/fuzz/fuzz_*.c; do
    name=$(basename "$target" .c)
    if ! "$programs/mutate_${name#fuzz_}" "$number" "$count" "$folder/seeds/$name"/* 2>"$folder/err" >"$folder/out"; then
        status=1
        echo "$name: FAILED; the files are those of tests/fuzz/seeds.sh, in $programs/seeds/$name"
        mkdir -p "$programs/seeds" && cp -r "$folder/seeds/$name" "$programs/seeds/"
        sed "s|FILES|$programs/seeds/$name/*|" "$folder/err" | tail -n 20
    fi
    cat "$folder/out"
done
exit $status
