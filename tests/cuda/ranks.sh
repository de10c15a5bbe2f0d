#!/usr/bin/env bash
# ranks.sh -- tests ranks and their graphs on a machine with a GPU that cannot build the program.
#
#     tests/cuda/ranks.sh bundle [FOLDER]    on the build machine: copies program, tests, libraries
#                                            to FOLDER (build/gpu-bundle)
#     tests/cuda/ranks.sh run [FOLDER]       on the machine with the GPU: runs the tests of FOLDER
#     tests/cuda/ranks.sh nccl [FOLDER] [PART ...]
#                                            the same for NCCL, with 1 to 8 ranks that share the
#                                            GPU, as threads and as processes
#
# Parts of nccl: transfers, layouts, cover, graphs, faults, supervised, term, stuck, memory, trace.
# Ranks share a GPU with NCCL 2.30 or newer. Processes need mpirun.
# The CUDA libraries and NCCL are those of the machine with the GPU. Exit status 77: no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${2:-build/gpu-bundle} build=${SHEAF_BUILD:-build/release}

bundle() {
    rm -rf "$folder" && mkdir -p "$folder/lib"
    cp "$build"/{sheaf,sheaf-cuda.so,sheaf-nccl.so,tests/cuda/test_cuda_{ranks,capture}} "$folder"
    cp "$build"/tests/nccl/{test_nccl_{comm,ranks,faults},libstuck.so} "$folder"
    cp "$build"/{sheaf-mpi.so,tests/nccl/mpi_test_nccl_{comm,faults}} "$folder" || echo "no MPI: threads only"
    strip --strip-debug "$folder"/{sheaf,*.so,*test_*}
    ldd "$folder"/{sheaf,test_cuda_ranks} | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|pthread|dl)\.so/ {print $3}' |
        sort -u | xargs -I{} cp -L {} "$folder/lib"
    du -sh "$folder"
}

