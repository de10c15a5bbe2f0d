#!/usr/bin/env bash
# damage.sh BINARY [N] [SEED] -- N (12) random damages to the newest checkpoint of a run: changed
# bytes, zeros, a shorter, longer or missing file. A run that resumes names the damaged file, and
# either ends with an error or uses the previous checkpoint and ends with the very weights of a run
# without damage.
n=${2:-12} seed=${3:-1}
. tests/support/e2e.sh
RANDOM=$seed

for i in $(seq 1 60); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
train() { # folder, steps: under two ranks
    "$sheaf" train model.name=llama-tiny model.num_hidden_layers=1 data.train="$top/text" \
        data.seq_len=32 batch.global=4 batch.micro=1 optim.schedule=constant numerics.block=1024 \
        run.ranks=2 parallel.zero=1 run.threads=1 \
        run.save_every=2 run.keep=3 run.steps="$2" run.dir="$1" >"$top/out" 2>"$top/run.err"
}
damage() { # file: changes it; $how says how. Not in a subshell, which would repeat its numbers.
    local size at old new
    size=$(stat -c %s "$1")
    at=$(((RANDOM * 32768 + RANDOM) % size))
    case $((RANDOM % 5)) in
    0 | 1)
        old=$(od -An -tu1 -j $at -N 1 "$1")
        new=$(((old + 1 + RANDOM % 255) % 256))
        printf '%b' "$(printf '\\x%02x' $new)" | dd of="$1" bs=1 seek=$at conv=notrunc status=none
        how="byte $at changed from $old to $new"
        ;;
    2) truncate -s $at "$1" && how="shortened from $size to $at bytes" ;;
    3) printf '%d' $RANDOM >>"$1" && how="bytes added" ;;
    4) rm "$1" && how="removed" ;;
    esac
}
same_weights() { # folder: as the run without damage
    local file
    for file in "$top/whole/checkpoints/step-00000008"/rank-*; do
        cmp -s "$file" "$1/checkpoints/step-00000008/${file##*/}" || return 1
    done
}
refused_or_same() { # folder, damaged file
    if train "$1" 8; then
        same_weights "$1" || { echo "  other weights after: $how" && return 1; }
    else
        [ $? -lt 124 ] || { echo "  died after: $how" && return 1; }
    fi
    grep -q -e "${2##*/}" -e "step-00000006" "$top/run.err" "$top/out" ||
        { echo "  not named: $how" && cat "$top/run.err" && return 1; }
}

train "$top/start" 6 || { cat "$top/run.err" && exit 1; }
cp -r "$top/start" "$top/whole"
train "$top/whole" 8 || { cat "$top/run.err" && exit 1; }
for i in $(seq 1 "$n"); do
    rm -rf "$top/run"
    cp -r "$top/start" "$top/run"
    files=("$top"/run/checkpoints/step-00000006/*)
    file=${files[RANDOM % ${#files[@]}]}
    damage "$file"
    how="${file##*/}: $how; repeat: $0 $sheaf $n $seed, number $i"
    ok "damage $i" refused_or_same "$top/run" "$file"
done
counted
