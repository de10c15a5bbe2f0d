#!/usr/bin/env bash
# kills.sh BINARY [N] -- kill -9 at N random instants (20): of the worker, of the parent, of a rank
# under MPI. After each, every checkpoint with a final name is complete. When the run ends, its
# weights are bit for bit those of a run that was never killed, each step is once in its metrics,
# and its samples are those of one pass. SEED (1) draws other instants; a failure prints it.
set -u
sheaf=$1
kills=${2:-20}
seed=${SEED:-1}
RANDOM=$seed
top=$(mktemp -d)
trap 'kill %% 2>/dev/null; rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ends=0 hits=0

fail() {
    echo "FAILED: $* (SEED=$seed)"
    exit 1
}
for i in $(seq 1 90); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
cat >"$top/run.yaml" <<YAML
model:
  name: llama-tiny
  num_hidden_layers: 1
data:
  train: $top/text
  seq_len: 48
batch:
  global: 5
  micro: 2
optim:
  lr: 3e-3
numerics:
  block: 1024
run:
  steps: 150
  save_every: 4
  threads: 1
  log_samples: true
YAML

losses() { sed 's/, "step_ms.*//' "$1/metrics.jsonl"; }
is_complete() { # folder: all checkpoints with a final name
    local found
    for found in "$1"/checkpoints/step-????????; do
        [ -d "$found" ] || continue
        "$sheaf" inspect "$found" --check >"$top/inspect" 2>&1 || fail "$found is damaged: $(cat "$top/inspect")"
    done
}
same_end() { # folder, folder
    local file last=checkpoints/step-00000150
    [ "$(ls "$1/$last")" = "$(ls "$2/$last")" ] || fail "$2: other files"
    for file in "$1/$last"/rank-*; do cmp "$file" "$2/$last/${file##*/}" || fail "$2: other weights"; done
    diff <(losses "$1") <(losses "$2") || fail "$2: other losses"
    diff "$1/samples.jsonl" "$2/samples.jsonl" || fail "$2: other samples"
}
start() { # layout, folder: in the background, as process $pid
    case $1 in
    one) "$sheaf" train "$top/run.yaml" run.dir="$2" ;;
    zero) "$sheaf" train "$top/run.yaml" run.dir="$2" run.ranks=3 parallel.zero=3 ;;
    mpi) mpirun --oversubscribe -n 2 "$sheaf" train "$top/run.yaml" run.dir="$2" mesh.tp=2 ;;
    esac >"$top/out" 2>"$top/err" &
    pid=$!
}
victim() { # folder: prints a process of run $pid to kill
    local of=$((RANDOM % 3)) ranks
    case $layout in
    mpi)
        ranks=$(pgrep -P "$(pgrep -P $pid | head -n 1)" 2>/dev/null) # shell, mpirun, ranks
        if [ $of = 0 ] && [ -n "$ranks" ]; then echo "$ranks" | shuf -n 1; else cat "$1/lock" 2>/dev/null; fi
        ;;
    *) if [ $of = 0 ]; then pgrep -P $pid | head -n 1; else cat "$1/lock" 2>/dev/null; fi ;;
    esac
}

layouts="one zero"
command -v mpirun >/dev/null && [ -e "$(dirname "$sheaf")/sheaf-mpi.so" ] && layouts="$layouts mpi"
declare -A took # ms of a run that is not killed
for layout in $layouts; do
    begin=$(date +%s%N)
    start "$layout" "$top/$layout"
    wait $pid || fail "$layout does not run: $(cat "$top/err")"
    took[$layout]=$((($(date +%s%N) - begin) / 1000000))
done
for i in $(seq "$kills"); do
    layout=$(echo $layouts | tr ' ' '\n' | sed -n "$((i % $(echo $layouts | wc -w) + 1))p")
    dir=$top/killed-$layout
    [ -e "$dir/lock" ] && : >"$dir/lock" # removes the pid of an earlier run
    start "$layout" "$dir"
    late=$((RANDOM % (took[$layout] / 2 + 1)))
    sleep "$((late / 1000)).$(printf %03d $((late % 1000)))"
    until target=$(victim "$dir") && [ -n "$target" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.005; done
    [ -n "$target" ] && kill -9 "$target" 2>/dev/null
    wait $pid || hits=$((hits + 1))
    is_complete "$dir"
    [ -d "$dir/checkpoints/step-00000150" ] || continue
    same_end "$top/$layout" "$dir" # the kill came too late
    ends=$((ends + 1))
    rm -rf "$dir"
done
for layout in $layouts; do
    dir=$top/killed-$layout
    start "$layout" "$dir"
    wait $pid || fail "$layout does not resume: $(cat "$top/err")"
    same_end "$top/$layout" "$dir"
    ends=$((ends + 1))
done
[ $hits -ge $((kills / 2)) ] || fail "only $hits of $kills kills came in time: runs are too short"
echo "$kills kills, $hits in time; $ends runs came to the same end; seed $seed"
