# e2e.sh -- common start of the scripts of tests/e2e, which run from the repository root with the
# binary as $1: `. tests/support/e2e.sh`. Files go to the temporary folder $top. `ok` runs a check
# and counts it; `counted` prints the totals and must be the last command.
set -u
sheaf=$1
top=$(mktemp -d)
trap 'kill %% 2>/dev/null; rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
passed=0 failed=0

ok() { # name of the check, command...
    local what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED: $what"; fi
}
status() { # expected exit status, command...
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
