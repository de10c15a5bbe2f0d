#!/usr/bin/env bash
# fp8.sh BINARY -- FP8 as a user runs it: marks of delayed scaling pass through checkpoints, to
# other layouts too, and stay out of Hugging Face folders; models trained in FP8 are evaluated in
# bf16; weights of 8 bits change no loss; experts run in FP8.
. tests/support/e2e.sh
cp LICENSE "$top/text"
common=(examples/llama-tiny.yaml data.train="$top/text" data.valid= run.valid_every=0 run.threads=1
    run.device=cpu precision.compute=fp8 "precision.fp8=*")
train() { "$sheaf" train "${common[@]}" precision.scaling=delayed "$@" >"$top/out" 2>"$top/train.err"; }
losses() { grep -o '"loss": [0-9.]*, "grad_norm": [0-9.]*' "$top/$1/metrics.jsonl"; }
same() { [ "$(losses "$1" | wc -l)" = 6 ] && diff <(losses "$1") <(losses "$2"); }
near() { # the same losses; norms, sums in another order, within 1e-7
    paste <(losses "$1") <(losses "$2") | tr -d ',"' |
        awk '$2 != $6 || ($4 - $8) ^ 2 > 1e-14 * $4 ^ 2 { print; bad = 1 } END { exit bad || NR != 6 }'
}
refused() { # part of the message, command...
    "${@:2}" >"$top/printed" 2>&1
    [ $? = 2 ] && grep -q -- "$1" "$top/printed" || { cat "$top/printed"; return 1; }
}

ok "six steps" train run.steps=6 run.dir="$top/one"
ok "with values of 8 bits recomputed" train run.steps=6 run.dir="$top/again" \
    parallel.recompute=mlp.act,attn.in
ok "the same losses and norms" same one again
ok "a recomputed value is not offloaded" refused "mid mlp.gate mlp.up mlp.in attn.in$" \
    "$sheaf" explain "${common[@]}" parallel.offload=mlp.act parallel.recompute=mlp.act
ok "three steps" train run.steps=3 run.dir="$top/two"
ok "three more on two ranks" train run.steps=6 run.dir="$top/two" mesh.dp=2
ok "the same losses and norms" near one two
ok "three steps" train run.steps=3 run.dir="$top/three"
ok "resharded" "$sheaf" reshape "$top/three" "$top/four" mesh.dp=2 parallel.zero=3
ok "three more with ZeRO 3" train run.steps=6 run.dir="$top/four" mesh.dp=2 parallel.zero=3
ok "the losses of steps 4 to 6" diff <(losses one | tail -3 | cut -d, -f1) <(losses four | cut -d, -f1)
ok "a Hugging Face folder" "$sheaf" reshape "$top/one" --hf "$top/hf"
ok "it has no marks" test "$(grep -c 'fp8.marks' "$top/hf/model.safetensors")" = 0
ok "training starts from it" train run.steps=2 run.dir="$top/five" model.init="$top/hf"
ok "a checkpoint trained in FP8 is evaluated" "$sheaf" eval "$top/one" --text "$top/text" --limit 300
# Weights of 8 bits, and quantized where they are read. Clipping is off: norms add by packs.
coded() { # scaling, other arguments...
    rm -rf "$top/coded" "$top/plain"
    for way in fp8 bf16; do
        local dir=coded; [ $way = bf16 ] && dir=plain
        "$sheaf" train "${common[@]}" precision.scaling="$1" precision.weights=$way optim.clip=0 \
            run.steps=6 run.dir="$top/$dir" "${@:2}" >"$top/out" 2>"$top/train.err" || return 1
    done
    diff <(losses coded | cut -d, -f1) <(losses plain | cut -d, -f1)
}
for scaling in tensor block delayed; do
    ok "coded weights, $scaling: one rank" coded $scaling
    ok "coded weights, $scaling: ZeRO 3" coded $scaling mesh.dp=3 parallel.zero=3 batch.global=9 \
        batch.micro=1 numerics.block=1000
    ok "coded weights, $scaling: ZeRO 1, tp" coded $scaling mesh.dp=2 mesh.tp=2 parallel.zero=1 \
        parallel.sequence=true
done
ok "three steps with coded weights" train run.steps=3 run.dir="$top/seven" precision.weights=fp8
ok "three more without" train run.steps=6 run.dir="$top/seven" precision.weights=bf16 mesh.tp=2
ok "and three with, on other ranks" train run.steps=9 run.dir="$top/seven" precision.weights=fp8 \
    mesh.dp=2 parallel.zero=3
