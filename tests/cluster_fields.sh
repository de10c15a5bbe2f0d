#!/usr/bin/env bash
# cluster_fields.sh -- docs/CLUSTER.md describes each key that the reader of cluster files knows.
#
#     tests/cluster_fields.sh [TREE]       TREE contains src/plan and docs; default: the repository
#     tests/cluster_fields.sh --self-test  plants faults in a temporary tree and expects each
#
# Keys are the texts of arrays named keys or *_keys, and those behind `.key =`, in the files
# src/plan/cluster/*.c. A key is described if it is in `backquotes`, or a key of a map in them or in
# a block of YAML.
# Prints each key that is not there; exit status 1 if there is any.
set -euo pipefail

check_tree() {
    (
        cd "$1"
        awk '
            /keys\[.*\] = \{/ { inside = 1 }
            inside || /\.key = "/ {
                line = $0
                if (!inside) gsub(/[^k]*\.key = /, " ", line)
                while (match(line, /"[a-z0-9_]+"/)) {
                    print substr(line, RSTART + 1, RLENGTH - 2)
                    line = substr(line, RSTART + RLENGTH)
                }
            }
            inside && /\};/ { inside = 0 }' src/plan/cluster/*.c | sort -u |
            while read -r key; do
                grep -qE "\`$key\`|[\`{ ,]$key[:,}\`]" docs/CLUSTER.md || echo "docs/CLUSTER.md does not have $key"
            done
    )
}

expect() { # expect FAULT: this is the output
    local found
    found=$(check_tree "$tree")
    [[ $found == "$1" ]] && return
    printf 'self-test, line %s: wanted "%s", found "%s"\n' "${BASH_LINENO[0]}" "$1" "$found"
    exit 1
}

self_test() {
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    mkdir -p "$tree/src/plan/cluster" "$tree/docs"
    printf '%s\n' 'static const char *const keys[] = {"name",' '    "speed"};' 'x = {.key = "hops", 1};' \
        >"$tree/src/plan/cluster/a.c"
    printf '%s\n' '| `name` | ... |' '`{speed: 3}`' '- {hops: 3, ranks: 2}' >"$tree/docs/CLUSTER.md"
    expect ''
    printf '%s\n' 'static const char *const last_keys[2] = {"name", "shape"};' >"$tree/src/plan/cluster/b.c"
    expect 'docs/CLUSTER.md does not have shape'
    printf '%s\n' 'y = {.key = "depth", 1};' >"$tree/src/plan/cluster/b.c"
    expect 'docs/CLUSTER.md does not have depth'
}

if [[ ${1-} == --self-test ]]; then
    self_test
else
    faults=$(check_tree "${1:-$(dirname "$0")/..}")
    [[ -z $faults ]] || { echo "$faults" && exit 1; }
fi
