#!/usr/bin/env bash
# train.sh BINARY -- `sheaf train` as a user runs it: losses do not depend on threads, recomputation
# or schedule, and a run that ends early loses nothing. Works in a temporary folder.
. tests/support/e2e.sh

losses() { sed 's/, "step_ms.*//' "$1/metrics.jsonl"; } # without members that depend on time
train() { # folder, key=value...
    local dir=$1
    shift
    "$sheaf" train "$top/run.yaml" run.dir="$top/$dir" "$@" >"$top/$dir.out" 2>"$top/$dir.err"
}
same() { diff <(losses "$top/$1") <(losses "$top/$2"); }
other() { ! diff -q <(losses "$top/$1" | head -n 1) <(losses "$top/$2" | head -n 1) >/dev/null; }
contains() { grep -qF -- "$2" "$top/$1" || { echo "  not in $1: $2" && cat "$top/$1" && false; }; }
lines() { [ "$(wc -l <"$top/$1/metrics.jsonl")" = "$2" ]; }

for i in $(seq 1 400); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
head -c 5000 "$top/text" >"$top/held"
cat >"$top/run.yaml" <<YAML
model:
  name: llama-tiny
  num_hidden_layers: 1
data:
  train: $top/text
  valid: $top/held
  seq_len: 48
batch:
  global: 5
  micro: 2
optim:
  lr: 3e-3
run:
  steps: 12
  valid_every: 6
  threads: 2
  tensorboard: true
YAML

ok "a run succeeds" status 0 train a
ok "its last step is saved" test -s "$top/a/checkpoints/step-00000012/manifest.json"
ok "one line per step" lines a 12
ok "metrics have all keys" grep -q '"step": 12, "loss": .*"grad_norm": .*"lr": .*"tokens": .*"step_ms": .*"tokens_per_s": .*"mfu": .*"peak_bytes": .*"sent_bytes": .*"valid_loss": ' "$top/a/metrics.jsonl"
ok "a TensorBoard file" test -s "$(ls "$top"/a/events.out.tfevents.* 2>/dev/null)"
ok "the loss falls" awk -F'"loss": ' '{split($2, x, ","); l[NR] = x[1]} END {exit !(l[12] < l[1] - 0.2)}' "$top/a/metrics.jsonl"
ok "the attention is named" contains a.out "attention: our own fused kernels in f32"
ok "the end is reported" contains a.out "done after 12 steps: loss"
ok "mfu is never above 100%" awk -F'"mfu": ' '{split($2, x, ","); if (x[1] > 1 || x[1] <= 0) exit 1}' "$top/a/metrics.jsonl"

ok "a second run" status 0 train b
ok "has the same losses" same a b
ok "on cpu" status 0 train plain run.device=cpu run.steps=3 run.valid_every=0
ok "a validation file that is not read is said" contains plain.out "validation: none, as run.valid_every=0; data.valid is not read"
ok "on cpu, with prepacked weights" status 0 train prepacked run.device=cpu run.steps=3 run.valid_every=0 parallel.prepack=true --trace "$top/prepacked.json"
ok "the same losses" same plain prepacked
ok "no message when the request has an effect" sh -c "! grep -q 'parallel.prepack' '$top/prepacked.out'"
ok "a trace has one prepack event per weight order and step" test "$(grep -c '"name": "prepack layer.0"' "$top/prepacked.json")" = 6 # for x W^T, for dy W
ok "one micro-batch per step" status 0 train whole run.device=cpu run.steps=1 batch.micro=5 parallel.prepack=true
ok "prepacks nothing, and reports that" contains whole.out "parallel.prepack=true"
ok "another seed" status 0 train s run.seed=2 run.steps=1 run.valid_every=0
ok "another seed, another loss" other a s
for n in 1 3 4; do
    ok "$n threads" status 0 train "t$n" run.threads=$n
    ok "$n threads, the same losses" same a "t$n"
done
ok "bf16" status 0 train h1 precision.compute=bf16 run.threads=1
ok "bf16, 3 threads" status 0 train h3 precision.compute=bf16 run.threads=3
ok "bf16, the same losses" same h1 h3
# Widths that no vector length divides: a library's own threading would change bits here.
for type in f32 bf16; do
    for widths in "777 1000" "1000 5000"; do
        set -- $widths
        for n in 1 2 3 4; do
            ok "$type, $widths, $n threads" status 0 train "w$type$1-$n" precision.compute=$type run.threads=$n run.steps=3 \
                run.valid_every=0 model.hidden_size="$1" model.intermediate_size="$2" model.head_dim=16
            ok "$type, $widths, $n threads: the same losses" same "w$type$1-1" "w$type$1-$n"
        done
    done
