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

# losses and loads as printed, which tells f32 numbers apart
lossless() { sed 's/"grad_norm.*"aux_loss"/"aux_loss"/; s/"expert_rounds": [0-9]*, //' "$top/$1/metrics.jsonl"; }

room=parallel.expert_rows=0 # the most rows that there can be

ok "one rank" train run.steps=3 run.dir="$top/one"
ok "every choice is counted: 3 experts of 144 tokens" \
    test $(($(router "$top/one" | head -1 | grep -o '\[.*' | tr -dc '0-9,' | tr ',' '+'))) = 432
n=0
for layout in "mesh.dp=2" "mesh.dp=3 parallel.zero=3" "mesh.pp=2" "mesh.tp=2 parallel.sequence=true" \
    "mesh.cp=2" "mesh.dp=2 mesh.tp=2 parallel.recompute=full" "mesh.dp=2 mesh.ep=2 $room" \
    "mesh.cp=2 mesh.tp=2 mesh.ep=2 mesh.etp=2 parallel.zero=3 $room" \
    "mesh.pp=2 mesh.tp=2 mesh.ep=2 parallel.recompute=full $room"; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    ok "$layout" train run.steps=3 run.dir="$top/$n" run.ranks=auto $layout
    ok "$layout: the same loads and losses of the routers" same "$top/one" "$top/$n"
done

# As many tokens in a micro-batch as the keys are wide: two dims of one extent, cut in other grains.
common[1]=data.seq_len=16
ok "32 tokens, one rank" train run.steps=3 run.dir="$top/wide"
for layout in "mesh.ep=2" "mesh.etp=2"; do
    n=$((n + 1))
    ok "32 tokens, cp=2 tp=2 $layout" train run.steps=3 run.dir="$top/$n" run.ranks=auto \
        mesh.cp=2 mesh.tp=2 "$layout" $room
    ok "32 tokens, cp=2 tp=2 $layout: the same routers" same "$top/wide" "$top/$n"
done
common[1]=data.seq_len=24

ok "export" "$sheaf" reshape "$top/one" "$top/hf" --hf --dtype f32 >"$top/out"
ok "a tensor per expert" grep -aq 'layers.1.mlp.experts.7.down_proj.weight' "$top/hf/model.safetensors"
ok "the dense layer has none" sh -c "! grep -aq 'layers.0.mlp.experts' '$top/hf/model.safetensors'"
ok "import, for two ranks" "$sheaf" reshape "$top/hf" "$top/in" mesh.tp=2 >"$top/out"
ok "export again" "$sheaf" reshape "$top/in" "$top/hf2" --hf --dtype f32 >"$top/out"
ok "the same bytes" cmp "$top/hf/model.safetensors" "$top/hf2/model.safetensors"
ok "generation" "$sheaf" generate "$top/hf" -p abc -n 4 >"$top/out" 2>"$top/train.err"

# A capacity, and a balance loss over all data-parallel ranks: what is dropped and counted is the
# same wherever the tokens of a micro-batch are.
m=0
for layout in "mesh.dp=1" "mesh.cp=2" "mesh.tp=2 parallel.sequence=true" "mesh.dp=2 mesh.tp=2 mesh.ep=4 $room"; do
    # shellcheck disable=SC2086
    ok "a capacity, $layout" train run.steps=3 run.dir="$top/drop$m" run.ranks=auto $layout \
        parallel.capacity=0.8
    ok "a capacity, $layout: the same routers" same "$top/drop0" "$top/drop$m"
    m=$((m + 1))
done
ok "other routers than without" sh -c "! cmp -s '$top/one/metrics.jsonl' '$top/drop0/metrics.jsonl'"
level() { # dir, batch.micro, key...
    "$sheaf" train "${common[@]/batch.micro=2/batch.micro=$2}" run.steps=3 run.dir="$top/$1" run.ranks=auto "${@:3}" \
        >"$top/out" 2>"$top/train.err"
}
ok "aux_level=global, dp=1" level global1 2 optim.aux_level=global
ok "aux_level=global, dp=2" level global2 1 optim.aux_level=global mesh.dp=2
ok "dp x micro of 2: the same routers" same "$top/global1" "$top/global2"
ok "aux_level=micro, dp=2" level local2 1 mesh.dp=2
ok "which counts other micro-batches" sh -c "! cmp -s '$top/global2/metrics.jsonl' '$top/local2/metrics.jsonl'"

