#!/usr/bin/env bash
# ranks.sh BINARY -- `sheaf train` on many ranks as a user runs it: the same model under every
# layout, and the messages when ranks stop, crash or are killed. Works in a temporary folder.
# Layouts over MPI run if there is an mpirun.
. tests/support/e2e.sh

train() { # folder, key=value...
    local dir=$1
    shift
    "$sheaf" train "$top/run.yaml" run.dir="$top/$dir" "$@" >"$top/$dir.out" 2>"$top/$dir.err"
}
contains() { grep -qE -- "$2" "$top/$1" || { echo "  not in $1: $2" && cat "$top/$1" && false; }; }
losses() { sed 's/, "step_ms.*"sent_bytes": [0-9]*//' "$1/metrics.jsonl"; }
same() { diff <(losses "$top/$1") <(losses "$top/$2"); }
numbers() { sed -n "s/.*\"$2\": \([-0-9.e+]*\).*/\1/p" "$top/$1/metrics.jsonl"; }
close() { # a, b: every loss, norm and validation loss is equal within its printed digits
    local key
    for key in loss grad_norm tokens valid_loss; do
        paste <(numbers "$1" $key) <(numbers "$2" $key) |
            awk '{ d = $1 - $2; if (NF != 2 || d > 2e-8 * $1 || -d > 2e-8 * $1) bad = 1 } END { exit bad || NR == 0 }' || return 1
    done
}
sent() { [ "$(numbers "$1" sent_bytes | sort -u)" = "$2" ] || { numbers "$1" sent_bytes && false; }; }

for i in $(seq 1 400); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
head -c 1500 "$top/text" >"$top/held"
cat >"$top/run.yaml" <<YAML
model:
  name: llama-tiny
  num_hidden_layers: 1
data:
  train: $top/text
  valid: $top/held
  seq_len: 24
batch:
  global: 7
  micro: 2
optim:
  lr: 3e-3
run:
  steps: 3
  valid_every: 2
  timeout_s: 60
YAML

# The same model under every layout.
ok "one rank" status 0 train one precision.compute=f64
i=0
for layout in "run.ranks=2" "mesh.dp=5 parallel.zero=2" "run.ranks=3 parallel.zero=3" "mesh.dp_replicate=2 mesh.dp_shard=2 parallel.zero=1" \
    "mesh.tp=3" "mesh.tp=2 parallel.sequence=true" "run.ranks=6 mesh.tp=2 parallel.zero=3 parallel.sequence=true parallel.regather=false" "numerics.fold=3" \
    "mesh.cp=4 parallel.tokens=zigzag" "mesh.cp=3 mesh.pp=2 parallel.recompute=selective run.check_every=1" \
    "mesh.cp=2 mesh.tp=2 parallel.context=ulysses parallel.zero=3 parallel.sequence=true" \
    "mesh.cp=2 mesh.dp=2 parallel.tokens=striped parallel.zero=1 parallel.offload=mlp.*" \
    "mesh.cp=3 mesh.dp=2 parallel.weights=stream parallel.context=ring parallel.zero=3"; do
    i=$((i + 1))
    # shellcheck disable=SC2086
    ok "$layout" status 0 train "l$i" precision.compute=f64 $layout
    ok "$layout: the same losses" close one "l$i"
done
ok "64 ranks" status 0 train many run.ranks=64 run.valid_every=0 run.steps=1 batch.global=64 batch.micro=1

# Equal bits in f32: every level of ZeRO, and a fold instead of ranks.
for zero in 0 1 2 3; do ok "zero $zero" status 0 train "z$zero" mesh.dp=3 parallel.zero=$zero parallel.reduce=each; done
for zero in 1 2 3; do ok "zero $zero: the same bits" same z0 "z$zero"; done
ok "dp=3" status 0 train d mesh.dp=3
ok "fold=3" status 0 train f numerics.fold=3
ok "a fold of 3 has the bits of 3 ranks" same d f

# 78,976 parameters and 64 of the last norm, each sent 2 (p - 1) times per step, 4 bytes; validation
# does not count.
ok "sent bytes are counted" sent d $((79040 * 2 * 2 * 4))
ok "one rank sends nothing" sent one 0

# Ranks that do not fit the mesh.
ok "run.ranks and the mesh disagree" status 2 train n run.ranks=4 mesh.dp=3 mesh.tp=2
ok "with the reason" contains n.err "run.ranks=4, but the mesh .* = 3 x 2 x 1 x 1 has 6 ranks; set run.ranks=6"
ok "an error on all ranks names no rank" status 2 train n run.ranks=3 numerics.block=16 parallel.recompute=none parallel.offload=no.such
ok "and is reported once" contains n.err "^sheaf: command line: parallel.offload=no.such"
ok "no run folder is created" test ! -e "$top/n"
wrong() { "$sheaf" verify "$top/run.yaml" run.device=cpu run.ranks=2 parallel.zero_weights="mpl.*=3" --ranks 2 2>"$top/wrong.err"; }
ok "verify refuses a pattern without a weight" status 2 wrong
ok "and says where it was written" contains wrong.err "^sheaf: command line: parallel.zero_weights=mpl"