# Libraries of the bundle serve only those that the machine does not have.
libraries() {
    local root library
    root=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    for library in "$folder"/lib/*; do
        ! ldconfig -p | grep -q "$(basename "$library") " || rm "$library"
    done
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}:$PWD/$folder/lib:$root/lib64:$root/lib
    "$folder/sheaf" --version
}

failures=0
failed() { echo "FAILED: $*" && failures=$((failures + 1)); }

# The arguments of a training run; keys given here come before the defaults.
arguments() { # arguments NAME KEY=VALUE...
    local default
    words=(train examples/llama-tiny.yaml data.train=README.md data.valid= run.valid_every=0 run.device=cuda run.dir="$scratch/$1" "${@:2}")
    for default in run.steps=8 batch.micro=1 run.timeout_s=20; do
        [[ " ${words[*]}" == *" ${default%=*}="* ]] || words+=("$default")
    done
}

# Training steps of the program; what it prints is in NAME.out, losses and norms in NAME.losses.
train() { # train NAME LAUNCHER... -- KEY=VALUE...
    local name=$1 by=() words
    shift
    while [[ $1 != -- ]]; do by+=("$1") && shift; done
    arguments "$name" "${@:2}"
    timeout -k 5 60 "${by[@]}" "$folder/sheaf" "${words[@]}" >"$scratch/$name.out" 2>"$scratch/$name.err" ||
        { tail -n 5 "$scratch/$name".{err,out}; return 1; }
    grep -o '"loss": [0-9.e-]*\|"grad_norm": [0-9.e-]*' "$scratch/$name/metrics.jsonl" >"$scratch/$name.losses"
}
processes() { # processes N NAME KEY=VALUE...
    train "$2" mpirun -n "$1" -- run.comm=nccl "${@:3}"
}
# Losses and norms of two runs: the same number, and within 1e-5 of each other.
near() {
    [[ $(wc -l <"$scratch/$1.losses") == $(wc -l <"$scratch/$2.losses") ]] &&
        paste "$scratch/$1.losses" "$scratch/$2.losses" |
        awk '{ d = $2 - $4; if (d < 0) d = -d; if (d > 1e-5 * $4) bad = 1 } END { exit bad || NR == 0 }'
}
says() { grep -qE -- "$2" "$scratch/$1.err" "$scratch/$1.out" || { failed "not in $1: $2" && cat "$scratch/$1.err"; }; }
median_ms() { sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$scratch/$1/metrics.jsonl" | tail -n +4 | sort -n | awk '{x[NR] = $1} END {print x[int((NR + 1) / 2)]}'; }

# Every kind of transfer with 1 to 8 ranks; errors of a rank while the others wait on the GPU.
part_transfers() {
    local n test
    for test in comm ranks faults; do
        timeout -k 5 300 "$folder/test_nccl_$test" "$folder/sheaf-cuda.so" || [[ $? == 77 ]] || failed "test_nccl_$test"
    done
    for n in 2 3 4 8; do
        SHEAF_BINARY_DIR=$folder mpirun -n $n "$folder/mpi_test_nccl_comm" "$folder/sheaf-cuda.so" >"$scratch/comm.$n" 2>&1 ||
            { failed "comm with $n processes" && tail "$scratch/comm.$n"; }
    done
    SHEAF_BINARY_DIR=$folder mpirun -n 3 "$folder/mpi_test_nccl_faults" "$folder/sheaf-cuda.so" >"$scratch/faults" 2>&1 ||
        { failed "faults of 3 processes" && tail "$scratch/faults"; }
}

# N, then the keys of a layout, run as processes; the first ones as threads too.
layouts=("2 " "2 parallel.zero=1" "4 parallel.zero=2" "2 parallel.zero=3" "3 parallel.zero=3 batch.global=6 batch.micro=2"
    "4 mesh.dp_replicate=2 mesh.dp_shard=2 parallel.zero=3" "2 mesh.tp=2" "2 mesh.tp=2 parallel.sequence=true"
    "4 mesh.tp=2 parallel.zero=3 parallel.sequence=true" "2 mesh.pp=2" "4 mesh.pp=4 parallel.schedule=zbh1 model.num_hidden_layers=4"
    "4 mesh.pp=2 parallel.schedule=interleaved model.num_hidden_layers=4" "2 mesh.cp=2 parallel.context=ring parallel.tokens=zigzag"
    "4 mesh.cp=2 mesh.tp=2 parallel.context=ulysses parallel.sequence=true" "3 mesh.cp=3 parallel.context=gather"
    "8 mesh.tp=2 mesh.pp=2 parallel.zero=1")

part_layouts() {
    local row n name
    for row in "${layouts[@]}"; do
        read -r n keys <<<"$row "
        name=$(tr -c 'a-z0-9\n' - <<<"$n $keys")
        # The reference has the same model and batches.
        # shellcheck disable=SC2086
        train "one$name" -- $(tr ' ' '\n' <<<"$keys" | grep -E '^(model|batch)' | tr '\n' ' ') || failed "one rank of $row"
        # shellcheck disable=SC2086
        processes "$n" "p$name" $keys && near "one$name" "p$name" && echo "processes: $row: $(sed -n 's/^steps are //p' "$scratch/p$name.out")" ||
            failed "processes: $row"
        # shellcheck disable=SC2086
        train "t$name" -- run.comm=nccl run.ranks="$n" $keys && near "one$name" "t$name" && echo "threads: $row" || failed "threads: $row"
    done
}

# The layouts that cover every pair of options, of up to 4 ranks, as verify defines equality.
part_cover() {
    "$folder/sheaf" verify examples/llama-tiny.yaml data.train=README.md run.device=cuda run.comm=nccl --ranks 4 || failed "covering set"
    "$folder/sheaf" verify examples/llama-tiny.yaml model.name=qwen3-moe-tiny data.train=README.md run.device=cuda run.comm=nccl \
        --layouts "dp=2 ep=2; dp=4 ep=2 zero=3; dp=2 tp=2 ep=4; dp=2 tp=2 ep=2 etp=2" || failed "experts"
    "$folder/sheaf" verify model.name=stdit-tiny run.device=cuda run.comm=nccl --layouts "cp=2 context=dsp; cp=2 context=ulysses; \
        cp=2 context=ring; cp=4 context=dsp; cp=2 weights=stream; cp=2 dp=2 zero=3 context=dsp; tp=2 sequence" || failed "clips"
}

# Steps as graphs: the bits of steps that are walked.
part_graphs() {
    local row n name
    for row in "2 " "2 parallel.zero=1" "2 parallel.zero=2" "2 parallel.zero=3" "2 mesh.tp=2" "2 mesh.tp=2 parallel.sequence=true" \
        "4 mesh.tp=2 parallel.zero=3"; do
        read -r n keys <<<"$row"
        name=$(tr -c 'a-z0-9\n' - <<<"$n $keys")
        # shellcheck disable=SC2086
        processes "$n" "graph$name" numerics.deterministic=true run.steps=20 $keys &&
            processes "$n" "walk$name" numerics.deterministic=true run.steps=20 $keys run.capture=off &&
            cmp "$scratch/graph$name.losses" "$scratch/walk$name.losses" || failed "graphs: $row"
        says "graph$name" "captured as graphs with their transfers"
        echo "ok: $row: $(median_ms "graph$name") ms as graphs, $(median_ms "walk$name") ms op by op"
    done
}

# A long run in the background, and the pids of its workers: children of `sheaf`.
begin() { # begin NAME LAUNCHER... -- KEY=VALUE...
    train "$@" run.steps=1000000 run.timeout_s=5 >/dev/null 2>&1 &
    run_pid=$!
    for _ in $(seq 300); do [[ -s $scratch/$1/metrics.jsonl && $(wc -l <"$scratch/$1/metrics.jsonl") -gt 20 ]] && return 0 || sleep 0.1; done
    failed "$1 does not begin"
}
workers() { pgrep -f "$folder/sheaf train .*run.dir=$scratch/$1 " | while read -r p; do [[ $(cat "/proc/$(ps -o ppid= -p "$p" | tr -d ' ')/comm") == sheaf ]] && echo "$p"; done; }
ends() { # ends NAME: within 20 s, with a status that is not 0
    local since=$SECONDS status=0
    wait "$run_pid" || status=$?
    echo "$1: ended after $((SECONDS - since)) s, status $status: $(head -c 300 "$scratch/$1.err" | head -2)"
    [[ $status != 0 && $status != 124 && $((SECONDS - since)) -le 20 ]] || failed "$1 does not end"
}

part_faults() {
    local capture worker
    for capture in ${CAPTURES-auto off}; do
        begin "kill.$capture" mpirun -n 2 -- run.comm=nccl parallel.zero=3 run.capture=$capture
        kill -9 "$(workers "kill.$capture" | tail -1)"
        ends "kill.$capture"
        says "kill.$capture" "rank [01] of 2 .* was killed by SIGKILL"
        begin "stop.$capture" mpirun -n 2 -- run.comm=nccl parallel.zero=3 run.capture=$capture
        worker=$(workers "stop.$capture" | tail -1)
        kill -STOP "$worker"
        ends "stop.$capture"
        kill -9 "$worker" 2>/dev/null || true
        says "stop.$capture" "waited 5.* s .*rank [01]"
    done
}

# A run that is started again after each failure goes on behind its latest checkpoint.
part_supervised() {
    begin supervised -- run.comm=nccl mesh.dp=2 run.save_every=20 --supervise 2
    kill -9 "$(workers supervised | tail -1)"
    for _ in $(seq 150); do grep -q "restart 1 of 2" "$scratch/supervised.err" && break || sleep 0.1; done
    sleep 8
    kill -TERM "$run_pid" $(pgrep -P "$run_pid") 2>/dev/null
    wait "$run_pid" || true
    says supervised "restart 1 of 2"
    [[ $(tail -1 "$scratch/supervised/metrics.jsonl" | sed 's/.*"step": \([0-9]*\).*/\1/') -gt 40 ]] || failed "the supervised run does not go on"
}

