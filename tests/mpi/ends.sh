#!/usr/bin/env bash
# ends.sh HOW PROGRAM MPIRUN... -- a rank that ends badly ends all ranks soon, with an exit
# status other than 0.
set -uo pipefail
how=$1 program=$2
shift 2
output=$(timeout 30 "$@" -n 3 "$program" "$how" 2>&1)
status=$?
fail() {
    printf '%s\n%s: %s (status %d)\n' "$output" "$how" "$1" "$status" >&2
    exit 1
}
[[ $status != 0 ]] || fail "all ranks ended well"
[[ $status != 124 ]] || fail "the others waited on"
[[ $how != hang || $output == *"all-gather #1 over {0 1 2}"*"rank 1 has not posted it"*"rank 1 computes and does not answer"* ]] ||
    fail "the report of waits is missing"
