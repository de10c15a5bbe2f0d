#!/usr/bin/env bash
# slow_pin.sh BINARY -- a busy neighbor process: run.pin=auto reaches 0.9 of the rate of
# run.pin=false, and the run says once that its threads are not pinned. Rates are compared as ratios
# of neighboring runs, the median of five pairs; the machine must be idle otherwise.
. tests/support/e2e.sh

rate() { # run.pin: tokens per second of a run of some seconds
    "$sheaf" train examples/llama-tiny.yaml run.steps=400 optim.warmup=1 run.pin="$1" \
        run.fresh=true run.dir="$top/run" >"$top/out" 2>"$top/err" || exit 1
    cat "$top/err" >>"$top/$1.err"
    sed -n 's/.* \([0-9.]*\)k tok\/s, memory.*/\1/p' "$top/out"
}
ratio() { # median of rate auto / rate false
    for _ in 1 2 3 4 5; do
        echo "$(rate auto) $(rate false)"
    done | awk '{ print $1 / $2 }' | sort -g | sed -n 3p
}

alone=$(ratio)
(while :; do :; done) &
neighbor=$!
beside=$(ratio)
"$sheaf" train examples/llama-tiny.yaml run.steps=400 run.ranks=2 run.threads=1 run.pin=auto \
    run.fresh=true run.dir="$top/ranks" >"$top/out" 2>"$top/ranks.err"
kill $neighbor
echo "auto / unpinned: $alone alone, $beside beside a busy process"
ok "alone, auto loses nothing" awk "BEGIN { exit !($alone >= 0.9) }"
ok "beside a neighbor, auto is not slower" awk "BEGIN { exit !($beside >= 0.9) }"
ok "the run says it" grep -q "another process uses a core of this run" "$top/auto.err"
ok "an unpinned run does not" sh -c "! grep -q 'another process' '$top/false.err'"
ok "two ranks say it once" test "$(grep -c "another process uses a core of this run, on [12] of its 2 ranks" "$top/ranks.err")" = 1
counted
