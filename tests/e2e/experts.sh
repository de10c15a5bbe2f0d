#!/usr/bin/env bash
# experts.sh BINARY -- a mixture of experts as a user runs it: routers' metrics are the same under
# every layout, weights pass through checkpoints and Hugging Face folders, keys are refused where
# they would change nothing.
. tests/support/e2e.sh
cp LICENSE "$top/text"
common=(data.train="$top/text" data.seq_len=24 batch.global=6 batch.micro=2 run.threads=1 run.device=ref
    precision.compute=f64 numerics.block=64 model.name=qwen3-moe-tiny model.decoder_sparse_step=2
    optim.aux_loss=0.02 optim.z_loss=0.001)
train() { "$sheaf" train "${common[@]}" "$@" >"$top/out" 2>"$top/train.err"; }
# step, tokens of experts, and losses of the router to 9 digits
router() {
    sed 's/.*"step": \([0-9]*\),.*"aux_loss": \([^,]*\), "z_loss": \([^,]*\), .*"expert_load": \(.*\)}/\1 \2 \3 \4/' \
        "$1/metrics.jsonl" | awk '{printf "%d %.9g %.9g", $1, $2, $3; $1 = $2 = $3 = ""; print}'
}
same() { [ "$(router "$1" | wc -l)" = 3 ] && diff <(router "$1") <(router "$2"); }
refused() { # part of the message, command...
    "${@:2}" >"$top/printed" 2>&1
    [ $? = 2 ] && grep -q -- "$1" "$top/printed" || { cat "$top/printed"; return 1; }
}

ok "one rank" train run.steps=3 run.dir="$top/one"
ok "every choice is counted: 3 experts of 144 tokens" \
    test $(($(router "$top/one" | head -1 | grep -o '\[.*' | tr -dc '0-9,' | tr ',' '+'))) = 432
n=0
for layout in "mesh.dp=2" "mesh.dp=3 parallel.zero=3" "mesh.pp=2" "mesh.tp=2 parallel.sequence=true" \
    "mesh.cp=2" "mesh.dp=2 mesh.tp=2 parallel.recompute=full"; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    ok "$layout" train run.steps=3 run.dir="$top/$n" run.ranks=auto $layout
    ok "$layout: the same loads and losses of the routers" same "$top/one" "$top/$n"
done

ok "export" "$sheaf" reshape "$top/one" "$top/hf" --hf --dtype f32 >"$top/out"
ok "a tensor per expert" grep -aq 'layers.1.mlp.experts.7.down_proj.weight' "$top/hf/model.safetensors"
ok "the dense layer has none" sh -c "! grep -aq 'layers.0.mlp.experts' '$top/hf/model.safetensors'"
ok "import, for two ranks" "$sheaf" reshape "$top/hf" "$top/in" mesh.tp=2 >"$top/out"
ok "export again" "$sheaf" reshape "$top/in" "$top/hf2" --hf --dtype f32 >"$top/out"
ok "the same bytes" cmp "$top/hf/model.safetensors" "$top/hf2/model.safetensors"
ok "generation" "$sheaf" generate "$top/hf" -p abc -n 4 >"$top/out" 2>"$top/train.err"

ok "a capacity" train run.steps=2 run.dir="$top/capacity" parallel.capacity=1 parallel.drop=probability
ok "drop without a capacity" refused "has no effect without a capacity" \
    "$sheaf" explain "${common[@]}" parallel.drop=probability
for key in optim.aux_loss=0.1 optim.z_loss=0.1 parallel.capacity=1; do
    ok "$key on a dense model" refused "is for a mixture of experts" \
        "$sheaf" explain data.train="$top/text" data.seq_len=24 model.name=llama-tiny $key
done
ok "slices with a balance loss" refused "counted over a whole micro-batch" \
    "$sheaf" explain data.train="$top/text" data.seq_len=24 model.name=mixtral-tiny optim.aux_loss=0.1 \
    parallel.schedule=seq1f1b parallel.slices=2
ok "expert parallelism" refused "has no parameters that are sharded over experts" \
    "$sheaf" explain "${common[@]}" mesh.dp=2 mesh.ep=2
counted
