#!/usr/bin/env bash
# figures.sh -- checks that docs/figures/*.svg equal the output of `sheaf explain --svg`.
#
#     tests/figures.sh BINARY            compares each figure; exit status 1 on a difference
#     tests/figures.sh BINARY --write    writes the figures to docs/figures/
#
# docs/figures/figures.txt has a row per figure: its name, then the arguments of `sheaf explain`.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "$1")
figures=docs/figures
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
export XDG_CACHE_HOME=$new/cache

failed=0 n=0
while read -r name arguments; do
    [[ $name && $name != '#'* ]] || continue
    n=$((n + 1))
    # shellcheck disable=SC2086 # the arguments are words
    "$binary" explain $arguments --svg "$new/$name.svg" >/dev/null
    if [[ ${2-} == --write ]]; then
        cp "$new/$name.svg" "$figures/$name.svg"
    elif ! cmp -s "$new/$name.svg" "$figures/$name.svg"; then
        echo "$figures/$name.svg differs from: sheaf explain $arguments --svg; run tests/figures.sh BINARY --write"
        failed=1
    fi
done <"$figures/figures.txt"

drawn=$(find "$figures" -name '*.svg' | wc -l)
if [[ $n == 0 || $drawn != "$n" ]]; then
    echo "$figures/figures.txt has $n rows, and $drawn figures exist; both must be equal and at least 1"
    failed=1
fi
exit $failed