# DeepSeek's router: the selection bias is state, and steps move it against the load.
dots() { # dir, steps, layout...
    "$sheaf" train "${common[@]:0:8}" model.name=dots1-tiny optim.balance_bias=0.05 optim.aux_loss=0.02 \
        run.dir="$top/$1" run.steps="$2" run.ranks=auto "${@:3}" >"$top/out" 2>"$top/train.err"
}
ok "a selection bias" dots bias 3
ok "without steps of it" "$sheaf" train "${common[@]:0:8}" model.name=dots1-tiny optim.aux_loss=0.02 run.steps=3 \
    run.dir="$top/still" >"$top/out" 2>"$top/train.err"
ok "it moves the load" sh -c "! cmp -s '$top/still/metrics.jsonl' '$top/bias/metrics.jsonl'"
for layout in "mesh.dp=2 parallel.zero=3" "mesh.pp=2 mesh.tp=2" "mesh.dp=2 mesh.tp=2 mesh.ep=2 mesh.etp=2 $room"; do
    # shellcheck disable=SC2086
    ok "a selection bias, $layout" dots "bias-$layout" 3 $layout
    ok "a selection bias, $layout: the same routers" same "$top/bias" "$top/bias-$layout"
done
ok "a run that ends at step 2" dots part 2 optim.schedule=constant
ok "and goes on with its biases" dots part 3 mesh.dp=2 optim.schedule=constant
ok "a run of 3 steps" dots whole3 3 optim.schedule=constant
ok "the same routers as without an end" same "$top/whole3" "$top/part"
ok "the biases go out" "$sheaf" reshape "$top/bias" "$top/bias.hf" --hf --dtype f32 >"$top/out"
ok "under their name" grep -aq 'layers.2.mlp.gate.e_score_correction_bias' "$top/bias.hf/model.safetensors"
ok "a bias that the router does not have" refused "has no selection bias" \
    "$sheaf" explain "${common[@]}" optim.balance_bias=0.1
ok "a level without a loss" refused "has no effect without a loss" \
    "$sheaf" explain "${common[@]/optim.aux_loss=0.02/optim.aux_loss=0}" optim.aux_level=global

ok "a capacity" train run.steps=2 run.dir="$top/capacity" parallel.capacity=1 parallel.drop=probability
ok "eval drops nothing" "$sheaf" eval "$top/capacity" --text "$top/text" --limit 50 >"$top/out" 2>"$top/notes"
ok "and says so" grep -q 'trained with parallel.capacity=1; eval drops no choice' "$top/notes"
ok "eval has no FP8" refused "has no GEMMs in FP8" "$sheaf" eval "$top/capacity" --text "$top/text" \
    precision.compute=fp8

# In f32 on the CPU, with rows summed in one order: experts on other ranks change no bit of a loss.
bits() { # dir, key...
    "$sheaf" train "${common[@]:0:5}" run.device=cpu model.name=qwen3-moe-tiny optim.lr=0 \
        run.steps=2 run.ranks=auto run.dir="$top/$1" "${@:2}" >"$top/out" 2>"$top/train.err"
}
ok "f32, ep=1" bits f1 mesh.dp=4
for ep in "mesh.ep=2" "mesh.ep=4"; do
    ok "f32, $ep" bits "f-$ep" mesh.dp=4 "$ep" "$room"
    ok "f32, $ep: the bits of ep=1" diff <(lossless f1) <(lossless "f-$ep")
done

# Outputs of rows in rounds are added up in the same order too.
for rows in 0.9 0.2; do
    ok "f32, rounds of $rows" bits "f-rounds$rows" mesh.dp=4 mesh.ep=4 parallel.overflow=rounds parallel.expert_rows=$rows
    ok "f32, rounds of $rows: the bits of ep=1" diff <(lossless f1) <(lossless "f-rounds$rows")
    ok "f32, rounds of $rows: there were some" grep -q '"expert_rounds": [1-9]' "$top/f-rounds$rows/metrics.jsonl"
