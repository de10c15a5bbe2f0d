#!/usr/bin/env bash
# saves.sh BINARY -- checkpoints by time, and runs on a disk that is full. Works in a temporary
# folder.
. tests/support/e2e.sh

for i in $(seq 1 60); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
words=(model.name=llama-tiny model.num_hidden_layers=1 data.train="$top/text" data.seq_len=16 batch.global=4 batch.micro=1
    run.threads=1 optim.schedule=constant)
train() { # folder, argument...
    "$sheaf" train "${words[@]}" run.dir="$top/$1" "${@:2}" >"$top/$1.out" 2>"$top/$1.err"
}
begin() { # folder, argument...: in the background, as process $pid
    : >"$top/$1.out"
    "$sheaf" train "${words[@]}" run.dir="$top/$1" "${@:2}" >>"$top/$1.out" 2>"$top/$1.err" &
    pid=$!
}
contains() { grep -qF -- "$2" "$top/$1" || { echo "  not in $1: $2" && cat "$top/$1" && false; }; }
checkpoints() { (cd "$top/$1/checkpoints" && ls -d step-????????); }
losses() { sed 's/, "step_ms.*//' "$top/$1/metrics.jsonl"; }
newest() { checkpoints "$1" | tail -n 1; }

# By time.
ok "by default" train d run.steps=2
ok "the first lines say what is kept" contains d.out \
    "checkpoints: every 15 minutes and after the last step, in $top/d/checkpoints; the newest 2 are kept"
ok "by steps too" train d run.steps=4 run.save_every=2
ok "that is said" contains d.out "checkpoints: every 2 steps, every 15 minutes and after the last step, in"
ok "only the last" train d run.steps=6 run.save_minutes=0
ok "that is said too" contains d.out "checkpoints: only after the last step, in"
ok "nothing is saved before 15 minutes" test "$(grep -c 'is complete' "$top/d.out")" = 1
for ranks in 1 3; do
    begin t$ranks run.steps=1000000 run.save_minutes=0.003 run.ranks=$ranks
    for _ in $(seq 400); do [ "$(grep -c 'is complete' "$top/t$ranks.out")" -ge 3 ] && break || sleep 0.05; done
    kill -9 $pid
    wait $pid 2>/dev/null
    ok "$ranks: saved by time" test "$(grep -c 'is complete' "$top/t$ranks.out")" -ge 3
    ok "$ranks: two are kept" test "$(checkpoints t$ranks | wc -l)" -le 3 # one more while the third is written
    step=$(newest t$ranks | tr -dc 0-9 | sed 's/^0*//')
    ok "$ranks: resumes" train t$ranks run.steps=$((step + 3)) run.ranks=$ranks
    ok "$ranks: from the newest" contains t$ranks.out "continues at step $((step + 1))"
    ok "$ranks: unbroken" train u$ranks run.steps=$((step + 3)) run.ranks=$ranks run.save_minutes=0
    ok "$ranks: the same losses" diff <(losses t$ranks) <(losses u$ranks)
done

