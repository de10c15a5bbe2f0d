/* step.c -- a whole training step on device cpu: the time of each kernel, next to its roofline
 * bound.
 *
 *     build/release/bench/step                       gpt2-124m, 1 sequence of 256 tokens, f32
 *     build/release/bench/step sequences=4 seq_len=1024 steps=3
 *     build/release/bench/step dtype=bf16 threads=1 model=llama-tiny
 *     build/release/bench/step library=libopenblas.so.0    f32 GEMMs by OpenBLAS
 *     build/release/bench/step recompute=mlp.act,mlp.in    as parallel.recompute
 *     build/release/bench/step micros=4 prepack=1          4 micro-batches; parallel.prepack
 *     build/release/bench/step by=shape                    a line for each GEMM shape
 *     build/release/bench/step clock=cpu threads=1         CPU time, on a machine that is not idle
 *     build/release/bench/step model=bench/small_moe.json  experts, with a balance loss
 *
 * The lower bound of a kernel's time is its flops at the GEMM speed from L1, or its bytes at memory
 * bandwidth, whichever takes longer; L3 bandwidth if the operands fit into half of L3. All speeds
 * are measured in the same run.
 *
 * Flops are counted as 6 N + 12 L d T per token (N parameters that a token uses, L layers of width
 * d, T tokens per sequence): attention counts in full, although a causal one does half of it. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "device/cpu/cpu.h"
#include "support/account.h"
#include "support/adamw.h"
#include "support/blas_library.h"
#include "support/clock.h"
#include "support/inputs.h"
#include "support/timed.h"
#include "job/job.h"

enum { MAX_STEPS = 1000 };

typedef struct {
    const char *model, *library; /* library NULL: built-in GEMMs */
    const char *recompute;       /* names of values to recompute in backward; NULL: none */
    int64_t sequences, seq_len, chunk;
    DType dtype;
    int threads, steps, micros;
    bool prepack;
    TimedBy by;
    double (*seconds)(void); /* the clock */
} Options;

/* A token uses some of the experts: of a stack of them, their share. */
static double used_parameters(const Job *job)
{
    const ExpertConfig *x = &job->settings.config->experts;
    double used = 0;
    for (int p = 0; p < job->model.n_params; p++) {
        const Param *param = &job->model.param[p];
        const double share = param->info.ndim == 3 ? (double)x->chosen / (double)x->n : 1;
        used += share * (double)param->count;
    }
    return used;
}

static double flops_per_token(const Job *job, const Options *o)
{
    const double params = used_parameters(job);
    const ModelConfig *c = job->settings.config;
    return 6 * params + 12.0 * (double)c->n_layers * (double)c->width * (double)o->seq_len;
}

/* Tokens of a step. */
static double tokens_of(const Options *o)
{
    return (double)(o->micros * o->sequences * o->seq_len);
}

