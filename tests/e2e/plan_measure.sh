#!/usr/bin/env bash
# plan_measure.sh BINARY -- `sheaf plan --measure`: the best plans are run, and the one that
# measures the fastest is written.
. tests/support/e2e.sh

contains() { grep -qE -- "$2" "$top/$1" || { echo "  not in $1: $2" && cat "$top/$1" && false; }; }

for i in $(seq 1 400); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
plan() { # output, argument...
    local out=$1
    shift
    TMPDIR=$top "$sheaf" plan model.name=llama-tiny data.train="$top/text" data.tokenizer=bytes \
        data.seq_len=32 batch.global=4 --cluster share/clusters/h100-sxm.yaml --alike "$@" \
        >"$top/$out" 2>"$top/$out.err"
}

ok "the best two plans are run" status 0 plan both --gpus 2 --measure 2 -o "$top/plan.yaml" mesh.cp=1
ok "with their times" contains both "^MEASURED, in .* calibrated: work takes"
ok "and the calibrated ones" contains both "planned ms +measured +calibrated +plan"
# The first row is the plan with the least of the measured times.
fastest=$(sed -n '/planned ms/,/^$/p' "$top/both" | awk 'NR > 1 && NF { print $2, $4, $5, $6, $7 }' | sort -n | head -1 | cut -d' ' -f2-)
ok "the fastest is the best plan" contains both "best .*$fastest"
ok "train runs it" status 0 "$sheaf" train model.name=llama-tiny data.train="$top/text" \
    data.tokenizer=bytes data.seq_len=32 batch.global=4 --plan "$top/plan.yaml" run.steps=1 \
    run.dir="$top/run" >"$top/train" 2>&1

ok "a launcher starts the runs" status 0 plan launched --gpus 2 --measure 1 --launcher "env SHEAF_TEST=1" mesh.tp=2
ok "a launcher that is not there is named" status 2 plan missing --gpus 2 --measure 1 --launcher nosuchlauncher
ok "with the plan and the status" contains missing.err "the run of dp=.* ended with status 127: .*nosuchlauncher"
ok "a launcher that fails in silence" status 2 plan silent --gpus 2 --measure 1 --launcher false
ok "is said to" contains silent.err "ended with status 1: it printed nothing"
ok "a launcher that starts nothing" status 1 plan nothing --gpus 2 --measure 1 --launcher "true"
ok "has no steps" contains nothing.err "measured no steps; does --launcher start the command that follows it"
printf '#!/bin/sh\nexec sleep 61\n' >"$top/slow" && chmod +x "$top/slow"
plan ended --gpus 2 --measure 3 --launcher "$top/slow" &
pid=$!
for _ in $(seq 300); do compgen -G "$top/sheaf-measure-*/log" >/dev/null && break || sleep 0.1; done
worker=$(pgrep -P $pid -x sheaf || true)
kill -TERM "${worker:-$pid}"
ended() { wait $pid; [ $? = 143 ]; }
ok "SIGTERM ends it with its run" ended
ok "no run remains" test -z "$(ls -d "$top"/sheaf-measure-* 2>/dev/null)"
ok "a range of ranks is refused" status 2 plan range --measure 1 --gpus 1..2
counted
