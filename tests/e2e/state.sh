#!/usr/bin/env bash
# state.sh BINARY -- runs that end early and resume: killed at every point of a save, on other
# ranks, with a damaged checkpoint, on a full disk. On the same layout the result is bit for bit
# that of a run that was never killed, and samples are those of one pass. Works in a temporary
# folder.
. tests/support/e2e.sh

train() { # folder, key=value...
    local dir=$1
    shift
    "$sheaf" train "$top/run.yaml" run.dir="$top/$dir" "$@" >"$top/$dir.out" 2>"$top/$dir.err"
}
contains() { grep -qF -- "$2" "$top/$1" || { echo "  not in $1: $2" && cat "$top/$1" && false; }; }
losses() { sed 's/, "step_ms.*//' "$top/$1/metrics.jsonl"; }
checkpoints() { (cd "$top/$1/checkpoints" && ls -d step-????????); }
same_tensors() { # folder, folder, step: every rank's file, byte by byte
    local a=$top/$1/checkpoints/step-$3 b=$top/$2/checkpoints/step-$3 file
    [ "$(ls "$a")" = "$(ls "$b")" ] || { echo "  other files in $2" && return 1; }
    for file in "$a"/rank-*.safetensors; do cmp "$file" "$b/${file##*/}" || return 1; done
}
same_end() { # folder, folder, step
    same_tensors "$@" && diff <(losses "$1") <(losses "$2") && diff "$top/$1/samples.jsonl" "$top/$2/samples.jsonl"
}
flip() { # file, offset: one bit
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %x $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

for i in $(seq 1 60); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
cat >"$top/run.yaml" <<YAML
model:
  name: llama-tiny
  num_hidden_layers: 1
data:
  train: $top/text
  seq_len: 48
batch:
  global: 5
  micro: 2
optim:
  lr: 3e-3
  schedule: constant
numerics:
  block: 1024
run:
  steps: 9
  save_every: 3
  threads: 1
  log_samples: true
YAML

ok "a run that is never killed" status 0 train a
ok "keeps two checkpoints" test "$(checkpoints a | tr '\n' ' ')" = "step-00000006 step-00000009 "
ok "reports complete checkpoints" contains a.out "checkpoint of step 9 is complete"
ok "the same on three ranks" status 0 train r run.ranks=3 parallel.zero=2
ok "keep" status 0 train k run.keep=3
ok "keeps three" test "$(checkpoints k | wc -l)" = 3

# The memory that explain predicts, snapshot included, is the memory that the run measures.
explained=$("$sheaf" explain "$top/run.yaml" --json | sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p' | head -n 1)
ok "the predicted memory includes the snapshot" grep -q "\"peak_bytes\": $explained," "$top/a/metrics.jsonl"
simulated() { # key=value...: bytes of the rank that takes the most
    "$sheaf" simulate "$top/run.yaml" "$@" --json | tr -d '\n' | sed 's/.*"greatest": {[^}]*"bytes": \([0-9]*\).*/\1/'
}
ok "simulate predicts the same" test "$(simulated)" = "$explained"
ok "also for three ranks" grep -q "\"peak_bytes\": $(simulated run.ranks=3 parallel.zero=2)," "$top/r/metrics.jsonl"
ok "a run that saves only its last step" status 0 train once run.save_every=0 run.steps=2
ok "has the same buffer" grep -q "\"peak_bytes\": $(simulated run.save_every=0)," "$top/once/metrics.jsonl"

# Killed at every point of a save, on one rank and on one of three.
points="snapshot folder half data synced manifest-half manifest renamed latest-half latest removing done"
for point in $points; do
    step=6
    [ $point = removing ] && step=9 # the first save that removes a checkpoint
    export SHEAF_KILL_AT=$point:0:$step
    ok "killed at $point" status 137 train "k$point"
    unset SHEAF_KILL_AT
    ok "resumes after $point" status 0 train "k$point"
    ok "and ends as if it had not been killed" same_end a "k$point" 00000009
    ok "and leaves two complete checkpoints and no other files" test "$(cd "$top/k$point/checkpoints" && echo *)" = \
        "latest step-00000006 step-00000009"
done
for point in snapshot half synced; do
    export SHEAF_KILL_AT=$point:1:6
    ok "killed at $point on rank 1" status 137 train "r$point" run.ranks=3 parallel.zero=2
    unset SHEAF_KILL_AT
    ok "resumes on three ranks after $point" status 0 train "r$point" run.ranks=3 parallel.zero=2
    ok "and ends as if it had not been killed, on three ranks" same_end r "r$point" 00000009
done
SHEAF_KILL_AT=nowhere status 2 train x 2>/dev/null
ok "an unknown point is refused" contains x.err "points are snapshot, folder"

# Other ranks, across the end of an epoch: the samples are the same.
one_pass() { # folder: each epoch has each sample once
    local n
    n=$("$sheaf" data show "$top/text" 2>/dev/null | sed -n 's/.* \([0-9,]*\) tokens.*/\1/p' | head -n 1 | tr -d ,)
    sed 's/.*\[\(.*\)\].*/\1/; s/, /\n/g' "$top/$1/samples.jsonl" |
        awk -v n="$(((${n:-$(wc -c <"$top/text")} - 1 + 47) / 48))" '
            $1 >= n || seen[int((NR - 1) / n), $1]++ { print "  sample " $1 " again, or none"; bad = 1 }
            END { exit bad || NR < n + 5 }'
}
ok "4 ranks" status 0 train n run.ranks=4 run.steps=8
ok "then 2, with tensor parallelism" status 0 train n run.ranks=2 mesh.tp=2 run.steps=13
ok "then 3, with shards" status 0 train n run.ranks=3 parallel.zero=3 run.steps=17
ok "then 4 stages and slices of a sequence" status 0 train n run.ranks=2 mesh.pp=2 run.steps=21 batch.micro=1
ok "one rank throughout" status 0 train n1 run.steps=21
ok "consumes the same samples" diff "$top/n/samples.jsonl" "$top/n1/samples.jsonl"
ok "which are one pass, and the start of the next" one_pass n
ok "each step once" test "$(losses n | cut -d, -f1 | tr -dc '0-9\n' | tr '\n' ' ')" = "$(seq -s ' ' 21) "
ok "another batch size continues at the next sample" status 0 train n run.steps=23 batch.global=7
ok "with the right cursor" grep -q '{"step": 23, "cursor": 112,' "$top/n/samples.jsonl"

# Stopped, and killed before the first save.
begin() { # folder, key=value...: in the background, as process $pid
    "$sheaf" train "$top/run.yaml" run.dir="$top/$1" "${@:2}" >"$top/$1.out" 2>"$top/$1.err" &
    pid=$!
}
begin s run.steps=100000 run.save_every=50
for _ in $(seq 100); do [ -s "$top/s/metrics.jsonl" ] && break || sleep 0.05; done
kill -INT $pid
wait $pid
ok "stopped" test $? = 130
step=$(losses s | wc -l)
ok "a stopped run resumes" status 0 train s run.steps=$((step + 4)) run.save_every=50
ok "at the next step" contains s.out "continues at step $((step + 1))"
ok "and the summary names the step where it resumed" contains s.out "at step $((step + 1)), where it resumed"
begin term run.steps=100000 run.save_every=0 --supervise 3
for _ in $(seq 100); do [ -s "$top/term/metrics.jsonl" ] && break || sleep 0.05; done
kill -TERM $pid # as a cluster scheduler does before SIGKILL
wait $pid
ok "ended by SIGTERM" test $? = 143
step=$(losses term | wc -l)
ok "it is saved" test "$(checkpoints term)" = "$(printf 'step-%08d' "$step")"
ok "and not restarted" test ! -e "$top/term/restarts.jsonl"
begin f run.save_every=0 run.steps=100000
for _ in $(seq 100); do [ -s "$top/f/metrics.jsonl" ] && break || sleep 0.05; done
kill -9 $pid # the worker dies with its parent, which releases the lock
wait $pid 2>/dev/null
ok "killed before its first checkpoint" status 0 train f
ok "starts from step 1" contains f.out "ended before its first checkpoint"
ok "with the same losses" same_end a f 00000009

# Damaged checkpoints.
cp -r "$top/a" "$top/d"
flip "$top/d/checkpoints/step-00000009/rank-00000.safetensors" 40000
ok "a damaged checkpoint" status 0 train d
ok "is named" contains d.err "step-00000009/rank-00000.safetensors"
ok "is set aside" test -d "$top/d/checkpoints/step-00000009.damaged"
ok "and is replaced" same_end a d 00000009
flip "$top/d/checkpoints/step-00000009/manifest.json" 200
rm "$top/d/checkpoints/step-00000006/rank-00000.safetensors"
ok "no checkpoint is complete" status 1 train d
ok "that is an error, not a fresh start" contains d.err "no checkpoint is complete now"
ok "a second time" status 1 train d
ok "with the remedy" contains d.err "run.fresh=true"
ok "which works" status 0 train d run.fresh=true
ok "and gives the same run" same_end a d 00000009
flip "$top/d/checkpoints/latest" 8
ok "a damaged latest file" status 0 train d run.steps=10
ok "is reported" contains d.err "latest"
ok "and the newest is used" contains d.out "continues at step 10"

# Renamed and missing checkpoints.
cp -r "$top/a" "$top/g"
rm -r "$top/g/checkpoints/step-00000009" && cp -r "$top/g/checkpoints/step-00000006" "$top/g/checkpoints/step-00000009"
ok "a folder of another step" status 0 train g
ok "is named" contains g.err "is for step 6, not for step-00000009"
ok "and is not resumed from" same_end a g 00000009
mv "$top/g/checkpoints" "$top/g/elsewhere"
ok "all checkpoints gone" status 1 train g
ok "is an error, not a fresh start" contains g.err "the run was saved, but no checkpoint is complete now"
ok "and keeps the metrics" test "$(losses g | wc -l)" = 9
rmdir "$top/g/checkpoints" && mv "$top/g/elsewhere" "$top/g/checkpoints"
cp "$top/r/checkpoints/step-00000009"/* "$top/g/checkpoints/step-00000009/"
ok "another run's checkpoint of the same step" status 0 train g run.steps=10
ok "is used, with a warning" contains g.err "not the one that was saved last"

# Another job.
refuse() { # part of the message, key=value
    ok "$2 is another job" status 2 train a "$2"
    ok "$2: named" contains a.err "$1"
}
refuse "data.seq_len=48, and now it is 32" data.seq_len=32
refuse "data.pack=true, and now it is false" data.pack=false
refuse "optim.kind=adamw, and now it is sgd" optim.kind=sgd
refuse "model.num_hidden_layers=1, and now it is 2" model.num_hidden_layers=2
refuse "precision.compute=f32 or bf16, and now it is f64" precision.compute=f64
refuse "other tokens than those of data.train" data.train="$top/run.yaml"
ok "refused runs change nothing" same_end a k 00000009
ok "another learning rate is accepted" status 0 train k optim.lr=1e-3 precision.compute=bf16 run.steps=10

# A full disk: files may not exceed 64 KiB; metrics are smaller.
full() { (ulimit -f 64 && train "$@"); }
ok "a run with space" status 0 train u1 run.steps=6
cp -r "$top/u1" "$top/u2"
ok "full disk: stop" status 1 full u1 run.steps=12
ok "is reported" contains u1.err "its checkpoint cannot be written"
ok "with the way out" contains u1.err "File too large; raise the limit of the size of a file (ulimit -f)"
ok "or without it" contains u1.err "run.on_save_error=continue trains on without it"
ok "with the latest complete checkpoint" contains u1.err "the checkpoint of step 6 is complete"
ok "earlier checkpoints stay" test "$(checkpoints u1 | tr '\n' ' ')" = "step-00000003 step-00000006 "
ok "no temporary files are left" test -z "$(ls "$top/u1/checkpoints" | grep tmp)"
ok "full disk at the last step" status 1 full u1 run.steps=9
ok "has the way out" contains u1.err "ulimit -f"
ok "without the advice to continue" test -z "$(grep on_save_error "$top/u1.err")"
ok "with space it resumes" status 0 train u1
ok "with the same result" same_end a u1 00000009
ok "full disk: continue; the last must be saved" status 1 full u2 run.steps=12 run.on_save_error=continue
ok "with a warning per failure" test "$(grep -c 'WARNING.*training continues' "$top/u2.err")" = 1
ok "all steps are done" test "$(losses u2 | wc -l)" = 12
ok "the earlier checkpoint is complete" status 0 "$sheaf" inspect "$top/u2/checkpoints/step-00000006" --check >/dev/null

# Supervised runs.
export SHEAF_KILL_AT=half:0:6
ok "supervised" status 0 train v --supervise 2
ok "is restarted once" test "$(wc -l <"$top/v/restarts.jsonl")" = 1
ok "with the reason" grep -q '"checkpoint": 3, "status": 137, "reason": "the worker died of SIGKILL' "$top/v/restarts.jsonl"
ok "and ends as if it had not been killed" same_end a v 00000009
ok "supervised, with run.fresh" status 0 train v run.fresh=true --supervise 2
ok "renames the old run, not its own" test -d "$top/v.1" -a ! -e "$top/v.2"
ok "on fewer ranks" status 0 train w run.ranks=3 parallel.zero=2 --supervise 2 --fewer
ok "two are left" contains w.out "2 ranks of 1 threads"
ok "with the same samples" diff "$top/a/samples.jsonl" "$top/w/samples.jsonl"
unset SHEAF_KILL_AT
ok "a refused run is not restarted" status 2 train z data.train= --supervise 3
ok "--supervise needs a number" status 2 train z --supervise many
ok "--fewer needs --supervise" status 2 train z --fewer

if command -v mpirun >/dev/null && [ -e "$(dirname "$sheaf")/sheaf-mpi.so" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mpirun --oversubscribe -n 2 "$sheaf" train "$top/run.yaml" run.dir="$top/z" --supervise 2 >"$top/z.out" 2>"$top/z.err"
    ok "--supervise under mpirun is refused" contains z.err "it ends all ranks when one dies"
    mpirun --oversubscribe -n 3 "$sheaf" train "$top/run.yaml" run.dir="$top/m" parallel.zero=2 >"$top/m.out" 2>"$top/m.err"
    ok "processes save the bytes of threads" same_end r m 00000009
fi

# Comparison of replicas.
ok "nothing to compare" status 2 train c1 run.check_every=2
ok "is refused" contains c1.err "no two ranks hold the same"
ok "before a folder is created" test ! -e "$top/c1"
ok "three copies, compared" status 0 train c3 run.ranks=3 run.check_every=2
ok "change nothing" diff "$top/a/samples.jsonl" "$top/c3/samples.jsonl"

# Skipped steps.
ok "every step is skipped" status 1 train skip optim.skip=1e-9
ok "eight of them" test "$(wc -l <"$top/skip/skipped.jsonl")" = 8
ok "each is reported with its norm" contains skip.out "step 8 is skipped, nothing is updated: the norm of the gradient is larger than optim.skip"
most=$(sed 's/.*"grad_norm": \([0-9.]*\).*/\1/' "$top/a/metrics.jsonl" | sort -g | tail -n 1)
most=$(awk -v x="$most" 'BEGIN { print 0.999 * x }')
ok "only the largest step is skipped" status 0 train some optim.skip="$most" run.steps=12
ok "and the run continues" grep -q '"skipped": true' "$top/some/metrics.jsonl"
ok "and every skipped step is in skipped.jsonl" cmp <(grep -c '"skipped": true' "$top/some/metrics.jsonl") <(wc -l <"$top/some/skipped.jsonl")
export SHEAF_KILL_AT=half:0:12
ok "the same, killed" status 137 train t optim.skip="$most" run.steps=12
unset SHEAF_KILL_AT
ok "resumes" status 0 train t optim.skip="$most" run.steps=12
ok "and Adam's time counts only updates" same_end some t 00000012
ok "skipped steps are listed once" cmp "$top/some/skipped.jsonl" "$top/t/skipped.jsonl"

counted
