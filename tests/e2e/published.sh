#!/usr/bin/env bash
# published.sh -- bench/published reads a table of measurements: rows are predicted or skipped by
# reason, constants are fitted on a quarter of the rows and reported on the others, bad tables are
# refused.
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
    row two b 10 "" fp8 "" "gated=1;release=1.2"
    row two e 10 "" fp8 8 "gated=1;release=1.2"
    row two c 10 "" bf16 8 gated=1 # experts of no width
    row two d "" "" bf16 "" gated=1
} >"$top/table.csv"

line='n=[0-9]+ skipped=[0-9]+ mape=[0-9.]+ median=[0-9.]+ p90=[0-9.]+ bias=-?[0-9.]+$'
ok "a table is read" "$bench" -o "$top/out.csv" "$top/table.csv" >"$top/plain"
ok "rows are counted" grep -Eq "^one n=8 skipped=0 mape=" "$top/plain"
ok "the line has its form" grep -Eq "^one $line" "$top/plain"
ok "rows are skipped" grep -q "^two n=1 skipped=3 mape=" "$top/plain"
ok "GPU types are counted" grep -q "^A100 n=10 skipped=0 mape=" "$top/plain"
ok "clusters are counted" grep -q "^cluster a100-sxm n=10 skipped=0 mape=" "$top/plain"
ok "FP8 has a line of its own" grep -q "^two fp8 n=1 skipped=0 mape=" "$top/plain"
ok "releases are counted" grep -q "^release two fp8 1.2 n=1 skipped=0 mape=" "$top/plain"
for reason in "no shape" "FP8 experts" "no time"; do ok "$reason" grep -q "^skipped 1: $reason$" "$top/plain"; done
ok "a line for each row" test "$(wc -l <"$top/out.csv")" = 14
ok "throughput is a time: 16 x 32 tokens / (1000 x 4)" \
    grep -Eq "^two,a,a100-sxm,[01],128," "$top/out.csv"

# Rows whose xxHash64 is 0 mod 4 are fitted on, and not reported.
ok "fitted rows are not reported" "$bench" --held-out "$top/table.csv" >"$top/held"
fitted=$(grep -c "^one,r[0-9]*,a100-sxm,1," "$top/out.csv")
ok "some rows are fitted on, most are not" test "$fitted" -ge 1 -a "$fitted" -le 4
ok "all others are reported" grep -q "^one n=$((8 - fitted)) " "$top/held"

# A source with priors: all rows are equal, so what fits some of them fits the others better.
sed 's/^one,/vtrain_single,/' "$top/table.csv" >"$top/priors.csv"
mkdir "$top/written"
ok "constants are fitted" "$bench" --fit --write "$top/written" "$top/priors.csv" >"$top/fit"
ok "held-out rows alone are reported" grep -q "^vtrain_single n=$((8 - fitted)) " "$top/fit"
ok "the cluster is written" grep -q "gemm_tflops" "$top/written/a100-sxm-hdr4.yaml"
before=$("$bench" "$top/priors.csv" | sed -n 's/^vtrain_single .*mape=\([0-9]*\).*/\1/p')
after=$(sed -n 's/^vtrain_single .*mape=\([0-9]*\).*/\1/p' "$top/fit")
ok "the fit is better than the shipped constants: $after < $before" test "$after" -lt "$before"

# Folds report the fitted rows alone, each predicted by a fit on others of them.
ok "folds are fitted" "$bench" --folds 2 "$top/priors.csv" >"$top/folds"
ok "folds report the quarter alone" grep -q "^vtrain_single n=$fitted " "$top/folds"
"$bench" --folds 1 "$top/priors.csv" 2>/dev/null
ok "one fold is refused" test $? = 2

# Of two folds one has f1, f12 and f13, which take 10 ms, the other f4, f14 and f17, which take 20:
# each is predicted by the fit on the others.
{
    echo "$head"
    for i in 1 12 13; do row vtrain_single "f$i" 10 "" bf16 "" gated=0; done
    for i in 4 14 17; do row vtrain_single "f$i" 20 "" bf16 "" gated=0; done
} >"$top/crossed.csv"
ok "folds are predicted" "$bench" --folds 2 -o "$top/crossed.out" "$top/crossed.csv" >/dev/null
told() { awk -F, "\$2 == \"$1\" { print \$6 }" "$top/crossed.out"; }
ok "by the other fold: $(told f1), $(told f4)" awk "BEGIN { exit !($(told f1) > 1.05 * $(told f4)) }"

