#!/usr/bin/env bash
# slow_experts_mpi.sh BINARY -- a mixture of experts on four processes: every layout of four ranks
# in verify's set that covers all pairs of options, experts' axes among them. Losses, norms and the
# losses and loads of the routers are those of one rank.
. tests/support/e2e.sh
if ! command -v mpirun >/dev/null || [ ! -e "$(dirname "$sheaf")/sheaf-mpi.so" ]; then
    echo "SKIP: no mpirun, or a build without MPI"
    exit 0
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cp LICENSE "$top/text"
common=(data.train="$top/text" data.seq_len=24 batch.global=8 batch.micro=2 run.threads=1 run.device=ref
    precision.compute=f64 numerics.block=64 model.name=qwen3-moe-tiny optim.aux_loss=0.02
    optim.z_loss=0.001 run.steps=2)
# Step, loss, norm, losses of the router and tokens of experts: to 9 digits.
numbers() {
    sed 's/"lr".*"aux_loss"/"aux_loss"/; s/"expert_rounds": [0-9]*,//; s/"[a-z_0-9]*"//g; s/[^0-9.e+-]/ /g' "$1/metrics.jsonl" |
        awk '{for (i = 1; i <= NF; i++) printf "%.9g ", $i; print ""}'
}
same() { [ "$(numbers "$1" | wc -l)" = 2 ] && diff <(numbers "$1") <(numbers "$2"); }
# The keys of a layout in the words of verify; nothing if it has not four ranks.
keys() {
    local word ranks=1 keys=() room=parallel.expert_rows=0 # for any routing
    [[ $1 != *rounds* ]] || room=parallel.expert_rows=0.5  # as verify has them
    for word in $1; do
        case $word in
        mixed | operators) ;;
        tp_weights) keys+=("parallel.tp_weights=*.o_proj.*=whole") ;;
        rounds) keys+=(parallel.overflow=rounds) ;;
        sequence) keys+=(parallel.sequence=true) ;;
        dp_replicate=* | dp_shard=* | dp=* | tp=* | cp=* | pp=*) ranks=$((ranks * ${word#*=})) && keys+=("mesh.$word") ;;
        cp_heads=*) keys+=("mesh.$word") ;;
        ep=* | etp=*) keys+=("mesh.$word" "$room") ;;
        *) keys+=("parallel.$word") ;;
        esac
    done
    [ $ranks != 4 ] || printf '%s\n' "${keys[@]}" | sort -u | tr '\n' ' ' 
}
"$sheaf" verify "${common[@]}" --ranks 4 --json >"$top/verify.json" 2>"$top/verify.err"
ok "verify has layouts" grep -q '"layout"' "$top/verify.json"
grep -o '"layout": "[^"]*"' "$top/verify.json" | sed 's/.*: "//; s/"$//' | sort -u >"$top/layouts"
ok "one rank" "$sheaf" train "${common[@]}" run.dir="$top/one" >"$top/out" 2>"$top/err"
n=0 experts=0
while read -r layout; do
    found=$(keys "$layout")
    [ -n "$found" ] || continue
    n=$((n + 1))
    [[ $layout != *ep=* && $layout != *etp=* ]] || experts=$((experts + 1))
    # shellcheck disable=SC2086
    ok "$layout" mpirun --oversubscribe -n 4 "$sheaf" train "${common[@]}" $found \
        run.dir="$top/$n" </dev/null >"$top/out" 2>"$top/err"
    ok "$layout: the numbers of one rank" same "$top/one" "$top/$n"
done <"$top/layouts"
echo "$n layouts of four processes, $experts with axes of experts"
ok "some in rounds" grep -q rounds "$top/layouts"
ok "enough layouts" [ $experts -ge 8 ]
counted
