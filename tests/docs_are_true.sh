#!/usr/bin/env bash
# docs_are_true.sh BINARY [FILE ...] -- what the documents show is what the program prints.
#
# In a ```console block a line "$ sheaf ..." is run, with BINARY for sheaf; each line after it must stand
# in the output, in that order (a line "..." stands for any). Lines that begin with "$ ./x" are not run here.
set -u
binary=$1
shift
failed=0
top=$(mktemp -d)
out=$top/out
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache

check_block() { # file, command, lines...
    local file=$1 command=$2 at=0 line found
    shift 2
    (eval "${command/#sheaf/\"$binary\"}") >"$out" 2>&1 </dev/null
    for line in "$@"; do
        [ "$line" = "..." ] && continue
        found=$(tail -n +"$((at + 1))" "$out" | grep -nFx -m1 -- "$line" | cut -d: -f1)
        if [ -z "$found" ]; then
            printf '%s: $ %s\n  does not print (from line %d on): %s\n' "$file" "$command" "$at" "$line"
            failed=1
            return
        fi
        at=$((at + found))
    done
}

for file in "$@"; do
    command='' lines=() inside=0
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        '```console') inside=1 ;;
        '```'*)
            [ -n "$command" ] && check_block "$file" "$command" "${lines[@]+"${lines[@]}"}"
            command='' lines=() inside=0
            ;;
        '$ sheaf '*)
            [ $inside = 1 ] || continue
            [ -n "$command" ] && check_block "$file" "$command" "${lines[@]+"${lines[@]}"}"
            command=${line#\$ } lines=()
            ;;
        *) [ $inside = 1 ] && [ -n "$command" ] && lines+=("$line") ;;
        esac
    done <"$file"
done
exit $failed
