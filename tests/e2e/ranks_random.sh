#!/usr/bin/env bash
# ranks_random.sh BINARY [N] [SEED] -- N (10) random models under random layouts, two steps each,
# beside one rank: loss and gradient norm agree in f64, and peak memory and bytes sent are those
# that `sheaf simulate` predicts. A layout that is refused must be refused with a reason, before it
# runs; most must run.
n=${2:-10} seed=${3:-1}
. tests/support/e2e.sh
RANDOM=$seed
ran=0

for i in $(seq 1 400); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
pick() { # name of a variable, values...: not in a subshell, which would repeat its numbers
    local to=$1
    shift
    local at=$((RANDOM % $# + 1))
    printf -v "$to" %s "${!at}"
}
draw() { # sets $model and $layout
    pick name llama-tiny llama-tiny gpt2-tiny
    pick layers 2 3 4 5
    pick heads 2 4 6
    pick length 7 12 16 31
    pick global 4 5 6 9
    pick vocab 256 259 300
    pick micro 1 2
    model="model.name=$name data.seq_len=$length batch.global=$global model.vocab_size=$vocab"
    if [ "$name" = gpt2-tiny ]; then
        model+=" model.n_layer=$layers model.n_head=$heads model.n_embd=$((heads * 8))"
    else
        model+=" model.num_hidden_layers=$layers model.num_attention_heads=$heads model.head_dim=8"
        model+=" model.num_key_value_heads=$((heads / 2)) model.hidden_size=$((heads * 8 + 4))"
    fi
    pick dp 1 2 3
    pick tp 1 2 3
    pick pp 1 1 2
    pick cp 1 1 2
    pick zero 0 1 2 3
    pick recompute none selective full
    pick schedule gpipe 1f1b zbh1 zbh2
    pick sequence false true
    pick split layers cost
    pick tokens auto contiguous zigzag
    layout="mesh.dp=$dp mesh.tp=$tp mesh.pp=$pp mesh.cp=$cp batch.micro=$micro"
    layout+=" parallel.recompute=$recompute"
    [ "$dp" = 1 ] || layout+=" parallel.zero=$zero"
    [ "$tp" = 1 ] || layout+=" parallel.sequence=$sequence"
    [ "$pp" = 1 ] || layout+=" parallel.schedule=$schedule parallel.split=$split"
    [ "$cp" = 1 ] || layout+=" parallel.tokens=$tokens"
}
common="data.tokenizer=bytes data.train=$top/text run.device=ref precision.compute=f64 run.steps=2
 run.threads=1 run.fresh=true numerics.block=256 optim.clip=0.5"
train() { # run.dir, keys...
    # shellcheck disable=SC2086
    "$sheaf" train $common run.dir="$top/$1" "${@:2}" >"$top/$1.out" 2>"$top/$1.err"
}
field() { sed -n "2s/.*\"$2\": \([-+.e0-9]*\).*/\1/p" "$top/$1/metrics.jsonl"; } # run, name: step 2
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(d * d <= 1e-16 * b * b) }'; } # 9 digits
predicted() { # keys...: peak and sent bytes of all ranks; metrics.jsonl has no scalars
    # shellcheck disable=SC2086
    "$sheaf" simulate $common "$@" --json | awk '
        /^   "ranks":/ { of = $2 + 0 } /^    "total":/ && $2 + 0 > peak { peak = $2 + 0 }
        /^     "scalar":/ { scalar = $2 == "true," }
        /^     "sent_bytes":/ && !scalar { sent += of * $2 } END { printf "%.0f %.0f\n", peak, sent }'
}
agree() {
    local peak sent
    # shellcheck disable=SC2086
    train one $model batch.micro="$micro" || { cat "$top/one.err" && return 1; }
    # shellcheck disable=SC2086
    if ! train many $model $layout; then
        grep -q '^sheaf: .*[;:,]' "$top/many.err" || { echo "  no reason" && cat "$top/many.err" && return 1; }
        [ ! -s "$top/many/metrics.jsonl" ]
        return
    fi
    ran=$((ran + 1))
    near "$(field many loss)" "$(field one loss)" || { echo "  loss" && return 1; }
    near "$(field many grad_norm)" "$(field one grad_norm)" || { echo "  grad_norm" && return 1; }
    # shellcheck disable=SC2086
    read -r peak sent < <(predicted $model $layout)
    [ "$(field many peak_bytes)" = "$peak" ] || { echo "  peak $(field many peak_bytes), not $peak" && return 1; }
    [ "$(field many sent_bytes)" = "$sent" ] || { echo "  sent $(field many sent_bytes), not $sent" && return 1; }
}

for i in $(seq 1 "$n"); do
    draw
    rm -rf "$top/one" "$top/many"
    ok "layout $i of SEED $seed: sheaf train $model $layout; repeat: $0 $sheaf $n $seed" agree
done
echo "$ran of $n layouts ran"
ok "most layouts ran" test $((2 * ran)) -ge "$n"
counted
