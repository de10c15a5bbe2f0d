/* The memory of a rank on device cuda is what was planned without a GPU, to the byte, and no call
 * in a step allocates. The host's part of the device runs on a shim of CUDA's runtime, which counts
 * (shim/cuda_shim.h); kernels do not run. */
#include "support/expect.h"

#include <stdio.h>
#include "cuda/shim/cuda_shim.h"
#include "device/cuda_workspace.h"
#include "device/registry.h"
#include "run/rank_parts.h"
#include "support/clips.h"
#include "support/jobs.h"

enum { LAYERS = 2, COUNTERS_BYTES = 4 * 64 * 4 }; /* of a context's queues */

static const Device *cuda;
static const int capabilities[] = {90, 80, 86};

static ModelConfig model_of(const char *name, int64_t heads, int64_t keys, int64_t head)
{
    ModelConfig c = *test_model(name);
    c.n_layers = LAYERS;
    c.n_heads = heads, c.n_kv_heads = keys, c.head_size = head;
    c.width = heads * head;
    c.ff_width = 3 * c.width;
    c.vocab = 211;
    c.max_positions = 400;
    if (c.experts.n) c.experts.width = 2 * c.width;
    if (c.experts.shared_width) c.experts.shared_width = c.width;
    return c;
}

/* ---- ranks ---- */

typedef struct {
    const char *name;
    ModelConfig config;
    DType dtype;
    bool causal, fp8;
    const char *offload;
} WorkspaceCase;

static JobSettings settings_of(const WorkspaceCase *s)
{
    JobSettings set = test_job_settings("llama", JOB_STEP);
    set.config = &s->config;
    set.dtype = s->dtype;
    set.batch = (BatchShape){2, s->config.frames ? s->config.frames * s->config.places : 192};
    set.causal = s->causal;
    set.compile.chunk_elements = 64 * s->config.vocab;
    set.compile.device_memory = true;
    set.compile.offload_names = s->offload;
    if (s->fp8) set.compile.fp8 = (Fp8Options){.names = "*", .compute = E4M3, .gradient = E5M2};
    set.optim.block = 4096;
    set.workspace = device_find("cuda")->workspace;
    return set;
}

/* Device memory that linking planned; an empty arena has one line. */
static int64_t planned(const LinkedProgram *lp)
{
    size_t bytes = 0;
    for (int a = 0; a < N_ARENAS; a++)
        if (a != ARENA_HOST) bytes += lp->bytes[a] ? lp->bytes[a] : ARENA_ALIGN;
    return (int64_t)bytes;
}

static void step(Rank *r, const JobSettings *set, int number)
{
    StepResult out;
    for (int m = 0; m < set->micros; m++) {
        TestBatch b = test_job_batch(set, m);
        b.rows = set->batch.sequences * set->batch.seq_len;
        rank_fill_batch(r, m, &b);
    }
    DO(rank_step(r, &(StepSettings){.step = number, .lr = 1e-3}, &out));
}

static void expect_counts(const char *name, const char *when, ShimCount got, ShimCount want)
{
    if (got.refused > 0) fail_msg("%s, %s: a GPU would refuse %s", name, when, got.why);
    if (got.allocations != want.allocations || got.host_allocations != want.host_allocations ||
        got.bytes != want.bytes)
        fail_msg("%s, %s: %lld bytes, %lld and %lld allocations; should be %lld, %lld and %lld",
                 name, when, (long long)got.bytes, (long long)got.allocations,
                 (long long)got.host_allocations, (long long)want.bytes,
                 (long long)want.allocations, (long long)want.host_allocations);
}

