# e2e.sh -- what the scripts of tests/e2e begin with: `. tests/support/e2e.sh`, from the repository root, with the binary as $1.
# Work goes into the temporary folder $top; `ok` counts, the script ends with `counted`.
set -u
sheaf=$1
top=$(mktemp -d)
trap 'kill %% 2>/dev/null; rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
passed=0 failed=0

ok() { # what, command...
    local what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED: $what"; fi
}
status() { # wanted, command...
    local want=$1 got
    shift
    "$@"
    got=$?
    [ $got = "$want" ] || { echo "  exit status $got, not $want" && cat "$top"/*.err && false; }
}
counted() {
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
}
