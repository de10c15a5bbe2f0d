#!/usr/bin/env bash
# machine.sh BINARY -- what `sheaf` learns about its machine: limits on memory, and cards. Mounts
# files over /sys/fs/cgroup and /proc/meminfo where the user may; elsewhere it skips those checks.
. tests/support/e2e.sh

contains() { grep -qF -- "$2" "$top/$1" || { echo "  not in $1: $2" && cat "$top/$1" && false; }; }

for i in $(seq 1 400); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
train() { # folder, key=value...
    local dir=$1
    shift
    $in "$sheaf" train model.name=llama-tiny model.num_hidden_layers=1 data.train="$top/text" \
        data.tokenizer=bytes data.seq_len=48 run.steps=1 run.dir="$top/$dir" "$@" >"$top/$dir.out" 2>"$top/$dir.err"
}
in=

# A pipe in place of the CUDA plugin blocks whoever opens it.
if [ -e /dev/nvidiactl ] || [ -e /dev/nvidia0 ] || [ -e /dev/nvhost-ctrl ] || [ -e /dev/nvmap ] || [ -e /dev/dxg ]; then
    echo "skipped: the machine has a driver of NVIDIA cards"
else
    mkdir -p "$top/bin"
    cp "$sheaf" "$top/bin/sheaf"
    mkfifo "$top/bin/sheaf-cuda.so"
    ok "without a driver auto does not open the CUDA plugin" \
        status 0 timeout 20 "$top/bin/sheaf" explain model.name=llama-tiny >/dev/null
fi

if unshare -rm true 2>/dev/null; then
    group=$top/groups$(sed -n 's/^0:://p' /proc/self/cgroup)
    mkdir -p "$group/memory"
    cat >"$top/in" <<SH
mount --bind "$top/groups" /sys/fs/cgroup && mount --bind "$top/meminfo" /proc/meminfo && exec "\$@"
SH
    in="unshare -rm sh $top/in"
    echo "MemAvailable: 100000000 kB" >"$top/meminfo"
    echo 1000000 >"$top/groups/memory.max"
    ok "a cgroup above the process limits it" status 2 train a
    ok "and is named" contains a.err "of the memory that cgroup /sys/fs/cgroup allows, 976.6 KiB are available"
    echo max >"$top/groups/memory.max"
    ok "max is no limit" status 0 train b
    ok "no warning" test -z "$(grep MemAvailable "$top/b.err")"
    echo "MemAvailable: 1000 kB" >"$top/meminfo"
    ok "little free memory is no error" status 0 train c
    ok "but a warning" contains c.err "and 1000.0 KiB are free on this machine (MemAvailable)"
else
    echo "skipped: no mounts here"
fi

counted