done

# Ranks that are processes.
if command -v mpirun >/dev/null && [ -e "$(dirname "$sheaf")/sheaf-mpi.so" ]; then
    mpi() { # dir, key...
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 4 "$sheaf" train \
            "${common[@]}" run.steps=3 run.dir="$top/$1" "$room" "${@:2}" >"$top/out" 2>"$top/train.err"
    }
    ok "mpirun, ep=2 etp=2 over dp and tp" mpi p1 mesh.tp=2 mesh.ep=2 mesh.etp=2 parallel.zero=3
    ok "mpirun: the same loads and losses of the routers" same "$top/one" "$top/p1"
    ok "mpirun, ep=4 over cp and tp" mpi p2 mesh.cp=2 mesh.tp=2 mesh.ep=4 parallel.sequence=true
    ok "mpirun: the same again" same "$top/one" "$top/p2"
    room="parallel.overflow=rounds" ok "mpirun, in rounds" mpi p3 mesh.cp=2 mesh.tp=2 mesh.ep=4 parallel.expert_rows=0.4
    ok "mpirun: the same in rounds" same "$top/one" "$top/p3"
    ok "mpirun: there were some" grep -q '"expert_rounds": [1-9]' "$top/p3/metrics.jsonl"
else
    echo "SKIP: no mpirun, or a build without MPI"
fi

ok "drop without a capacity" refused "has no effect without a capacity" \
    "$sheaf" explain "${common[@]}" parallel.drop=probability
for key in optim.aux_loss=0.1 optim.z_loss=0.1 optim.aux_level=global optim.balance_bias=0.1 \
    parallel.capacity=1 parallel.drop=probability; do
    ok "$key on a dense model" refused "is for a mixture of experts" \
        "$sheaf" explain data.train="$top/text" data.seq_len=24 model.name=llama-tiny $key
done
ok "a key of experts without a layer that has some" refused "has no layer with experts; remove it" "$sheaf" explain \
    data.train="$top/text" data.seq_len=24 model.name=qwen3-moe-tiny model.decoder_sparse_step=5 optim.aux_loss=0.1
dense() { # value: layers without experts
    "$sheaf" explain data.train="$top/text" data.seq_len=24 model.name=qwen3-moe-tiny "model.mlp_only_layers=$1" >"$top/out"
}
ok "layers without experts" sh -c "'$sheaf' explain data.train='$top/text' data.seq_len=24 model.name=qwen3-moe-tiny \
    model.mlp_only_layers=0,2 | grep -q 'not in layers 0,2$'"
ok "one such layer" dense 1
ok "a layer that is not there" refused "numbers of layers, from 0 to 2, are possible" dense 0,7
ok "a list in brackets" refused "write its items with commas, without brackets, as 0,1" dense "[0,1]"
long="model.max_position_embeddings=1048576 data.seq_len=1048576 batch.global=2048 batch.micro=600 data.train=LICENSE"
# shellcheck disable=SC2086
ok "more choices than rows have numbers" refused "with 4 experts for each: more than 2147483647 rows of experts" \
    "$sheaf" explain examples/mixture.yaml $long model.num_experts_per_tok=4
# shellcheck disable=SC2086
ok "more room than rows have numbers" refused "room for 629145600 rows from each of 4 ranks: more than 2147483647" \
    "$sheaf" explain examples/mixture.yaml $long parallel.expert_rows=0 model.num_experts_per_tok=2
for name in moe.experts moe.gates; do
    ok "recomputing $name" refused "$name: what a router chooses is kept, .*: attn.in .* mlp.in moe.logits moe.rows" \
        "$sheaf" explain "${common[@]}" parallel.recompute=$name
done
ok "slices with a balance loss" refused "counted over a whole micro-batch" \
    "$sheaf" explain data.train="$top/text" data.seq_len=24 model.name=mixtral-tiny optim.aux_loss=0.1 \
    parallel.schedule=seq1f1b parallel.slices=2
for key in mesh.ep=2 mesh.etp=2 parallel.expert_rows=1 parallel.overflow=rounds; do
    ok "$key on a dense model" refused "is for a mixture of experts" \
        "$sheaf" explain data.train="$top/text" data.seq_len=24 model.name=llama-tiny mesh.dp=2 $key