# nanotron deals blocks by cost to two stages, each share half of the sum: 6 layers of 28,672
# weights and a head of 65,536 give the first stage 5 layers, which pass 118,784; a head of 172,032
# all 6, which are half; a head of 262,144 is on it too, and the second stage has the loss.
{
    echo "$head"
    for v in 1024 2688 4096; do
        row nanotron "v$v" 10 "" bf16 "" "gated=1;ag_in=260" |
            sed "s/A100-80GB/H100-80GB/; s/,m,2,64,256,4,4,512,/,m,6,64,64,4,4,$v,/"
    done
} >"$top/stages.csv"
ok "stages are dealt" "$bench" -o "$top/stages.out" "$top/stages.csv" >/dev/null
ok "by the cost of layers" grep -q '^nanotron,v1024,.*,"6,2",""$' "$top/stages.out"
ok "to a half" grep -q '^nanotron,v2688,.*,"7,1",""$' "$top/stages.out"
ok "by the cost of the head" grep -q '^nanotron,v4096,.*,"8",""$' "$top/stages.out"

# Memory: 16 layers of width 2,048, 131,072 words, four sequences of 4,096 need about 90 of 80 GiB.
# Where such runs fit, the fitted numbers are smaller than where they ran out of memory. Two are
# less than 0.96 of the capacity, below which a run is said to fit.
memory() { # name, oom, sequences, notes
    {
        echo "$head"
        for i in 1 2 3 4 5 6 7 8; do
            row nanotron "r$i" 10 "" bf16 "" "gated=1;tied=1;ag_in=260$4" |
                sed "s/,m,.*,bf16/,m,16,2048,8192,32,32,131072,4096,256,4,8,H100-80GB,8,1,1,8,1,1,1,0,1,none,bf16/;
                     s/,4096,256,4,8,/,4096,$((64 * $3)),$3,8,/; s/,10,,,,,/,10,,,,$2,/"
        done
    } >"$top/memory$1.csv"
    ok "memory is fitted" "$bench" --fit -o "$top/memory$1.out" "$top/memory$1.csv" >"$top/fits$1"
}
memory 0 0 4 ""
memory 1 1 4 ""
memory less 0 2 ""
memory again 0 4 ";oom_in_log=1"
gib() { sed -n 's/^nanotron,r1,.*,\([0-9.]*\),"[^"]*",""$/\1/p' "$top/memory$1.out"; }
ok "by what happened: $(gib 0) < $(gib 1)" awk "BEGIN { exit !($(gib 0) + 1 < $(gib 1)) }"
ok "to runs that fit" grep -q "^nanotron fits n=$((8 - fitted)) right=100.0 false_fits=0.00" "$top/fitsless"
ok "but not to those near the capacity" grep -q "^nanotron fits n=$((8 - fitted)) right=0.0 " "$top/fits0"
ok "a run with an error of memory in its log is no label" sh -c \
    "! grep -q '^nanotron fits' '$top/fitsagain' && grep -q '^nanotron n=$((8 - fitted)) ' '$top/fitsagain'"
ok "and runs that do not" grep -q "^nanotron fits n=$((8 - fitted)) right=100.0 false_fits=0.00" "$top/fits1"

# Gradients of 2 bytes (grad_bytes): all-reducing them sends 4 bytes for each parameter, ZeRO 1 with
# gradients in f32 and weights in bf16 sends 6.
{
    echo "$head"
    for zero in 0 1; do
        row vtrain_single "z$zero" 10 "" bf16 "" gated=0 |
            sed "s/,m,.*,bf16/,m,4,4096,16384,32,32,1024,512,32,1,8,A100-80GB,8,1,1,8,1,1,1,$zero,,full,bf16/"
    done
} >"$top/grads.csv"
ok "gradients have a size" "$bench" -o "$top/grads.out" "$top/grads.csv" >/dev/null
dp() { awk -F, "\$2 == \"z$1\" { print \$$(head -1 "$top/grads.out" | tr , '\n' | grep -n '^dp_ms$' | cut -d: -f1) }" "$top/grads.out"; }
ok "of two bytes: $(dp 0), $(dp 1)" awk "BEGIN { exit !($(dp 0) > 0 && $(dp 0) < 0.8 * $(dp 1)) }"

# The inputs that tp gathers: on 8 ranks along tp a rank holds 0.75 of them whole for each layer.
gathered() { # tp
    {
        echo "$head"
        row nanotron r 10 "" bf16 "" "gated=1;tied=1;ag_in=260" |
            sed "s/,m,.*,bf16/,m,16,2048,8192,32,32,131072,4096,256,16,8,H100-80GB,8,$1,1,$((8 / $1)),1,1,1,0,1,none,bf16/"
    } >"$top/tp.csv"
    "$bench" -o "$top/tp.out" "$top/tp.csv" >/dev/null
    sed -n 's/^nanotron,r,.*,\([0-9.]*\),"[^"]*",""$/\1/p' "$top/tp.out"
}
eight=$(gathered 8)
# 16 layers x 16 x 4,096 tokens: activations of 2 x (10 x 2,048 + 3 x 8,192 + 2 x 2,048) bytes on
# 8 ranks and 0.75 x 2 x 2,048 bytes whole: 3.0 of 43.8 GiB are these
ok "gathered inputs need memory: $eight" awk "BEGIN { exit !($eight > 42 && $eight < 46) }"

