#!/usr/bin/env bash
# type_names.sh -- every type name under src/ is defined once.
#
#     tests/type_names.sh [TREE]       TREE contains src/; default: the repository
#     tests/type_names.sh --self-test  plants duplicates in a temporary tree and expects each fault
#
# Definitions are `typedef struct|union|enum {...} NAME;`, `struct|union|enum NAME {...}` and
# typedefs of functions at the beginning of a line; `template <...> struct NAME {`, also inside
# another struct; and `using NAME =`. Prints NAME and its files for each duplicate; exit status 1 if
# there is any. Functions that are compiled once per instruction set are still defined in one file.
set -euo pipefail

check_tree() {
    (
        cd "$1"
        # shellcheck disable=SC2016 # awk's own variables
        find src -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z |
            xargs -0 -r awk '
            function define(name) {
                if (name == "" || (name, FILENAME) in seen) return
                seen[name, FILENAME] = 1
                files[name] = files[name] " " FILENAME
                count[name]++
            }
            FNR == 1 { inside = 0 }
            /^(typedef )?(struct|union|enum) [A-Za-z_0-9]* ?\{/ {
                name = $0
                sub(/^typedef /, "", name); sub(/^[a-z]+ /, "", name); sub(/ ?\{.*/, "", name)
                define(name)
            }
            /^typedef (struct|union|enum)( [A-Za-z_0-9]+)? \{/ { inside = 1 }
            inside && /^typedef .*\} [A-Za-z_0-9]+;|^\} *\*? ?[A-Za-z_0-9]+;/ {
                name = $0
                sub(/.*\} *\*? ?/, "", name); sub(/;.*/, "", name)
                define(name)
                inside = 0
            }
            /^typedef [^{;]*\(\*?[A-Za-z_0-9]+\)\(/ {
                name = $0
                sub(/\)\(.*/, "", name); sub(/.*\(\*?/, "", name)
                define(name)
            }
            { templated = templated || /^ *template </ }
            templated && /^ *(template <.*> )?(struct|union|class) [A-Za-z_0-9]+ ?\{/ {
                name = $0
                sub(/ ?\{.*/, "", name); sub(/.* /, "", name)
                define(name)
            }
            /^ *(template <.*> )?using [A-Za-z_0-9]+ ?=/ {
                name = $0
                sub(/.*using /, "", name); sub(/ ?=.*/, "", name)
                define(name)
            }
            { templated = /^ *template <.*>$/ }
            END {
                for (name in count)
                    if (count[name] > 1) { print name ":" files[name] | "sort"; faults++ }
                close("sort")
                exit faults > 0
            }'
    )
}

expect() { # expect FAULT: this is the output, and the exit status matches
    local found status=0
    found=$(check_tree "$tree") || status=1
    [[ $found == "$1" && $status == $((${#1} > 0)) ]] && return
    printf 'self-test, line %s: wanted "%s", found "%s"\n' "${BASH_LINENO[0]}" "$1" "$found"
    exit 1
}

self_test() {
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    mkdir -p "$tree/src/a"
    printf '%s\n' 'typedef struct Box Box;' 'typedef struct {' '    int x;' '} Row;' 'struct Box {' '};' \
        'typedef int (*Visit)(int x);' >"$tree/src/a/a.h"
    printf '%s\n' '/* Row */' 'typedef struct {' '    Row row;' '} Column;' >"$tree/src/a/a.c"
    expect ''
    printf '%s\n' 'typedef enum { ONE, TWO } Row;' >"$tree/src/a/b.c"
    expect 'Row: src/a/a.h src/a/b.c'
    printf '%s\n' 'typedef struct Box {' '} Box;' >"$tree/src/a/b.c"
    expect 'Box: src/a/a.h src/a/b.c'
    printf '%s\n' 'typedef void (*Visit)(void);' >"$tree/src/a/b.c"
    expect 'Visit: src/a/a.h src/a/b.c'
    printf '%s\n' 'template <int W> struct Row {' '    int x[W];' '};' >"$tree/src/a/b.cuh"
    rm "$tree/src/a/b.c"
    expect 'Row: src/a/a.h src/a/b.cuh'
    printf '%s\n' 'struct Outer {' '    template <int W, template <int> class Visit>' \
        '    struct Box {' '    };' '};' >"$tree/src/a/b.cuh"
    expect 'Box: src/a/a.h src/a/b.cuh'
    printf '%s\n' 'template <int W>' 'using Column = Outer<W>;' >"$tree/src/a/b.cuh"
    expect 'Column: src/a/a.c src/a/b.cuh'
    printf '%s\n' 'template <template <int> class Row, class Box>' 'static int run(void)' \
        >"$tree/src/a/b.cuh"
    expect ''
}

case ${1-} in
--self-test) self_test ;;
*) check_tree "${1:-$(dirname "$0")/..}" ;;
esac