done
ok "experts that ep does not divide" refused "does not divide the 8 experts .* set mesh.ep=1" \
    "$sheaf" explain "${common[@]}" mesh.dp=3 mesh.ep=3
ok "ranks that ep does not divide" refused "does not divide the 2 ranks .* set mesh.ep=2" \
    "$sheaf" explain "${common[@]}" mesh.dp=2 mesh.ep=4
ok "too many ranks for an expert" refused "has a width of 3, too little .* set mesh.etp=3" \
    "$sheaf" explain "${common[@]}" mesh.dp=6 mesh.etp=6 model.moe_intermediate_size=3
ok "a row without room is an error" refused "raise parallel.expert_rows at least" \
    "$sheaf" train "${common[@]}" run.dir="$top/full" run.steps=2 mesh.dp=2 mesh.ep=4 mesh.tp=2 parallel.expert_rows=1
ok "room that is never enough" refused "parallel.expert_rows=0.9: even balanced routing needs room for 1 times" \
    "$sheaf" explain "${common[@]}" mesh.dp=2 mesh.ep=2 parallel.expert_rows=0.9
ok "nor with a capacity" refused "parallel.expert_rows=0.4: even balanced routing needs room for 0.5 times" \
    "$sheaf" explain "${common[@]}" mesh.dp=2 mesh.ep=2 parallel.expert_rows=0.4 parallel.capacity=0.5

# The run that ends there goes on in rounds, with the losses of room for all, after one warning.
curve() { # step, loss and grad_norm to 8 digits
    sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/' "$1/metrics.jsonl" |
        awk '{printf "%d %.8g %.8g\n", $1, $2, $3}'
}
in_rounds() { # dir, expert_rows, key...
    train run.steps=3 run.dir="$top/$1" run.ranks=auto parallel.overflow=rounds parallel.expert_rows="$2" "${@:3}"
}
rounds_of() { grep -o '"expert_rounds": [0-9]*' "$top/$1/metrics.jsonl" | sed 's/.*: //'; }
few="mesh.dp=2 mesh.ep=4 mesh.tp=2"
# shellcheck disable=SC2086
ok "rounds, $few" in_rounds rounds0 0.5 $few
ok "the same routers" same "$top/one" "$top/rounds0"
ok "the same losses and norms" diff <(curve "$top/one") <(curve "$top/rounds0")
ok "every step counts its rounds" [ "$(rounds_of rounds0 | awk '$1 > 0' | wc -l)" = 3 ]
ok "one warning" [ "$(grep -c 'further rounds (parallel.overflow=rounds)' "$top/train.err")" = 1 ]
ok "the steps' lines have them" grep -q "  rounds +$(rounds_of rounds0 | head -1)  " "$top/out"
for layout in "mesh.dp=2 mesh.ep=2 parallel.zero=3 parallel.recompute=full" \
    "mesh.cp=2 mesh.tp=2 mesh.ep=2 mesh.etp=2 parallel.recompute=selective" \
    "mesh.pp=2 mesh.tp=2 mesh.ep=2 parallel.schedule=zbh1" "mesh.dp=3 mesh.tp=2 mesh.ep=2 parallel.zero=2"; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    ok "rounds, $layout" in_rounds "rounds$n" 0.3 $layout
    ok "rounds, $layout: the same routers" same "$top/one" "$top/rounds$n"
    ok "rounds, $layout: the same losses" diff <(curve "$top/one") <(curve "$top/rounds$n")
done
# shellcheck disable=SC2086
ok "with enough room nothing changes" in_rounds rounds-none 4 $few
ok "no rounds" [ "$(rounds_of rounds-none | sort -u)" = 0 ]
ok "no warning" sh -c "! grep -q 'further rounds' '$top/train.err'"

