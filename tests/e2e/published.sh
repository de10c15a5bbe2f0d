#!/usr/bin/env bash
# published.sh -- bench/published reads a table of measurements: rows are predicted or skipped by
# reason, a fitted factor is reported on the other rows, bad tables are refused.
#
#     tests/e2e/published.sh SHEAF        the benchmark is beside the binary, in bench/
set -u
bench=$(dirname "$(realpath "$1")")/bench/published
cd "$(dirname "$0")/../.." || exit 1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
failed=0
ok() { # text, command...
    local text=$1
    shift
    "$@" || { echo "published.sh: $text: failed"; failed=1; }
}

head="source,row_id,model,layers,hidden,ffn,heads,kv_heads,vocab,seq_len,global_batch,micro_batch,gpus,gpu_type,gpus_per_node,tp,pp,dp,cp,ep,vp,zero,sequence_parallel,recompute,precision,experts,topk,schedule,step_ms,tokens_per_s_per_gpu,tflops_per_gpu,mem_gib,oom,notes"
row() { # source, id, step_ms, tokens_per_s_per_gpu, precision, experts, notes
    echo "$1,$2,m,2,64,256,4,4,512,32,16,1,4,A100-80GB,8,2,2,1,1,1,1,,,full,$5,$6,,1f1b,$3,$4,,,,$7"
}
{
    echo "$head"
    for i in 1 2 3 4 5 6 7 8; do row one "r$i" 10 "" bf16 "" gated=0; done
    row two a "" 1000 bf16 "" '"gated=1;tied=0, quoted, with ""commas"""'
    row two b 10 "" fp8 "" gated=1
    row two c 10 "" bf16 8 gated=1
    row two d "" "" bf16 "" gated=1
} >"$top/table.csv"

ok "a table is read" "$bench" -o "$top/out.csv" "$top/table.csv" >"$top/plain"
ok "rows are counted" grep -q "^one n=8 skipped=0 mape=" "$top/plain"
ok "rows are skipped" grep -q "^two n=1 skipped=3 mape=" "$top/plain"
ok "clusters are counted" grep -q "^a100-sxm n=9 skipped=0 mape=" "$top/plain"
for reason in MoE FP8 "no time"; do ok "$reason" grep -q "^skipped 1: $reason$" "$top/plain"; done
ok "a line for each row" test "$(wc -l <"$top/out.csv")" = 13
ok "throughput is a time: 16 x 32 tokens / (1000 x 4)" grep -q "^two,a,a100-sxm,128," "$top/out.csv"

# All rows of source one are equal, so a factor makes the others exact.
ok "a factor is fitted" "$bench" --fit "$top/table.csv" >"$top/fit"
ok "it is exact for equal rows" grep -Eq "^one n=[1-7] .*mape=0.0 .*bias=-?0.0 factor=" "$top/fit"

echo "$head,extra" | cat - <(row one x 10 "" bf16 "" gated=0) >"$top/bad.csv"
"$bench" "$top/bad.csv" 2>"$top/error"
ok "a short row is refused" test $? = 2
ok "its place is named" grep -q "bad.csv: row 2 has 34 cells, the header has 35" "$top/error"
"$bench" --fat "$top/table.csv" 2>/dev/null
ok "an unknown flag is refused" test $? = 2
exit $failed
