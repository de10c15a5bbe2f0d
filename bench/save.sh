#!/usr/bin/env bash
# save.sh [BINARY [FOLDER]] -- how long a step of gpt2-124m (B 4, T 1024, f32) waits for its checkpoint (1.4 GiB), beside
# how long the step itself takes; and whether the step after it, during which the disk is written, is slower. FOLDER (a
# new one in the current folder) takes 5 GB for a while. About two minutes; for a quiet machine.
#
# Wanted: less than 10% of a step.
set -eu
sheaf=${1:-build/release/sheaf}
top=$(mktemp -d "${2:-.}/save_bench_XXXXXX")
trap 'rm -rf "$top"' EXIT
head -c 100000 /dev/urandom | base64 >"$top/text"
"$sheaf" train model.name=gpt2-124m data.train="$top/text" data.tokenizer=bytes data.seq_len=1024 batch.global=4 batch.micro=4 run.steps=4 \
    run.save_every=2 run.dir="$top/a" | tee "$top/out" | grep -a 'step\|whole' | sed "s:$top/::"
awk -F'"step_ms": ' '{ split($2, a, ","); ms[NR] = a[1] } END { print ms[2], ms[3] }' "$top/a/metrics.jsonl" >"$top/steps"
waited=$(grep -a 'checkpoint of step 2 ' "$top/out" | sed 's/.*waited \([0-9.]*\) ms.*/\1/')
awk -v waited="$waited" '{ printf "a step %.0f ms, the one that runs while the disk is written %.0f ms; waited %.0f ms: %.1f%% of a step (wanted below 10)\n", \
    $1, $2, waited, 100 * waited / $1 }' "$top/steps"
