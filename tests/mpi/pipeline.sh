#!/usr/bin/env bash
# pipeline.sh BINARY MPIRUN [FLAG ...] -- pipeline stages and attention plans as processes: losses,
# norms and sent bytes equal those of ranks that are threads, to the last printed digit.
set -u
sheaf=$1
shift
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
failed=0

for i in $(seq 1 300); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
cat >"$top/run.yaml" <<YAML
model:
  name: llama-tiny
  num_hidden_layers: 6
data:
  train: $top/text
  valid: $top/text
  seq_len: 24
batch:
  global: 10
  micro: 1
run:
  steps: 3
  valid_every: 2
  timeout_s: 60
YAML

run() { # folder, command..., as far as --, key=value...
    local dir=$1 command=()
    shift
    while [ "$1" != -- ]; do command+=("$1") && shift; done
    shift
    "${command[@]}" train "$top/run.yaml" run.dir="$top/$dir" "$@" </dev/null >"$top/$dir.out" 2>&1 ||
        { cat "$top/$dir.out" && false; }
}
# Processes without buffers for sends, as far as Open MPI can: every message waits for its receive.
unbuffered() { OMPI_MCA_btl_vader_eager_limit=80 OMPI_MCA_btl_sm_eager_limit=80 "$@"; }
numbers() { sed 's/, "step_ms.*"sent_bytes"/, "sent_bytes"/' "$top/$1/metrics.jsonl"; }

number=0
while read -r ranks layout; do
    number=$((number + 1))
    way=run
    [[ $layout = *parallel.context* ]] && way="unbuffered run"
    # shellcheck disable=SC2086
    if ! { run "t$number" "$sheaf" -- run.ranks="$ranks" $layout && $way "p$number" "$@" -n "$ranks" "$sheaf" -- $layout &&
        [ "$(numbers "t$number" | grep -c grad_norm)" = 3 ] && diff <(numbers "t$number") <(numbers "p$number"); }; then
        echo "FAILED: $layout" && failed=1
    fi
done <<LAYOUTS
2 mesh.pp=2
2 mesh.pp=2 parallel.schedule=seq1f1b parallel.slices=3
4 mesh.pp=4 parallel.evict=true
4 mesh.pp=2 mesh.dp=2 parallel.zero=3 parallel.schedule=zbv
4 mesh.pp=2 mesh.tp=2 parallel.sequence=true parallel.schedule=dualpipev
4 mesh.pp=2 mesh.cp=2 parallel.schedule=zbv parallel.tokens=zigzag parallel.zero=2
4 mesh.pp=2 mesh.dp=2 parallel.zero=1 mesh.nodes=3,1,0,2
4 mesh.pp=2 mesh.tp=2 mesh.nodes=1,0
4 mesh.cp=4 parallel.context=ring parallel.recompute=full
4 mesh.cp=4 parallel.context=double-ring mesh.cp_inner=2 parallel.tokens=striped
4 mesh.cp=4 parallel.context=lightseq parallel.recompute=full,-attn.out,-attn.lse
4 mesh.cp=4 parallel.context=token-ring parallel.zero=3
4 mesh.cp=4 mesh.cp_heads=2 parallel.context=ring parallel.tokens=contiguous
4 mesh.cp=2 mesh.pp=2 parallel.context=ring parallel.schedule=seq1f1b parallel.slices=3
LAYOUTS

# Nodes that the launcher's ranks do not fill are refused by all ranks, once.
if run bad "$@" -n 4 "$sheaf" -- mesh.dp=4 mesh.nodes=0,2 >"$top/refused" ||
    [ "$(grep -c '"2" is none of the 2 nodes 0 to 1' "$top/refused")" != 1 ]; then
    cat "$top/refused" && echo "FAILED: mesh.nodes=0,2" && failed=1
fi
[ $number = 14 ] && exit $failed