# Of plans of a group the fastest one that is said to fit is chosen: 128 sequences in a micro-batch
# need more than the device has, whatever they would gain.
{
    echo "$head"
    for m in 1 2 4 8 128; do for i in a b c; do
        row nanotron "m$m$i" $((2000 + m)) "" bf16 "" "gated=1;tied=1;ag_in=260" |
            sed "s/,m,.*,bf16/,m,16,2048,8192,32,32,131072,4096,1024,$m,8,H100-80GB,8,8,1,1,1,1,1,0,1,none,bf16/"
    done; done
} >"$top/regret.csv"
ok "regret is printed" "$bench" --regret "$top/regret.csv" >"$top/regret"
ok "of plans that fit" grep -Eq "^nanotron regret groups=1 rows=[0-9]+ mean=0.[0-9]+ max=0" "$top/regret"

# Groups of other numbers of layers, in which more sequences in a micro-batch take longer, although
# the rates of any cluster say less: factors of these shapes, fitted on other groups, know it.
{
    echo "$head"
    for l in 2 3 4 5 6 7 8 9; do for m in 1 2 4 8 16; do
        row vtrain_single "l$l.$m" $((l * (24 + m))) "" bf16 "" gated=0 |
            sed "s/,m,.*,bf16/,l$l,$l,2048,8192,16,16,50257,1024,128,$m,8,A100-80GB,8,1,1,8,1,1,1,0,,full,bf16/"
    done; done
} >"$top/shapes.csv"
ok "regret has folds" "$bench" --regret --folds 2 "$top/shapes.csv" >"$top/shapes"
ok "factors of shapes" grep -Eq "^vtrain_single regret groups=8 rows=40 mean=[01][.]" "$top/shapes"
"$bench" --regret --folds 2 --rates "$top/shapes.csv" >"$top/rates"
ok "decide" grep -Eq "^vtrain_single regret groups=8 rows=40 mean=[1-9][0-9][.]" "$top/rates"
{ # GEMMs in FP8 are not dealt to folds, so these rows have no prediction
    cat "$top/shapes.csv"
    for l in 2 3 4 5 6 7 8 9; do
        row vtrain_single "l$l.fp8" $((l * 90)) "" fp8 "" gated=0 |
            sed "s/,m,.*,fp8/,l$l,$l,2048,8192,16,16,50257,1024,128,1,8,H100-80GB,8,1,1,8,1,1,1,0,,full,fp8/"
    done
} >"$top/mixed.csv"
ok "FP8 in groups" "$bench" --regret --folds 2 "$top/mixed.csv" >"$top/mixed"
ok "is not chosen" grep -Eq "^vtrain_single regret groups=8 rows=40 mean=[01][.]" "$top/mixed"
"$bench" --rates "$top/shapes.csv" 2>/dev/null
ok "--rates without folds is refused" test $? = 2

# A plan with twice the micro-batches takes longer; with half the work for each rank, shorter.
{
    echo "$head"
    row one more 10 "" bf16 "" gated=0
    row one most 10 "" bf16 "" gated=0 | sed 's/,32,16,1,4,/,32,64,1,4,/'
    for type in bf16 fp8 mxfp8; do
        row one $type 10 "" $type "" gated=1 |
            sed 's/A100/H100/; s/,m,2,64,256,4,4,512,32,/,m,2,8192,28672,64,64,512,4096,/'
    done
    row one long 10 "" bf16 "" gated=0 | sed 's/,32,16,1,4,/,64,16,1,4,/'
} >"$top/order.csv"
ok "plans are ordered" "$bench" -o "$top/order.out" "$top/order.csv" >/dev/null
ms() { sed -n "s/^one,$1,[ah]100-sxm,[01],[0-9.]*,\([0-9.e-]*\),.*/\1/p" "$top/order.out"; }
ok "more micro-batches take longer" awk "BEGIN { exit !($(ms most) > 2 * $(ms more)) }"
ok "GEMMs of 8 bits take less: $(ms fp8) and $(ms mxfp8), $(ms bf16)" \
    awk "BEGIN { exit !($(ms fp8) < 0.8 * $(ms bf16) && $(ms mxfp8) < 0.8 * $(ms bf16)) }"
ok "longer sequences take longer" awk "BEGIN { exit !($(ms long) > $(ms more)) }"

echo "$head,extra" | cat - <(row one x 10 "" bf16 "" gated=0) >"$top/bad.csv"
"$bench" "$top/bad.csv" 2>"$top/error"
ok "a short row is refused" test $? = 2
ok "its place is named" grep -q "bad.csv: row 2 has 34 cells, the header has 35" "$top/error"
"$bench" --fat "$top/table.csv" 2>/dev/null
ok "an unknown flag is refused" test $? = 2
"$bench" --write "$top" "$top/table.csv" 2>/dev/null
ok "--write without --fit is refused" test $? = 2
exit $failed
