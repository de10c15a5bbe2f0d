#!/usr/bin/env bash
# stops.sh BINARY -- what ends a run and what must not: signals of users and schedulers, readers of
# its output that go away or stop reading, terminals, launchers. Works in a temporary folder.
. tests/support/e2e.sh

for i in $(seq 1 60); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
words=(model.name=llama-tiny model.num_hidden_layers=1 data.train="$top/text" data.seq_len=16 batch.global=4 batch.micro=1
    run.threads=1)
train() { # folder, argument...
    "$sheaf" train "${words[@]}" run.dir="$top/$1" "${@:2}"
}
begin() { # folder, argument...: in the background, as process $pid, until its first step is done
    rm -rf "${top:?}/$1"
    "$sheaf" train "${words[@]}" run.dir="$top/$1" run.steps=1000000 "${@:2}" >"$top/$1.out" 2>"$top/$1.err" &
    pid=$!
    runs "$1"
}
runs() { # folder: waits for the first step
    for _ in $(seq 400); do [ -s "$top/$1/metrics.jsonl" ] && return || sleep 0.05; done
    echo "  no step of $1" && false
}
steps() { wc -l <"$top/$1/metrics.jsonl"; }
saved() { # folder: the last step is saved
    [ "$(cd "$top/$1/checkpoints" && ls -d step-???????? | tail -n 1)" = "$(printf 'step-%08d' "$(steps "$1")")" ]
}
ends() { # expected status: of $pid, within 20 s
    local got
    for _ in $(seq 400); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
    kill -0 "$pid" 2>/dev/null && { echo "  still runs" && kill -9 "$pid" && return 1; }
    wait "$pid"
    got=$?
    [ $got = "$1" ] || { echo "  exit status $got, not $1" && false; }
}
more_steps() { # folder: a step is done after now
    local n
    n=$(steps "$1")
    for _ in $(seq 200); do [ "$(steps "$1")" -gt "$n" ] && return || sleep 0.05; done
    echo "  no step after $n" && false
}

# Signals.
for pair in HUP:129 USR1:138 USR2:140 XCPU:152 TERM:143 INT:130; do
    for supervised in "" "--supervise 3"; do
        begin s $supervised
        kill -"${pair%:*}" $pid
        ok "SIG${pair%:*} $supervised" ends "${pair#*:}"
        ok "SIG${pair%:*} $supervised: saved" saved s
        ok "SIG${pair%:*} $supervised: no restart" test ! -e "$top/s/restarts.jsonl"
    done
done
begin w --supervise 3
kill -USR1 "$(cat "$top/w/lock")" # the worker itself
ok "a signal for the worker alone" ends 138
ok "is no failure either" test ! -e "$top/w/restarts.jsonl"
(trap '' HUP && exec "$sheaf" train "${words[@]}" run.steps=1000000 run.dir="$top/nohup" >"$top/nohup.out" 2>"$top/nohup.err") &
pid=$!
runs nohup
kill -HUP $pid
ok "nohup" more_steps nohup
kill -TERM $pid
ok "and then SIGTERM" ends 143
ok "is saved" saved nohup

# Readers that go away.
train h run.steps=300 2>"$top/h.err" | head -n 1 >/dev/null
ok "sheaf train | head -1 trains to its end" test "${PIPESTATUS[0]}" = 0
ok "all steps" test "$(steps h)" = 300
ok "and is saved" saved h
ok "with a word" grep -q "nobody reads standard output any more" "$top/h.err"
train h2 run.steps=300 2>&1 >"$top/h2.out" | true
ok "standard error without a reader" test "${PIPESTATUS[0]}" = 0
{ train h3 run.steps=300 2>&1; echo $? >"$top/h3.status"; } | head -n 1 >/dev/null
ok "both without a reader" test "$(cat "$top/h3.status")" = 0
ok "is saved" saved h3

