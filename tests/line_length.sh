#!/usr/bin/env bash
# line_length.sh -- sources, documents and the comments of scripts wrap at 100 columns.
#
#     tests/line_length.sh [TREE]       default: the repository
#     tests/line_length.sh --self-test  plants long lines in a temporary tree and expects each fault
#
# In scripts only comments count. Exempt: lines of a document inside a ``` block (output of the
# program), its table rows, rows of ops.def, and lines that are one word, such as a link. Prints
# FILE:LINE and the length of each fault; exit status 1 if there is any.
set -euo pipefail

check_tree() {
    (
        cd "$1"
        # Columns are characters: continuation bytes of UTF-8 are removed before counting.
        # shellcheck disable=SC2016 # awk's own variables
        find . \( -path ./.git -o -path ./build -o -path ./runs -o -path ./tests/golden \) -prune -o \
            -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name '*.md' \
            -o -name '*.sh' -o -name '*.py' -o -name '*.cmake' -o -name CMakeLists.txt -o -name x \) \
            -print0 | sort -z | LC_ALL=C xargs -0 -r awk '
            FNR == 1 {
                block = 0
                document = FILENAME ~ /\.md$/
                script = FILENAME !~ /\.([ch]|cuh?|def|md)$/
            }
            { gsub(/[\200-\277]/, "") }
            document && /^ *```/ { block = !block }
            length($0) <= 100 || (document && (block || /^\|/)) { next }
            FILENAME ~ /\/ops\.def$/ && /^(OP\(| *")/ { next }
            script && !/^ *#/ { next }
            { text = $0; sub(/^[ *\/#-]+/, "", text) }
            text !~ / / { next }
            { print substr(FILENAME, 3) ":" FNR ": " length($0) " columns"; faults++ }
            END { exit faults > 0 }'
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
    local wide word
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    wide=$(printf 'ab %.0s' {1..34})
    word=$(printf 'ab%.0s' {1..60})
    printf '%s\n' "/* ${wide:0:97}" " * $word" >"$tree/a.c"
    printf '%s\n' '```' "$wide" '```' "| $wide |" "[link]($word)" "${wide:0:99}é" >"$tree/a.md"
    expect ''
    printf '%s\n' 'int x;' "/* $wide*/" >"$tree/a.c"
    expect 'a.c:2: 107 columns'
    printf '%s\n' "echo $wide" "# $wide" >"$tree/b.sh"
    expect $'a.c:2: 107 columns\nb.sh:2: 104 columns'
    rm "$tree/b.sh"
    printf '%s\n' '```' '```' "$wide" >"$tree/a.md"
    rm "$tree/a.c"
    expect 'a.md:3: 102 columns'
}

case ${1-} in
--self-test) self_test ;;
*) check_tree "${1:-$(dirname "$0")/..}" ;;
esac
