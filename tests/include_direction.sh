#!/usr/bin/env bash
# include_direction.sh -- every #include "..." under src/ is written from src/ and points down.
#
#     tests/include_direction.sh [TREE]       TREE contains src/; default: the repository
#     tests/include_direction.sh --self-test  plants faults in a temporary tree and expects each
#
# A folder may include itself and those before it in `order`. Prints FILE:LINE and the reason for
# each fault; exit status 1 when there is any.
set -euo pipefail

order="base device comm layout ir cost compile schedule run world model data job state plan infer verify train cli"

check_tree() {
    (
        cd "$1"
        # shellcheck disable=SC2016 # awk's own variables
        find src -type f \( -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' \) \
            -print0 | sort -z | xargs -0 -r awk -v order="$order" '
            function fault(reason) { print FILENAME ":" FNR ": " reason; faults++ }
            function exists(path, line, got) { got = (getline line < path); close(path); return got >= 0 }

            BEGIN { n = split(order, folder, " "); for (i = 1; i <= n; i++) height[folder[i]] = i }
            /^[ \t]*#[ \t]*include[ \t]*"/ {
                split(FILENAME, from, "/")
                target = $0
                sub(/^[^"]*"/, "", target); sub(/".*/, "", target)
                to = target; sub(/\/.*/, "", to)
                if (!(from[2] in height)) fault("src/" from[2] " is not a folder of the tree: " order)
                else if (!(to in height) || target !~ /\// || !exists("src/" target))
                    fault("\"" target "\" is not written from src/: there is no src/" target)
                else if (height[to] > height[from[2]])
                    fault(from[2] "/ includes \"" target "\", which is above it")
            }
            END { exit faults > 0 }'
    )
}

plant() { # plant FILE LINE...: a file of the planted tree
    mkdir -p "$tree/$(dirname "$1")"
    printf '%s\n' "${@:2}" >"$tree/$1"
}

expect() { # expect FAULT...: exactly these are found, each by its beginning, and the exit status matches
    local found status=0 i
    mapfile -t found < <(check_tree "$tree" || echo "status 1")
    [[ $# == 0 ]] || set -- "$@" "status 1"
    [[ ${#found[@]} -eq $# ]] || status=1
    for ((i = 0; i < $#; i++)); do
        [[ ${found[i]-} == "${*:i+1:1}"* ]] || status=1
    done
    [[ $status == 0 ]] && return
    printf 'self-test, line %s: wanted\n' "${BASH_LINENO[0]}"
    printf '    %s\n' "$@" "but found" "${found[@]-}"
    exit 1
}

self_test() {
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    plant src/base/err.h '/* nothing */'
    plant src/ir/graph.h '#include <stdio.h>' '#include "base/err.h"' '#include "ir/ops.def"'
    plant src/ir/ops.def ''
    plant src/cli/main.c '#include "ir/graph.h"' '/* see "plan/none.h" */'
    expect
    plant src/base/err.c '#include "base/err.h"' '' '  # include "ir/graph.h"'
    expect 'src/base/err.c:3: base/ includes "ir/graph.h", which is above it'
    rm "$tree/src/base/err.c"
    plant src/ir/graph.c '#include "graph.h"' '#include "../base/err.h"' '#include "base/none.h"'
    expect 'src/ir/graph.c:1: "graph.h" is not written from src/' \
        'src/ir/graph.c:2: "../base/err.h" is not written from src/' \
        'src/ir/graph.c:3: "base/none.h" is not written from src/'
    rm "$tree/src/ir/graph.c"
    plant src/utils/help.c '#include "base/err.h"'
    expect 'src/utils/help.c:1: src/utils is not a folder of the tree'
}

case ${1-} in
--self-test) self_test ;;
*) check_tree "${1:-$(dirname "$0")/..}" ;;
esac