# Readers that do not read: a full pipe neither stalls a run nor makes it deaf.
mkfifo "$top/fifo"
sleep 1000 <"$top/fifo" &
reader=$!
"$sheaf" train "${words[@]}" run.dir="$top/b" run.steps=1000000 >"$top/fifo" 2>"$top/b.err" &
pid=$!
runs b
while [ "$(steps b)" -lt 1500 ]; do more_steps b || break; done # 140 bytes each: more than a pipe holds
ok "a full pipe does not stall the run" test "$(steps b)" -ge 1500
kill -TERM $pid
ok "nor make it deaf" ends 143
ok "it is saved" saved b
kill $reader

# A stopped run does not validate before it saves: the time until SIGKILL may be short.
begin v run.valid_every=1 data.valid="$top/text"
kill -TERM $pid
ok "SIGTERM" ends 143
ok "validates until then" grep -q valid_loss "$top/v/metrics.jsonl"
ok "but not at the last step" test -z "$(tail -n 1 "$top/v/metrics.jsonl" | grep valid_loss)"

# Under mpirun, which stops reading the output before it ends its ranks, a second later. Steps are
# so short that a second of their lines fills a pipe.
if command -v mpirun >/dev/null && [ -e "$(dirname "$sheaf")/sheaf-mpi.so" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    words+=(model.hidden_size=16 model.intermediate_size=16)
    launch() { # folder, argument...: in the background, as process $pid
        rm -rf "${top:?}/$1"
        mpirun --oversubscribe -n 2 "$sheaf" train "${words[@]}" run.dir="$top/$1" run.steps=1000000 "${@:2}" \
            >"$top/$1.out" 2>"$top/$1.err" &
        pid=$!
        runs "$1" && sleep 1
    }
    for signal in TERM INT; do
        launch m
        kill -$signal $pid
        wait $pid
        ok "mpirun, SIG$signal: saved" saved m
        ok "mpirun, SIG$signal: plain lines" test "$(grep -c "$(printf '\033')" "$top/m.out")" = 0
    done
    launch m run.save_every=5
    kill -TERM $pid
    wait $pid
    newest=$(cd "$top/m/checkpoints" && ls -d step-???????? | tail -n 1 | tr -dc 0-9 | sed 's/^0*//')
    ok "mpirun: what save_every saved is not lost" test "$newest" -ge $(($(steps m) / 5 * 5))
    ok "mpirun: resumes" train m run.steps=$((newest + 1)) >"$top/m2.out"
    ok "mpirun: there" grep -q "continues at step $((newest + 1)) " "$top/m2.out"
    launch m
    kill -USR1 $pid # which mpirun passes on
    ok "mpirun, SIGUSR1: its exit status" ends 138
    ok "mpirun, SIGUSR1: saved" saved m
    launch m
    kill -HUP "$(cat "$top/m/lock")" # rank 0 alone
    ok "mpirun, SIGHUP for one rank: the status of all" ends 129
    ok "mpirun, SIGHUP for one rank: saved" saved m
fi

# Terminals get a few lines a second, launchers and files plain lines.
if command -v script >/dev/null; then
    TERM=xterm script -qec "$sheaf train ${words[*]} run.dir=$top/t run.steps=2000" "$top/t.out" >/dev/null
    shown=$(tr '\r' '\n' <"$top/t.out" | grep -c 'step [0-9]*/2000')
    ok "a terminal shows the last step" grep -q 'step 2000/2000' "$top/t.out"
    ok "in place" grep -q "$(printf '\r\033\[Kstep')" "$top/t.out"
    ok "at most four lines a second, of 2000 steps" test "$shown" -lt 200
    TERM=xterm OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 \
        script -qec "$sheaf train ${words[*]} run.dir=$top/l run.steps=20" "$top/l.out" >/dev/null
    ok "a launcher's terminal: one line per step" test "$(grep -c 'step [0-9]*/20 ' "$top/l.out")" = 20
    ok "without control codes" test "$(grep -c "$(printf '\033')" "$top/l.out")" = 0
fi

counted