if command -v mpirun >/dev/null && [ -e "$(dirname "$sheaf")/sheaf-mpi.so" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mpirun --oversubscribe -n 2 "$sheaf" train "${words[@]}" run.dir="$top/p" run.steps=2000 run.save_minutes=0.001 \
        >"$top/p.out" 2>"$top/p.err"
    ok "processes save by time, all at the same step" test $? = 0
    ok "more than once" test "$(grep -c 'is complete' "$top/p.out")" -ge 3
    ok "and the last is whole" "$sheaf" inspect "$top/p/checkpoints/step-00002000" --check >/dev/null
fi

# Logs that cannot be written. A log of 8 MB reaches the limit of a file's size long before a
# checkpoint does.
ok "a run to continue" train base run.steps=4
grow() { # folder, log: a copy of that run, whose log is long
    rm -rf "${top:?}/$1"
    cp -r "$top/base" "$top/$1"
    { printf '{"step": 1, "long": "' && head -c 8000000 /dev/zero | tr '\0' x && echo '"}'; } >>"$top/$1/$2"
}
limited() { # KiB, folder, argument...
    (ulimit -f "$1" && train "${@:2}")
}
whole_lines() { # folder, log
    [ "$(grep -c '^{.*}$' "$top/$1/$2")" = "$(wc -l <"$top/$1/$2")" ] && [ -z "$(tail -c 1 "$top/$1/$2" | tr -d '\n')" ]
}
for ranks in 1 2; do
    grow m metrics.jsonl
    ok "$ranks: metrics.jsonl, stop" status 1 limited 7815 m run.steps=400 run.ranks=$ranks
    ok "$ranks: the file is named" contains m.err "$top/m/metrics.jsonl: cannot be written: File too large"
    ok "$ranks: with the way out" contains m.err "run.on_save_error=continue trains on without these lines"
    ok "$ranks: a checkpoint is tried first" contains m.err "the latest step is saved: started again, the run resumes there"
    ok "$ranks: and is there" test "$(newest m | tr -dc 0-9)" -gt 4 -a "$(newest m | tr -dc 0-9)" -lt 100
    ok "$ranks: no part of a line is left" whole_lines m metrics.jsonl
    ok "$ranks: resumes" status 0 train m run.steps=30 run.ranks=$ranks
    grow n metrics.jsonl
    ok "$ranks: metrics.jsonl, continue" status 0 limited 7815 n run.steps=40 run.on_save_error=continue run.ranks=$ranks
    ok "$ranks: one warning" test "$(grep -c 'WARNING.*metrics.jsonl.*training continues without these lines' "$top/n.err")" = 1
    ok "$ranks: the last step is saved" test "$(newest n)" = step-00000040
    ok "$ranks: whole lines" whole_lines n metrics.jsonl
done
grow s skipped.jsonl
ok "skipped.jsonl, stop" status 1 limited 7813 s run.steps=11 optim.skip=1e-9
ok "is named" contains s.err "cannot write the samples of step 7: File too large"
ok "the step after it is saved" test "$(newest s)" = step-00000008
grow s skipped.jsonl
ok "skipped.jsonl, continue" status 0 limited 7813 s run.steps=11 optim.skip=1e-9 run.on_save_error=continue
ok "the last step is saved" test "$(newest s)" = step-00000011

# A disk that is full: a small one, in a mount namespace of its own.
cat >"$top/full.sh" <<'SH'
mount -t tmpfs -o size=4m tmpfs "$1/disk" || exit 77
cp -r "$1/base" "$1/disk/run" && mv "$1/disk/run/checkpoints" "$1/elsewhere" || exit 1
ln -s "$1/elsewhere" "$1/disk/run/checkpoints"
dd if=/dev/zero of="$1/disk/filler" bs=4096 2>/dev/null
truncate -s -24K "$1/disk/filler" # for the lines of about a hundred steps
"$2" train "${@:3}" run.dir="$1/disk/run" run.steps=300 run.on_save_error=continue >"$1/full.out" 2>"$1/full.err"
echo $? >"$1/full.status"
truncate -s -12K "$1/disk/filler"
"$2" train "${@:3}" run.dir="$1/disk/run" run.steps=400 >"$1/full2.out" 2>"$1/full2.err"
echo $? >"$1/full2.status"
SH
mkdir "$top/disk"
unshare -rm bash "$top/full.sh" "$top" "$sheaf" "${words[@]}" 2>/dev/null
if [ $? != 77 ] && [ -e "$top/full.status" ]; then
    ok "full disk, continue" test "$(cat "$top/full.status")" = 0
    ok "with a warning" contains full.err "metrics.jsonl: cannot be written: No space left on device"
    ok "all steps" contains full.out "done after 300 steps"
    ok "full disk, stop" test "$(cat "$top/full2.status")" = 1
    ok "saved elsewhere" contains full2.err "the latest step is saved"
else
    echo "skipped: a full disk (no mount namespaces here)"
fi

counted