ok "a GPU has not run them" refused "kernels have not run on a GPU" "$sheaf" explain \
    examples/llama-tiny.yaml precision.compute=fp8 precision.weights=fp8 run.device=cuda
ok "weights of 8 bits need FP8" refused "no effect with precision.compute=bf16" "$sheaf" explain \
    examples/llama-tiny.yaml precision.compute=bf16 precision.weights=fp8
# Experts: the bits of one rank over dp, ZeRO and stages, errors like its own elsewhere.
experts() { # scaling, layouts, lines that end in ok, other arguments...
    "$sheaf" verify examples/mixture.yaml run.device=cpu precision.compute=fp8 "precision.fp8=*" \
        precision.scaling="$1" --layouts "$2" "${@:4}" >"$top/printed" 2>&1 || return 1
    [ "$(grep -Ec ' ok(; .* on one rank)?$' "$top/printed")" = "$3" ]
}
ok "experts, tensor" experts tensor "dp=2 ep=2 zero=1; dp=2 pp=2 zero=3; dp=2 tp=2 ep=2 etp=2 zero=3" 9
ok "experts, block" experts block "dp=2 ep=2 zero=3; tp=2 sequence" 5
ok "experts, delayed" experts delayed "dp=2 ep=2 pp=2 zero=1; cp=2 zero=2" 6
rules() { # FP8 in some layers: lines of the run's layout and their references
    "$sheaf" verify examples/llama-tiny.yaml run.device=cpu precision.compute=fp8 mesh.dp=2 parallel.zero=3 \
        'precision.fp8=none,mlp.*@layers:0' --ranks 2 --json >"$top/rules.json" || return 1
    [ "$(grep '"reference"' "$top/rules.json" | sed -n 3p | tr -d ' ,')" = '"reference":"onerank"' ]
}
ok "FP8 in one layer, by verify" rules
ok "experts in rounds" experts tensor "dp=2 ep=2 zero=3 rounds" 3
ok "experts in rounds, weights of 16 bits" experts tensor "dp=2 ep=2 zero=1 rounds" 3 precision.weights=bf16
moe() {
    "$sheaf" train examples/mixture.yaml data.train="$top/text" data.valid= run.valid_every=0 \
        run.threads=1 run.device=cpu precision.compute=fp8 "precision.fp8=*" mesh.tp=1 batch.micro=1 \
        precision.scaling=delayed optim.schedule=constant optim.clip=0 "$@" >"$top/out" 2>"$top/train.err"
}
ok "experts, three steps on two stages" moe run.steps=3 run.dir="$top/m1" mesh.dp=2 mesh.ep=1 \
    mesh.pp=2 parallel.zero=1
ok "six steps on one rank" moe run.steps=6 run.dir="$top/m2" mesh.dp=1 mesh.ep=1
ok "the same losses" diff <(losses m1 | cut -d, -f1) <(losses m2 | head -3 | cut -d, -f1)
ok "resharded to experts on two ranks" "$sheaf" reshape "$top/m1" "$top/m3" mesh.dp=4 mesh.ep=2 \
    mesh.pp=1 parallel.zero=3
ok "which go on" moe run.steps=6 run.dir="$top/m3" mesh.dp=4 mesh.ep=2 parallel.zero=3
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (0.001 * b) ^ 2) }'; }
loss_of() { losses "$1" | sed -n "$2p" | sed 's/"loss": //; s/,.*//'; }
ok "where the run ended" near "$(loss_of m3 1)" "$(loss_of m2 4)"
ok "a GPU has no experts in FP8" refused "matches no value of any unit" "$sheaf" explain examples/mixture.yaml \
    precision.compute=fp8 "precision.fp8=*experts*" run.device=cuda
ok "tensor scaling does not resume it" refused "fp8.marks: resume with precision.compute=fp8" \
    "$sheaf" train "${common[@]}" precision.scaling=tensor run.steps=7 run.dir="$top/one"
ok "reshape does not change that" refused "one/checkpoints/step-00000006 has the marks" \
    "$sheaf" reshape "$top/one" "$top/six" precision.scaling=tensor
ok "nor adds marks" refused "has no marks of delayed scaling" \
    "$sheaf" reshape "$top/hf" "$top/six" precision.compute=fp8 precision.scaling=delayed
ok "and leaves no folder" test ! -e "$top/six" -a ! -e "$top/six.tmp"
counted