static void check_case(const WorkspaceCase *s)
{
    const JobSettings set = settings_of(s);
    const ShimCount before = shim_count();
    Arena arena;
    Job job;
    Rank rank;
    DO(arena_open(&arena, "workspace", ARENA_PLENTY));
    DO(job_compile(&set, &arena, &job));
    const RankSettings settings = {
        .program = &job.linked, .device = cuda, .optim = set.optim, .capture = true};
    DO(rank_open(&rank, &settings));
    DO(rank_init_weights(&rank, 3));
    const int64_t taken = shim_count().bytes - before.bytes;
    void *staging;
    DO(memory_staging(&rank, &staging));
    const int64_t host = shim_count().host_bytes - before.host_bytes;
    const size_t host_arena = job.linked.bytes[ARENA_HOST];
    if (host != (int64_t)(job.linked.pinned_bytes + (host_arena ? host_arena : ARENA_ALIGN)))
        fail_msg("%s: %lld bytes of the host are pinned, %zu were planned", s->name,
                 (long long)host, job.linked.pinned_bytes + host_arena);
    if (taken != planned(&job.linked) + COUNTERS_BYTES)
        fail_msg("%s: %lld bytes are allocated, %lld were planned", s->name, (long long)taken,
                 (long long)(planned(&job.linked) + COUNTERS_BYTES));
    const DeviceAutotune *tuner = cuda->runtime->autotune;
    tuner->measure(rank.context, true);
    if (rank_autotune(&rank) != OK) fail_msg("%s: %s; %s", s->name, err_text(), shim_count().why);
    tuner->measure(rank.context, false);
    if (shim_count().bytes - before.bytes != taken)
        fail_msg("%s: autotuning keeps memory", s->name);
    step(&rank, &set, 1);
    const ShimCount first = shim_count();
    for (int n = 2; n <= 4; n++) step(&rank, &set, n);
    expect_counts(s->name, "in steps", shim_count(), first);
    if (shim_count().graphs - before.graphs < 2 && !s->offload)
        fail_msg("%s: %lld graphs were launched", s->name,
                 (long long)(shim_count().graphs - before.graphs));
    rank_close(&rank);
    arena_close(&arena);
    if (shim_count().bytes != before.bytes) fail_msg("%s: memory is not freed", s->name);
}

static void ranks(void **state)
{
    (void)state;
    const WorkspaceCase all[] = {
        {"gpt2", model_of("gpt2", 3, 3, 64), .dtype = BF16, .causal = true},
        {"gpt2 in f32", model_of("gpt2", 2, 2, 48), .dtype = F32},
        {"llama", model_of("llama", 4, 2, 64), .dtype = BF16},
        {"causal llama", model_of("llama", 2, 1, 128), .dtype = BF16, .causal = true},
        {"llama in f32", model_of("llama-tied", 4, 2, 32), .dtype = F32, .offload = "mlp.*"},
        {"llama in fp8", model_of("llama", 4, 2, 64), .dtype = BF16, .fp8 = true},
        {"qwen3", model_of("qwen3", 4, 2, 64), .dtype = BF16},
        {"mixtral", model_of("mixtral", 4, 2, 64), .dtype = BF16},
        {"qwen2_moe in f32", model_of("qwen2_moe", 2, 2, 64), .dtype = F32},
        {"clips", clips_config(LAYERS, 2, 5, 24), .dtype = BF16},
        {"clips, 3 dims", clips_config(3, 3, 5, 24), .dtype = F32},
    };
    for (size_t k = 0; k < sizeof capabilities / sizeof *capabilities; k++) {
        shim_set_capability(capabilities[k]);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_case(&all[i]);
    }
}

/* A rank that joins another one without a set takes more; the owner gets its own back. */
static void lent_and_returned(void **state)
{
    (void)state;
    const WorkspaceCase small = {"small", model_of("llama", 2, 2, 64), .dtype = BF16,
                                 .causal = false};
    JobSettings set = settings_of(&small);
    Arena arena;
    Job job, valid;
    Rank owner, other;
    shim_set_capability(90);
    const ShimCount before = shim_count();
    DO(arena_open(&arena, "workspace", ARENA_PLENTY));
    DO(job_compile(&set, &arena, &job));
    set.kind = JOB_LOSS;
    set.batch.seq_len *= 2;
    set.batch.sequences *= 60;
    DO(job_compile(&set, &arena, &valid));
    RankSettings settings = {.program = &job.linked, .device = cuda, .optim = set.optim};
    DO(rank_open(&owner, &settings));
    const JobSettings first = settings_of(&small);
    settings.program = &valid.linked;
    settings.state_of = &owner;
    job.linked.bytes[ARENA_KERNELS] = 64; /* as if the owner's kernels took little */
    expect_error("less than kernels take",
                 cuda->runtime->scratch(owner.context, owner.base[ARENA_WORK], 64), OK, "");
    DO(rank_open(&other, &settings));
    step(&other, &set, 1);
    rank_close(&other);
    StepResult out;
    for (int m = 0; m < first.micros; m++) {
        const TestBatch b = test_job_batch(&first, m);
        rank_fill_batch(&owner, m, &b);
    }
    expect_error("a plan that is too small",
                 rank_step(&owner, &(StepSettings){.step = 1, .lr = 1e-3}, &out), ERR_CHECK,
                 "the program planned 64");
    rank_close(&owner);
    arena_close(&arena);
    assert_int_equal(shim_count().bytes, before.bytes);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks),
        cmocka_unit_test(lent_and_returned),
    };
    if (device_open("cuda", argc > 1 ? argv[1] : NULL, &cuda) != OK) {
        fprintf(stderr, "%s\n", err_text());
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
