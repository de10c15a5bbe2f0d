#!/usr/bin/env bash
# start.sh BINARY MPIRUN... -- a rank that is stopped or killed while MPI starts is named, and the
# job ends. Rank 0 starts late, so that the others wait in MPI_Init.
. tests/support/e2e.sh
shift
mpirun=("$@")

contains() { grep -qE -- "$2" "$top/$1" || { echo "  not in $1: $2" && cat "$top/$1" && false; }; }
ended() { [ "$code" != 0 ] && [ $((SECONDS - began)) -lt 20 ] || { echo "  exit status $code" && cat "$top"/*.err && false; }; }
for i in $(seq 1 100); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
cat >"$top/rank" <<SH
[ "\${OMPI_COMM_WORLD_RANK:-\${PMI_RANK:-0}}" = 0 ] && sleep "\$1"
shift
exec "\$@"
SH

# The processes of rank 1: the one that mpirun started, and its worker.
rank1() {
    local pid
    for pid in $(pgrep -f "run.dir=$top/$1"); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qxE '(OMPI_COMM_WORLD_RANK|PMI_RANK)=1' && echo "$pid"
    done
}
both() { local pids; for _ in $(seq 200); do pids=$(rank1 "$1"); [ "$(wc -w <<<"$pids")" = 2 ] && break; sleep 0.02; done; echo "$pids"; }
# Waits for mpirun. It may hang by itself once a rank has died while MPI started: what counts then
# is that no process of sheaf is left.
finish() { # folder
    local left=0 seen=0
    while kill -0 $job 2>/dev/null && [ $((SECONDS - began)) -lt 20 ]; do
        pgrep -f "^$sheaf train .*run.dir=$top/$1" >/dev/null && seen=1 || left=$((left + seen))
        [ $left -lt 30 ] || break
        sleep 0.1
    done
    kill -KILL $job 2>/dev/null
    wait $job 2>/dev/null
    code=$?
}
start() { # folder, seconds that rank 0 is late
    began=$SECONDS
    "${mpirun[@]}" -n 3 sh "$top/rank" "$2" "$sheaf" train model.name=llama-tiny \
        model.num_hidden_layers=1 data.train="$top/text" data.tokenizer=bytes data.seq_len=24 batch.global=3 \
        run.steps=2 run.timeout_s=3 run.dir="$top/$1" >"$top/$1.out" 2>"$top/$1.err" &
    job=$!
}

start slow 2
finish slow
ok "a rank that is late joins" test $code = 0

start stop 2
pids=$(both stop)
worker=$(tail -n 1 <<<"$pids")
sleep 0.3
kill -STOP "$worker"
finish stop
ok "a stopped rank ends the job" ended
ok "its parent names it" contains stop.err "rank 1 of 3 \(.*, pid $worker\) keeps the others from starting: it has been stopped for"

start stops 2
pids=$(both stops)
worker=$(tail -n 1 <<<"$pids")
sleep 0.3
# shellcheck disable=SC2086
kill -STOP $pids
finish stops
ok "a rank that is stopped with its parent ends the job" ended
ok "another rank names it" contains stops.err "rank [02] of 3 .* for all ranks to start: .*rank 1 \(pid $worker\) is stopped"

start gone 30
sleep 0.5
finish gone
ok "a rank that does not start ends the job" ended
ok "and is named" contains gone.err "rank 0 has not started on this host"

start kill 2
worker=$(both kill | tail -n 1)
kill -KILL "$worker"
finish kill
ok "a killed rank ends the job" ended
ok "and is named" contains kill.err "rank 1 of 3 \(.*, pid $worker\) was killed by SIGKILL before its first step"
ok "no file stays in /dev/shm" test -z "$(find /dev/shm -name "sheaf-$(id -u)-*" -newer "$top/text" 2>/dev/null)"
counted
