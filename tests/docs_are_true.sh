#!/usr/bin/env bash
# docs_are_true.sh -- runs the commands in the documents and compares their output.
#
#     tests/docs_are_true.sh BINARY [FILE ...]
#     tests/docs_are_true.sh --self-test           plants wrong documents and expects each fault
#
# In a ```console block a line "$ sheaf ..." is run, with BINARY for sheaf. The lines after it must
# occur in the output in that order (a line "..." matches any number of lines). The command must
# succeed, unless the first line shown begins with "sheaf: ": then it must fail. Lines that begin
# with "$ ./x" are not run. Commands run in a temporary folder of links to the repository, which is
# removed with their output.
#
# A line "OP(...)" outside such blocks must be a row of src/ir/ops.def, except for spaces. A line
# such as NEW_OUTPUT is a placeholder that was left in, and a fault.
set -u
shopt -s extglob
repository=$(cd "$(dirname "$0")/.." && pwd)
failed=0
top=$(mktemp -d)
out=$top/out
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache

fault() { # file, command, reason
    printf '%s: $ %s\n  %s\n' "$1" "$2" "$3"
    failed=1
}

check_status() { # file, command, status, first line
    case $3,$4 in
    0,'sheaf: '*) fault "$1" "$2" "succeeds, but the document shows a failure: $4" ;;
    0,* | *,'sheaf: '*) ;;
    *) fault "$1" "$2" "fails with status $3: $(tail -n 1 "$out")" ;;
    esac
}

check_block() { # file, command, lines...
    local file=$1 command=$2 at=0 line found
    shift 2
    (cd "$top/tree" && eval "${command/#sheaf/\"$binary\"}") >"$out" 2>&1 </dev/null
    check_status "$file" "$command" $? "${1-}"
    for line in "$@"; do
        [ "$line" = "..." ] && continue
        found=$(tail -n +"$((at + 1))" "$out" | grep -nFx -m1 -- "$line" | cut -d: -f1)
        if [ -z "$found" ]; then
            fault "$file" "$command" "does not print (from line $at on): $line"
            return
        fi
        at=$((at + found))
    done
}

check_row() { # file, line
    local row
    row=$(tr -d ' ' <<<"$2")
    tr -d ' ' <"$repository/src/ir/ops.def" | grep -qFx -- "$row" && return
    printf '%s: no row of src/ir/ops.def: %s\n' "$1" "$2"
    failed=1
}

check_file() { # file
    local command='' lines=() inside=0 line
    while IFS= read -r line || [ -n "$line" ]; do
        case $inside$line in
        '0```console') inside=1 ;;
        '1```'*)
            [ -n "$command" ] && check_block "$1" "$command" "${lines[@]+"${lines[@]}"}"
            command='' lines=() inside=0
            ;;
        '1$ '*)
            [ -n "$command" ] && check_block "$1" "$command" "${lines[@]+"${lines[@]}"}"
            command=${line#\$ } lines=()
            [[ $command == sheaf\ * ]] || command=
            ;;
        1*) [ -n "$command" ] && lines+=("$line") ;;
        0*([[:blank:]])'OP('*) check_row "$1" "$line" ;;
        0+([A-Z])_+([A-Z]))
            printf '%s: a placeholder: %s\n' "$1" "$line"
            failed=1
            ;;
        esac
    done <"$1"
}

# Links to everything that git tracks, or, outside a checkout, to all but runs/: files that a user
# made by trying the commands would make them fail.
make_tree() {
    local entry names
    mkdir "$top/tree"
    names=$(git -C "$repository" ls-files 2>/dev/null | cut -d/ -f1 | sort -u)
    for entry in ${names:-$(ls "$repository")}; do
        [ "$entry" = runs ] || ln -s "$repository/$entry" "$top/tree/"
    done
}

expect() { # expect FAULT LINE...: a document of these lines has this fault, or none where it is ""
    local want=$1 found status
    shift
    printf '%s\n' "$@" >"$top/planted.md"
    found=$(
        failed=0
        check_file "$top/planted.md"
        exit $failed
    )
    status=$?
    [[ $found == "${want:+$top/planted.md: }$want" && $status == $((${#want} > 0)) ]] && return
    printf 'self-test, line %s: wanted "%s", found "%s"\n' "${BASH_LINENO[0]}" "$want" "$found"
    failed=1
}

self_test() {
    binary=$top/sheaf
    printf '%s\n' '#!/bin/sh' 'case $1 in' 'list) echo one; echo two; echo three ;;' \
        '*) echo "sheaf: no $1" >&2; exit 2 ;;' 'esac' >"$binary"
    chmod +x "$binary"
    expect '' '```console' '$ sheaf list' one ... three '$ ./x help' '```' two
    expect '' '```console' '$ sheaf none' 'sheaf: no none' '```' '```console' '$ sheaf list' '```'
    expect $'$ sheaf list\n  does not print (from line 0 on): four' '```console' '$ sheaf list' four '```'
    expect $'$ sheaf list\n  does not print (from line 2 on): one' '```console' '$ sheaf list' two one '```'
    expect $'$ sheaf none\n  fails with status 2: sheaf: no none' '```console' '$ sheaf none' ... '```'
    expect $'$ sheaf none\n  fails with status 2: sheaf: no none' '```console' '$ sheaf none' '$ sheaf list' '```'
    expect $'$ sheaf list; echo sheaf: x\n  succeeds, but the document shows a failure: sheaf: x' \
        '```console' '$ sheaf list; echo sheaf: x' 'sheaf: x' '```'
    expect 'a placeholder: NEW_OUTPUT' '```' NEW_OUTPUT '```'
    expect '' '    OP(gelu, gelu, "x[*] -> y[*]", "*", "10*", CHEAP, gelu)'
    expect 'no row of src/ir/ops.def:   OP(gelu, gelu, "x[*] -> y[*]", "*", "11*", CHEAP, gelu)' \
        '  OP(gelu, gelu, "x[*] -> y[*]", "*", "11*", CHEAP, gelu)'
}

make_tree
if [ "${1-}" = --self-test ]; then
    self_test
else
    binary=$(realpath "$1")
    shift
    for file in "$@"; do check_file "$file"; done
fi
exit $failed