# Bytes: those of simulate, and of each further round that ran as much as it says.
simulated() { # a number of its JSON, of the lines after a word
    "$sheaf" simulate "${common[@]}" run.ranks=auto parallel.overflow=rounds parallel.expert_rows=0.5 \
        mesh.dp=2 mesh.ep=4 mesh.tp=2 >"$top/simulated" && awk "$1" "$top/simulated"
}
base=$(simulated '/^SENT/ {on = 1} /^  scalars/ {no += $(NF - 1)} on && /^  all /{print $2 ? $3 - no : 0; exit}')
each=$(sed -n 's/.*on a rank: F \([0-9]*\) .*, B \([0-9]*\) .*/\1 \2/p' "$top/simulated" | awk '{print 4 * ($1 + $2)}')
sent() { grep -o '"sent_bytes": [0-9]*' "$top/rounds0/metrics.jsonl" | sed 's/.*: //'; }
ok "simulate has bytes of a round" [ "${each:-0}" -gt 0 ]
for key in parallel.overflow=rounds parallel.prepack=true; do
    ok "simulate for a cluster of GPUs refuses $key, as plan does" refused "run.device=cpu" "$sheaf" simulate \
        data.train="$top/text" data.seq_len=24 model.name=qwen3-moe-tiny mesh.dp=4 mesh.ep=4 $key \
        --cluster share/clusters/h100-sxm.yaml
done
ok "bytes sent are those of the program and of the rounds" diff <(sent) \
    <(rounds_of rounds0 | awk -v base="$base" -v each="$each" '{printf "%d\n", base + $1 * each}')
ok "explain has them" "$sheaf" explain "${common[@]}" mesh.dp=2 mesh.ep=2 parallel.overflow=rounds \
    parallel.expert_rows=0.5 >"$top/out"
ok "and the memory" grep -q 'rows without room take further rounds, in the same memory; one of' "$top/out"

for key in "mesh.ep=1" "parallel.expert_rows=0 mesh.ep=2"; do
    # shellcheck disable=SC2086
    ok "rounds with $key" refused "parallel.overflow=rounds: has no effect" \
        "$sheaf" explain "${common[@]}" mesh.dp=2 parallel.overflow=rounds $key
done
gpu=("${common[@]/run.device=ref/run.device=cuda}")
ok "rounds on a GPU" refused "have not run on a GPU yet" "$sheaf" explain "${gpu[@]/=f64/=f32}" mesh.dp=2 mesh.ep=2 \
    parallel.overflow=rounds
planned() { # arguments...: does the report say that a routing may end the run?
    "$sheaf" plan examples/mixture.yaml data.train=LICENSE run.ranks=4 mesh.dp=4 mesh.tp=1 mesh.ep=4 "$@" \
        --cluster share/clusters/h100-sxm.yaml >"$top/out" || return 2
    grep -q 'needs more ends the run' "$top/out"
}
ok "plan has the bound of rows" planned parallel.expert_rows=2
ok "not with room for any" status 1 planned parallel.expert_rows=0
ok "nor with rounds" status 1 planned run.device=cpu parallel.overflow=rounds parallel.expert_rows=2
ok "but that its time has none" grep -q 'needs more takes further rounds, which the time of the plan does not have' "$top/out"
timed() { # arguments...: what simulate says of the routing
    "$sheaf" simulate examples/mixture.yaml data.train=LICENSE run.device=cpu "$@" --cluster share/clusters/h100-sxm.yaml \
        >"$top/out" && grep -q 'experts    3 of 8 for each token; pp=1 edp=1 ep=4 etp=1: rooms' "$top/out"
}
ok "the formula of explain has the experts that a token chooses" sh -c \
    "'$sheaf' explain examples/mixture.yaml data.train=LICENSE | grep -q '(6 N + 12 L d T) / ranks *313049088 '" # N = 154656
ok "simulate says what its time has" timed
ok "no rounds" grep -q 'times and mfu are those of balanced routing$' "$top/out"
ok "also with rounds" timed parallel.overflow=rounds
ok "none of them" grep -q 'those of balanced routing, without further rounds$' "$top/out"
ok "and with rooms that balanced routing fills" timed parallel.overflow=rounds parallel.expert_rows=0.3
ok "one of four" grep -q 'those of balanced routing, which takes 4 rounds: times have one of them$' "$top/out"
ok "verify: rounds without ep" refused "rounds: has no effect without ep" \
    "$sheaf" verify "${common[@]}" --layouts "dp=2 rounds"