done
ok "recomputed" status 0 train r parallel.recompute=full
ok "recomputed, the same losses" same a r
ok "gpipe" status 0 train g parallel.schedule=gpipe
ok "all micro-batches in flight, the same losses" same a g

ok "the settled configuration is a run file" status 0 "$sheaf" train "$top/a/config.yaml" run.dir="$top/c" >"$top/c.out"
ok "and repeats the run" same a c

ok "a run that is done has nothing to do" status 0 train a
ok "and reports that" contains a.out "nothing to do: the run in $top/a is at step 12, and run.steps=12"
ok "still one line per step" lines a 12
ok "another job there is refused" status 2 train a run.seed=7
ok "with the key and both values" contains a.err "run.seed=1, and now it is 7"
ok "and the remedy" contains a.err "run.fresh=true"
ok "run.fresh renames it" status 0 train a run.fresh=true
ok "and keeps it" lines a.1 12

train long run.steps=100000 &
pid=$!
for _ in $(seq 100); do [ -s "$top/long/metrics.jsonl" ] && break || sleep 0.05; done
ok "a second run there is refused" status 2 "$sheaf" train "$top/run.yaml" run.dir="$top/long" run.fresh=true 2>"$top/second.err"
ok "and names the process" grep -q "process [0-9]* trains there" "$top/second.err"
kill -INT "$(cat "$top/long/lock")"
wait $pid
ok "Ctrl-C: exit status 130" test $? = 130
ok "Ctrl-C: the end is reported" contains long.out "stopped after"
saved=$(ls -d "$top"/long/checkpoints/step-*)
ok "Ctrl-C: the step is saved" test "$((10#${saved##*-}))" = "$(wc -l <"$top/long/metrics.jsonl")"
ok "Ctrl-C: every line is complete" awk '!/^{.*}$/ {exit 1}' "$top/long/metrics.jsonl"

train twice run.steps=100000 &
pid=$!
for _ in $(seq 100); do [ -s "$top/twice/metrics.jsonl" ] && break || sleep 0.05; done
kill -STOP "$(cat "$top/twice/lock")" # both arrive before the step ends
kill -INT "$(cat "$top/twice/lock")"
kill -CONT "$(cat "$top/twice/lock")"
kill -INT "$(cat "$top/twice/lock")" 2>/dev/null
wait $pid
ok "Ctrl-C twice: exit status 130" test $? = 130

ok "only live tokens are counted" grep -q '"step": 12, .*"tokens": 2880,' "$top/a/metrics.jsonl"
valid_at() { sed -n 's/.*"valid_loss": \([0-9.]*\)}/\1/p' "$top/$1/metrics.jsonl"; }
ok "a batch of 1" status 0 train v1 run.steps=1 run.valid_every=1 optim.lr=0 batch.global=1 batch.micro=1
ok "a batch of 4" status 0 train v4 run.steps=1 run.valid_every=1 optim.lr=0 batch.global=4 batch.micro=2 run.seed=1
same_valid() { awk -v a="$(valid_at v1)" -v b="$(valid_at v4)" 'BEGIN { d = a - b; exit !(a > 5 && d < 1e-5 && d > -1e-5) }'; }
ok "the validation loss does not depend on the batch" same_valid

ok "a loss that is not finite ends the run" status 1 train nan run.device=ref optim.kind=sgd optim.lr=1000 optim.clip=0 run.steps=30
ok "with advice" contains nan.err "try a lower optim.lr"
ok "a refused run renames nothing" status 2 train a run.fresh=true run.threads=2000
ok "the earlier run stays" test ! -e "$top/a.2"
ok "a path too long" status 2 "$sheaf" train "$top/run.yaml" run.dir="$top/$(printf 'x%.0s' $(seq 950))" 2>"$top/long.err"
"$sheaf" train "$top/run.yaml" run.dir="$top/closed" run.steps=2 >&- 2>/dev/null
ok "closed output is not written to a file" grep -qx '[0-9]*' "$top/closed/lock"

ok "no data" status 2 train n data.train=
ok "is reported" contains n.err "data.train"
ok "no such file" status 1 train n data.train=/no/such/file
ok "is named" contains n.err "/no/such/file"
ok "too large" status 2 train n model.name=llama3-8b data.tokenizer=bytes model.num_hidden_layers=32 model.hidden_size=4096
ok "is reported before the run" contains n.err "of this machine's memory"
ok "bf16 on ref" status 2 train n run.device=ref precision.compute=bf16
ok "is refused" contains n.err "ref computes in f32 and f64; set run.device=cpu"
ok "f64 on cpu" status 2 train n run.device=cpu precision.compute=f64
ok "is refused, too" contains n.err "f64 runs on ref: set run.device=ref"
ok "a refused run creates no folder" test ! -e "$top/n"

counted
