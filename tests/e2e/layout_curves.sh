#!/usr/bin/env bash
# layout_curves.sh BINARY -- two hundred steps of AdamW in f32 under several layouts: the curves
# stay together. Model, seed and samples are the same. Sums are grouped differently, so the last
# digits differ, by no more than between f32 and f64 (curves.sh). With the same order of sums every
# digit is equal.
set -u
sheaf=$1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
cp LICENSE "$top/text" # a text that does not change
common=(model.name=llama-tiny data.train="$top/text" data.seq_len=32 batch.global=6 batch.micro=1 optim.lr=1e-3 optim.warmup=10
    run.steps=200 run.device=cpu numerics.block=64)
failed=0

curve() { # name, key=value...
    "$sheaf" train "${common[@]}" run.dir="$top/$1" "${@:2}" >/dev/null || exit 1
    sed 's/.*"loss": \([^,]*\),.*/\1/' "$top/$1/metrics.jsonl" >"$top/$1.loss"
}
# The mean distance of two curves is within the limit, a single step within ten times that; 0: every
# digit is equal.
compare() { # name, name, limit
    paste "$top/$1.loss" "$top/$2.loss" | awk -v a="$1" -v b="$2" -v limit="$3" '
        { d = $1 - $2; if (d < 0) d = -d; sum += d; if (d > most || d != d) { most = d; at = NR } }
        NR == 1 { first = $1 } { last = $1 }
        END {
            printf "%-8s %-12s %.2g apart on average (limit %g), at most %.2g, at step %d\n", a, b, sum / NR, limit, most, at
            exit !(NR == 200 && sum / NR <= limit && most <= 10 * limit && last < first - 2)
        }' || failed=$((failed + 1))
}

curve one
curve folded numerics.fold=2
curve dp2 mesh.dp=2
curve dp2zero1 mesh.dp=2 parallel.zero=1
curve dp3zero3 mesh.dp=3 parallel.zero=3
curve tp2 mesh.tp=2
curve tp2sp mesh.tp=2 parallel.sequence=true
curve cp4 mesh.cp=4 parallel.tokens=zigzag
curve cp2u mesh.cp=2 mesh.tp=2 parallel.context=ulysses parallel.zero=2 parallel.sequence=true
curve ring mesh.cp=4 parallel.context=ring
curve double mesh.cp=4 parallel.context=double-ring mesh.cp_inner=2
curve lightseq mesh.cp=3 parallel.context=lightseq
curve token mesh.cp=3 parallel.context=token-ring
curve all mesh.dp=2 mesh.tp=3 parallel.zero=2 parallel.sequence=true
compare folded dp2 0
compare dp2 dp2zero1 0
compare one folded 1e-6
compare one dp3zero3 1e-6
compare one tp2 1e-6
compare one tp2sp 1e-6
compare one cp4 1e-6
compare one cp2u 1e-6
for plan in ring double lightseq token; do compare one $plan 1e-6; done
compare one all 1e-6
echo "$((13 - failed)) passed, $failed failed"
[ $failed = 0 ]