# Saved with rounds, killed, and continued on another grid without them; and the other way.
goes_on() { train run.dir="$top/goes" run.steps=6 run.save_every=2 run.ranks=auto "$@"; }
ok "6 steps on one rank" train run.dir="$top/six" run.steps=6 run.save_every=2
ended() {
    SHEAF_KILL_AT=$1 goes_on "${@:2}"
    [ $? = 137 ]
}
ok "rounds, killed within a save" ended half:1:4 mesh.dp=2 mesh.ep=2 parallel.overflow=rounds parallel.expert_rows=0.4
ok "room for all, killed after a save" ended done:0:4 mesh.tp=2 mesh.ep=2 "$room"
ok "rounds again, on ep=4" goes_on mesh.dp=2 mesh.tp=2 mesh.ep=4 parallel.overflow=rounds parallel.expert_rows=0.7
ok "the losses and norms of one rank" diff <(curve "$top/six") <(curve "$top/goes")

# Every token is the same: some experts have all rows, the others none, and so have the ranks.
tr -c x x <LICENSE >"$top/text"
for layout in "" "mesh.dp=2 mesh.tp=2 mesh.ep=4 $room" "mesh.dp=2 mesh.ep=2 $room"; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    ok "hot experts, $layout" train run.steps=2 run.dir="$top/$n" run.ranks=auto optim.lr=0 $layout
done
# shellcheck disable=SC2086
ok "hot experts in rounds" train run.steps=2 run.dir="$top/hot" run.ranks=auto optim.lr=0 mesh.dp=2 mesh.tp=2 \
    mesh.ep=4 parallel.overflow=rounds parallel.expert_rows=0.2
ok "the same loads in rounds" diff <(router "$top/hot") <(router "$top/$n")
ok "all rows to 3 experts" grep -q '"expert_load": \[\[\(\(0\|144\), \)*\(0\|144\)\]' "$top/$n/metrics.jsonl"
ok "the same loads" diff <(router "$top/$((n - 1))") <(router "$top/$((n - 2))")
ok "and again" diff <(router "$top/$n") <(router "$top/$((n - 2))")

# Checkpoints know nothing of the axes: one grid of experts resumes on another, and a run that was
# killed in the middle of a save goes on from the save before.
cp LICENSE "$top/text"
ok "8 steps on one rank" train run.dir="$top/whole" run.steps=8 run.save_every=2
moves() { train run.dir="$top/moves" run.steps=8 run.save_every=2 run.ranks=auto "$room" "$@"; }
killed() { # point of a save, layout...
    SHEAF_KILL_AT=$1 moves "${@:2}"
    [ $? = 137 ]
}
ok "ep=2, killed within a save" killed half:1:4 mesh.dp=2 mesh.ep=2
ok "on etp=2, killed after a save" killed done:0:4 mesh.tp=2 mesh.etp=2
ok "on ep=4, killed within a save" killed data:3:6 mesh.dp=2 mesh.tp=2 mesh.ep=4 parallel.zero=3
ok "on ep=2 over cp, to the end" moves mesh.cp=2 mesh.ep=2
ok "every step once" [ "$(curve "$top/moves" | wc -l)" = 8 ]
ok "the losses and norms of one rank" diff <(curve "$top/whole") <(curve "$top/moves")
ok "reshape to other axes" "$sheaf" reshape "$top/moves" "$top/other" mesh.dp=4 mesh.ep=2 mesh.etp=2 >"$top/out"
loss() { # layout...: of a text, to 9 digits
    "$sheaf" eval "$top/moves" --text "$top/text" --limit 500 --json mesh.cp=1 run.ranks=auto "$@" 2>/dev/null |
        sed -n 's/.*"loss": \([0-9.]\{10\}\).*/\1/p'
}
ok "eval has a loss" [ -n "$(loss mesh.ep=1)" ]
ok "the same with dp=2 ep=2" [ "$(loss mesh.ep=1)" = "$(loss mesh.dp=2 mesh.ep=2)" ]
ok "and with tp=2 dp=2 ep=2 etp=2" [ "$(loss mesh.ep=1)" = "$(loss mesh.dp=2 mesh.tp=2 mesh.ep=2 mesh.etp=2)" ]
counted