# Ctrl-C, sent to the process that the user sees.
running() { for _ in $(seq 200); do [ -s "$top/$1/metrics.jsonl" ] && break || sleep 0.05; done; }
train stop run.ranks=3 run.steps=100000 run.valid_every=0 &
pid=$!
running stop
kill -INT "$(ps -o ppid= -p "$(cat "$top/stop/lock")")"
wait $pid
ok "Ctrl-C: exit status 130" test $? = 130
ok "Ctrl-C: the end is reported" contains stop.out "stopped after"

# The worker is killed; the parent reports it.
train segv run.ranks=3 run.steps=100000 run.valid_every=0 &
pid=$!
running segv
kill -SEGV "$(cat "$top/segv/lock")"
wait $pid
ok "SIGSEGV: exit status 139" test $? = 139
ok "SIGSEGV: reported" contains segv.err "the worker died of SIGSEGV, which process [0-9]* sent"
ok "with the position of each rank" contains segv.err "^  rank 2: (step [0-9]*, |between steps)"
ok "and its latest transfers" contains segv.err "^    (all-reduce|all-gather|reduce-scatter) #[0-9]* over \{0 1 2\}"
ok "the recorder file is readable" status 0 "$sheaf" inspect "$top/segv/recorder.json" >"$top/inspect.out"
ok "and gives the same report" contains inspect.out "rank 1: (step [0-9]*, |between steps)"

train kill run.ranks=2 run.steps=100000 run.valid_every=0 &
pid=$!
running kill
kill -KILL "$(cat "$top/kill/lock")"
wait $pid
ok "SIGKILL: exit status 137" test $? = 137
ok "SIGKILL: reported" contains kill.err "out of memory: see .dmesg."

# The parent is killed; the worker dies with it.
train orphan run.ranks=2 run.steps=100000 run.valid_every=0 &
running orphan
worker=$(cat "$top/orphan/lock")
kill -KILL "$(ps -o ppid= -p "$worker")"
wait %% 2>/dev/null
gone() { for _ in $(seq 100); do [ ! -e "/proc/$1" ] && return 0 || sleep 0.05; done && false; }
ok "a worker dies with its parent" gone "$worker"

# Traces.
ok "a trace" status 0 train trace run.ranks=2 --trace "$top/trace.json"
command -v python3 >/dev/null && ok "is JSON with both ranks" python3 -c '
import json, sys
events = json.load(open(sys.argv[1]))
assert {e["pid"] for e in events} == {0, 1}
assert any(e["ph"] == "X" and e["args"]["unit"] == "layer.0" for e in events if "args" in e)
assert sum(e["ph"] == "b" for e in events) == sum(e["ph"] == "e" for e in events) > 0' "$top/trace.json"
ok "a trace that cannot be written" status 1 train notrace run.ranks=2 --trace /no/such/folder/trace.json

