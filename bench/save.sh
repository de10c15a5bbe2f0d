#!/usr/bin/env bash
# save.sh [BINARY [FOLDER]] -- time for which a step of gpt2-124m (B 4, T 1024, f32) waits for its
# checkpoint (1.4 GiB), compared with the time of the step; and the time of the next step, during
# which the disk is written. Needs 5 GB in FOLDER (default: the current folder) while it runs. Takes
# about two minutes; for an idle machine.
#
# Limit: less than 10% of a step.
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
