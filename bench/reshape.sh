#!/usr/bin/env bash
# reshape.sh [BINARY [FOLDER]] -- speed of `sheaf reshape` on a checkpoint of 1.4 GiB (gpt2-124m
# with AdamW), compared with `cp`. Both write to the disk: cp is followed by sync, and reshape syncs
# its files. Needs 5 GB in FOLDER (default: the current folder) while it runs. Best of three; for an
# idle machine.
#
# Limits: at least half the speed of cp, and less than 256 MiB of memory.
set -eu
sheaf=${1:-build/release/sheaf}
top=$(mktemp -d "${2:-.}/reshape_bench_XXXXXX")
trap 'rm -rf "$top"' EXIT
head -c 100000 /dev/urandom | base64 >"$top/text"
"$sheaf" train model.name=gpt2-124m data.train="$top/text" data.tokenizer=bytes data.seq_len=16 batch.global=2 run.steps=1 run.save_every=1 \
    run.ranks=2 mesh.dp=2 parallel.zero=1 run.dir="$top/a" >/dev/null
mib=$(du -sm "$top/a/checkpoints" | cut -f1)
cat "$top"/a/checkpoints/*/* >/dev/null # both then read from the page cache

best() { # name, command: sets $seconds to the shortest of three times
    seconds=1e9
    for _ in 1 2 3; do
        rm -rf "$top/b"
        sync
        begin=$(date +%s.%N)
        eval "$2" >/dev/null
        seconds=$(awk -v a="$begin" -v b="$(date +%s.%N)" -v s="$seconds" 'BEGIN { print b - a < s ? b - a : s }')
    done
    awk -v w="$1" -v s="$seconds" -v m="$mib" 'BEGIN { printf "%-24s %6.2f s  %7.0f MiB/s\n", w, s, m / s }'
}
best "cp, sync" 'cp -r "$top/a/checkpoints" "$top/b" && sync'
copy=$seconds
best "sheaf reshape" '"$sheaf" reshape "$top/a" "$top/b" mesh.dp=1 mesh.tp=2'
rm -rf "$top/b"
"$sheaf" reshape "$top/a" "$top/b" mesh.dp=1 mesh.tp=2 >/dev/null &
most=0
while [ -r "/proc/$!/status" ]; do # VmHWM is the peak so far
    now=$(awk '/VmHWM/ { print int($2 / 1024) }' "/proc/$!/status" 2>/dev/null || true)
    [ "${now:-0}" -gt "$most" ] && most=$now
    sleep 0.02
done
wait $!
awk -v c="$copy" -v r="$seconds" -v m="$most" 'BEGIN {
    printf "%.2f of the speed of cp (wanted 0.5), %d MiB of memory at most (wanted below 256)\n", c / r, m
    exit !(c / r >= 0.5 && m < 256) }'