static int smaller(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Peak resident memory of the process so far. */
static double memory_GB(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return 1024e-9 * (double)use.ru_maxrss;
}

static void print_step(double *step_s, double flops, double peak_GB, const Options *o)
{
    double total = 0;
    for (int i = 0; i < o->steps; i++) total += step_s[i];
    qsort(step_s, (size_t)o->steps, sizeof *step_s, smaller);
    const double median = step_s[o->steps / 2], tokens = tokens_of(o);
    account_print(total, o->steps);
    printf("step: %.1f ms (best %.1f); %.0f tokens/s, %.1f GF/s by 6N + 12LdT; %.2f GB\n",
           1e3 * median, 1e3 * step_s[0], tokens / median, 1e-9 * flops / median, peak_GB);
}

static Err measure(Rank *rank, const Device *device, const Job *job, const Options *o)
{
    StepResult result;
    double step_s[MAX_STEPS], busy_s, wall_s;
    Peaks peaks;
    TRY(rank_step(rank, &(StepSettings){.step = 1, .lr = 1e-4}, &result)); /* touches all memory */
    const double peak_GB = memory_GB(); /* before the bandwidth test, which allocates */
    TRY(peaks_measure(rank->settings.team, &peaks));
    printf("first loss %.4f\n", result.loss);
    printf("measured now: GEMM %.0f GF/s in f32, %.0f in bf16; memory %.1f GB/s, cache %.1f\n",
           1e-9 * peaks.f32_flops, 1e-9 * peaks.bf16_flops, 1e-9 * peaks.memory_Bps,
           1e-9 * peaks.cache_Bps);
    timed_open(device, &peaks, o->by, o->seconds);
    busy_s = process_s();
    wall_s = now_s();
    for (int i = 0; i < o->steps; i++) {
        const double start = o->seconds();
        TRY(rank_step(rank, &(StepSettings){.step = i + 2, .lr = 1e-4}, &result));
        step_s[i] = o->seconds() - start;
    }
    busy_s = process_s() - busy_s;
    wall_s = now_s() - wall_s;
    print_step(step_s, flops_per_token(job, o) * tokens_of(o), peak_GB, o);
    /* Fewer cores than threads: other processes ran on this machine, and the figures are
     * unreliable. */
    printf("CPU time %.3f s per step; cores busy: %.2f\n", busy_s / o->steps, busy_s / wall_s);
    return OK;
}

static Err run(const Options *o)
{
    Arena arena;
    ModelConfig config;
    Job job;
    Rank rank;
    Team *team;
    Cores cores;
    const Device *device;
    TRY(arena_open(&arena, "bench", ARENA_PLENTY));
    TRY(model_config_load(o->model, NULL, 0, &arena, &config));
    if (config.experts.n > 0) config.experts.aux_loss = 0.01;
    const JobSettings set = {
        .kind = JOB_STEP,
        .config = &config,
        .dtype = o->dtype,
        .batch = {o->sequences, o->seq_len},
        .micros = o->micros,
        .schedule = "1f1b",
        .compile = {.chunk_elements = o->chunk,
                    .recompute = o->recompute ? RECOMPUTE_NAMED : RECOMPUTE_NONE,
                    .recompute_names = o->recompute,
                    .prepack = o->prepack ? timed_device.prepack : NULL},
        .optim = bench_adamw};
    const BlasLibrary library = blas_library(o->library);
    TRY(device_cpu_open(o->library ? &library : NULL, &device));
    timed_open(device, &(Peaks){1, 1, 1, 1, 1}, o->by, o->seconds);
    TRY(job_compile(&set, &arena, &job));
    cores_find(&cores);
    TRY(team_open_on(&team, o->threads, &cores, 1, 0));
    const RankSettings rank_set = {
        .program = &job.linked, .device = &timed_device, .team = team, .optim = job.settings.optim};
    TRY(rank_open(&rank, &rank_set));
    TRY(rank_init_weights(&rank, 1));
    inputs_fill(&rank, o->sequences, o->seq_len, config.vocab);
    printf("%s, %s, %d x %lld x %lld tokens, %d threads\n%s\n", o->model, dtype_name(o->dtype),
           o->micros, (long long)o->sequences, (long long)o->seq_len, o->threads,
           device_cpu_text((char[CPU_TEXT_BYTES]){0}));
    TRY(measure(&rank, device, &job, o));
    rank_close(&rank);
    team_close(team);
    arena_close(&arena);
    return OK;
}

static bool is(const char *word, const char *key)
{
    const size_t n = strlen(key);
    return strncmp(word, key, n) == 0 && word[n] == '=';
}

static bool read_option(const char *word, Options *o)
{
    const char *value = strchr(word, '=');
    if (!value) return false;
    value++;
    if (is(word, "model"))
        o->model = value;
    else if (is(word, "library"))
        o->library = value;
    else if (is(word, "recompute"))
        o->recompute = value;
    else if (is(word, "sequences"))
        o->sequences = atoll(value);
    else if (is(word, "seq_len"))
        o->seq_len = atoll(value);
    else if (is(word, "chunk"))
        o->chunk = atoll(value);
    else if (is(word, "threads"))
        o->threads = atoi(value);
    else if (is(word, "micros"))
        o->micros = atoi(value) < 1 ? 1 : atoi(value);
    else if (strcmp(word, "prepack=1") == 0)
        o->prepack = true;
    else if (is(word, "steps"))
        o->steps = atoi(value) < 1 ? 1 : atoi(value) > MAX_STEPS ? MAX_STEPS : atoi(value);
    else if (strcmp(word, "dtype=f32") == 0)
        o->dtype = F32;
    else if (strcmp(word, "dtype=bf16") == 0)
        o->dtype = BF16;
    else if (strcmp(word, "clock=wall") == 0)
        o->seconds = now_s;
    else if (strcmp(word, "clock=cpu") == 0)
        o->seconds = process_s;
    else if (strcmp(word, "by=kernel") == 0)
        o->by = TIMED_KERNELS;
    else if (strcmp(word, "by=shape") == 0)
        o->by = TIMED_SHAPES;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    Options o = {.model = "gpt2-124m",
                 .sequences = 1,
                 .seq_len = 256,
                 .dtype = F32,
                 .threads = 2,
                 .steps = 3,
                 .micros = 1,
                 .by = TIMED_KERNELS,
                 .seconds = now_s};
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &o)) {
            fprintf(stderr,
                    "bench/step: \"%s\": there are model= library= recompute= sequences= seq_len= "
                    "chunk= "
                    "dtype=f32|bf16 threads= steps= micros= prepack=1 by=kernel|shape "
                    "clock=wall|cpu\n",
                    argv[i]);
            return 2;
        }
    if (run(&o) == OK) return 0;
    fprintf(stderr, "bench/step: %s\n", err_text());
    return 1;
}