# Ranks that stay in a call of CUDA do not end as they are told: their parent ends them.
part_term() {
    local words status=0 since
    arguments term run.comm=nccl run.ranks=2 run.capture=off run.steps=1000000 run.timeout_s=6
    SHEAF_STUCK_AT=3000 LD_PRELOAD="$folder/libstuck.so" "$folder/sheaf" "${words[@]}" >"$scratch/term.out" 2>"$scratch/term.err" &
    run_pid=$!
    for _ in $(seq 300); do [[ -s $scratch/term/metrics.jsonl && $(find "$scratch/term/metrics.jsonl" -newermt '-1 seconds' | wc -l) == 0 ]] && break || sleep 0.1; done
    since=$SECONDS
    kill -TERM "$run_pid"
    wait "$run_pid" || status=$?
    echo "SIGTERM: ended after $((SECONDS - since)) s, status $status: $(tail -n 3 "$scratch/term.err" | head -c 400)"
    [[ $status != 0 && $((SECONDS - since)) -le 8 ]] || failed "a stuck run does not end at SIGTERM"
    says term "rank [01] of 2 .* has not moved for"
}

# A rank that stays in a call of CUDA is named by its parent.
part_stuck() {
    local status=0 words
    arguments stuck run.comm=nccl run.capture=off run.steps=1000000 run.timeout_s=5
    timeout -k 5 60 mpirun -n 1 "$folder/sheaf" "${words[@]}" : \
        -n 1 env SHEAF_STUCK_AT=2000 LD_PRELOAD="$folder/libstuck.so" "$folder/sheaf" "${words[@]}" \
        >"$scratch/stuck.out" 2>"$scratch/stuck.err" || status=$?
    head -c 1500 "$scratch/stuck.err"
    [[ $status != 0 && $status != 124 ]] || failed "a stuck rank: status $status"
    says stuck "rank 1 of 2 .* has not moved for .*step [0-9]+"
}