# Processes.
if command -v mpirun >/dev/null && [ -e "$(dirname "$sheaf")/sheaf-mpi.so" ]; then
    mpi() { # folder, processes, key=value...
        local dir=$1 n=$2
        shift 2
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n "$n" "$sheaf" train "$top/run.yaml" \
            run.dir="$top/$dir" "$@" >"$top/$dir.out" 2>"$top/$dir.err"
    }
    ok "mpirun" status 0 mpi m 3
    ok "mpirun: the same bits as threads" same d m
    ok "mpirun: as many bytes" sent m $((79040 * 2 * 2 * 4))
    ok "streamed weights" status 0 train w mesh.cp=2 parallel.weights=stream
    ok "mpirun: streamed weights" status 0 mpi mw 2 mesh.cp=2 parallel.weights=stream
    ok "mpirun: streamed weights: the same bits as threads" same w mw
    ok "mpirun: streamed weights: as many bytes" sent mw "$(numbers w sent_bytes | sort -u)"
    ok "mpirun, tp and zero 3" status 0 mpi m4 4 mesh.tp=2 parallel.zero=3
    ok "threads, tp and zero 3" status 0 train t4 run.ranks=4 mesh.tp=2 parallel.zero=3
    ok "mpirun, HSDP" status 0 mpi m5 4 mesh.dp_replicate=2 mesh.dp_shard=2 parallel.zero=2 precision.compute=f64
    ok "mpirun, HSDP: the same losses" close one m5
    ok "mpirun, offload and recompute" status 0 mpi m6 2 "parallel.offload=mlp.*" parallel.recompute=attn.in precision.compute=f64
    ok "mpirun, offload and recompute: the same losses" close one m6
    ok "mpirun, cp" status 0 mpi m7 4 mesh.cp=4 parallel.tokens=zigzag parallel.zero=1
    ok "threads, cp" status 0 train t7 run.ranks=4 mesh.cp=4 parallel.tokens=zigzag parallel.zero=1
    ok "mpirun, cp: the same bits" same t7 m7
    ok "mpirun, Ulysses" status 0 mpi m8 4 mesh.cp=2 mesh.tp=2 parallel.context=ulysses precision.compute=f64
    ok "mpirun, Ulysses: the same losses" close one m8
    launched() { OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 "$sheaf" "$@" 2>"$top/use.err"; }
    "$sheaf" generate "$top/m4" -p "line " -n 8 --seed 3 >"$top/one.text" 2>/dev/null
    launched generate "$top/m4" -p "line " -n 8 --seed 3 mesh.tp=2 >"$top/two.text"
    ok "mpirun, generate: the same text" cmp "$top/one.text" "$top/two.text"
    launched generate "$top/m4" -p "line " -n 8 --seed 3 mesh.cp=2 >"$top/cp.text"
    ok "mpirun, generate on cp: the same text" cmp "$top/one.text" "$top/cp.text"
    ok "mpirun, eval" launched eval "$top/m4" --text "$top/held" mesh.tp=2 >"$top/eval.out"
    ok "the same bits" same t4 m4
    launch() { # launch N ARGUMENTS: what it prints is in $top/launched
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n "$1" "$sheaf" "${@:2}" >"$top/launched" 2>"$top/launched.err"
    }
    ok "mpirun, verify" launch 4 verify "$top/run.yaml" run.device=cpu --layouts "dp=2 tp=2 zero=3; pp=2 cp=2 context=ring; dp=4 zero=2"
    ok "mpirun, verify: f64, the same bits, bytes as predicted" contains launched "3 layouts, 9 comparisons: all compute the same model"
    ok "mpirun, verify: the covering set" launch 2 verify "$top/run.yaml" run.device=cpu run.ranks=4 --ranks 4 --on-device
    ok "mpirun, verify: others are counted" contains launched "[0-9]+ layouts with other numbers of ranks than 2 were left out"
    ok "mpirun, verify: so is the layout of the run" contains launched "the layout of the run was not compared: it has 4 ranks"
    ok "mpirun, verify: a layout of other ranks is refused" status 2 launch 2 verify "$top/run.yaml" run.device=cpu --layouts "tp=2; dp=4"
    ok "mpirun, verify: with the way out" contains launched.err "\"dp=4\" has 4 ranks, and mpirun started 2 processes; start 4"
    ok "mpirun, reshape is refused" status 2 launch 2 reshape "$top/m4" "$top/reshaped" run.ranks=2
    ok "mpirun, reshape: once, with the way out" test "$(grep -c "reshape: mpirun started 2 processes, .* start it without mpirun" "$top/launched.err")" = 1
    ok "mpirun, reshape: nothing is written" test ! -e "$top/reshaped"
    ok "run.ranks under mpirun is refused" status 2 mpi both 2 run.ranks=2
    ok "with the reason" contains both.err "mpirun started 2 ranks already.*remove run.ranks"
    ok "reported once" test "$(grep -c "remove run.ranks" "$top/both.err")" = 1
    ok "tp does not divide the ranks" status 2 mpi odd 3 mesh.tp=2
    ok "the way out is mpirun's" contains odd.err "mpirun started 3 ranks, and tp x cp x pp = 2 .* use -n 2 or -n 4"
    mpi killed 2 run.steps=100000 run.valid_every=0 &
    pid=$!
    running killed
    worker=$(cat "$top/killed/lock")
    kill -KILL "$worker"
    wait $pid
    ok "SIGKILL under mpirun: names rank, host, pid and step" contains killed.err \
        "rank 0 of 2 \($(hostname), pid $worker\) was killed by SIGKILL (in step [0-9]+|between steps)"
fi

# A thread that hangs inside a call cannot find its own timeout: here rank 0 opens a pipe that
# nobody reads. The parent process names it and ends the run.
mkdir -p "$top/hang"
mkfifo "$top/hang/metrics.jsonl"
ok "a rank that hangs in a call ends the run" status 1 timeout 40 "$sheaf" train "$top/run.yaml" run.dir="$top/hang" \
    run.ranks=2 run.valid_every=0 run.timeout_s=2 >"$top/hang.out" 2>"$top/hang.err"
ok "and is named" contains hang.err "^sheaf: rank 1: waited 2.* 10 s later rank 0 of 2 \(.*, pid [0-9]+\) has not moved for .*; the run ends"

counted