# Device memory after 20 and after 200 steps.
part_memory() {
    local used=() at
    begin memory mpirun -n 2 -- run.comm=nccl parallel.zero=3
    for at in 20 220; do
        for _ in $(seq 600); do [[ $(wc -l <"$scratch/memory/metrics.jsonl") -ge $at ]] && break || sleep 0.1; done
        used+=("$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits)")
    done
    kill -TERM "$run_pid" $(pgrep -P "$run_pid") 2>/dev/null
    wait "$run_pid" || true
    echo "MiB in use after 20 and 220 steps: ${used[*]}"
    [[ ${used[0]} -ge ${used[1]} ]] || failed "memory grows: ${used[*]}"
}

# Transfers beside products on the GPU: the time of transfers during which their rank multiplied.
overlap() { # overlap TRACE
    python3 - "$1" <<'PY'
import json, sys
events = json.load(open(sys.argv[1]))
hidden = total = 0
for rank in {e["pid"] for e in events}:
    heavy = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["pid"] == rank and e["ph"] == "X"
             and ("linear" in e["name"] or "gemm" in e["name"] or "attention" in e["name"])]
    begun = {e["id"]: e["ts"] for e in events if e["pid"] == rank and e["ph"] == "b" and not e["args"]["scalar"]}
    for e in events:
        if e["pid"] != rank or e["ph"] != "e" or e["id"] not in begun: continue
        lo, hi = begun[e["id"]], e["ts"]
        total += hi - lo
        hidden += sum(max(0, min(hi, y) - max(lo, x)) for x, y in heavy)
print(f"transfers took {total / 1e3:.1f} ms, {100 * hidden / max(total, 1e-9):.0f}% of that beside products")
sys.exit(hidden <= 0)
PY
}

part_trace() {
    local keys
    for keys in "parallel.zero=3" "mesh.tp=2 parallel.sequence=true"; do
        rm -rf "$scratch"/trace*
        # shellcheck disable=SC2086
        train trace -- run.comm=nccl run.ranks=2 $keys model.hidden_size=1024 model.intermediate_size=2816 model.num_hidden_layers=4 \
            data.seq_len=512 batch.global=16 batch.micro=4 precision.compute=bf16 run.steps=6 --trace "$scratch/trace.json" &&
            overlap "$scratch/trace.json" || failed "overlap: $keys"
    done
}

nccl() {
    nvidia-smi -L >/dev/null 2>&1 || { echo "SKIPPED: NCCL: there is no GPU here"; return 77; }
    libraries
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    export NCCL_MULTI_RANK_GPU_ENABLE=1 SHEAF_NCCL_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
        OMPI_MCA_hwloc_base_binding_policy=none
    shift $(($# < 2 ? $# : 2))
    if ! "$folder/sheaf" --version | grep -qE "NCCL 2\.([3-9][0-9]|[0-9]{3})"; then
        echo "SKIPPED: several ranks on one GPU need NCCL 2.30 or newer; one rank runs"
        set -- transfers
    fi
    [[ $# -gt 0 ]] || set -- transfers layouts cover graphs faults supervised term stuck memory trace
    for part in "$@"; do
        echo "== $part" && "part_$part"
    done
    [[ $failures == 0 ]] && echo "nccl: all passed"
}

run() {
    libraries
    for test in test_cuda_ranks test_cuda_capture; do "$folder/$test" "$folder/sheaf-cuda.so"; done
}

case ${1-} in
bundle | run) "$1" ;;
nccl) nccl "$@" || exit $? ;;
*) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
