/* cuda_step.c -- a whole training step on a GPU, and its time op by op.
 *
 *     build/release/bench/cuda_step model=gpt2-124m vocab=50304 sequences=64 seq_len=1024
 *     build/release/bench/cuda_step model=llama3.2-1b sequences=8 seq_len=4096 deterministic=1
 *
 * bf16 with f32 master weights and accumulation; forward, backward, clip and AdamW on random
 * tokens, whole sequences. The lower bound of an op is its flops at the rate of a large GEMM, or
 * its bytes at the rate of a copy, both measured first; the remaining time of the step is between
 * ops. fp8=auto runs GEMMs of layers in FP8, as precision.compute=fp8 does, fp8=* those of all
 * layers, fp8=mlp.* some; delayed=1: with delayed scaling. Steps are timed after ten seconds of
 * warm-up (warm=), when the GPU has reached its sustained clock. They are captured as one graph
 * (capture=0: launched op by op). The op times are those of one more step, launched op by op.
 * autotune=FILE keeps the algorithms of GEMMs. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/precision.h"
#include "device/cuda_workspace.h"
#include "device/registry.h"
#include "support/adamw.h"
#include "support/clock.h"
#include "support/inputs.h"
#include "support/shares.h"
#include "job/job.h"
#include "plan/profile.h"

#ifndef BENCH_CUDA_OBJECT
#define BENCH_CUDA_OBJECT NULL /* next to this program */
#endif

enum { MAX_STEPS = 1000, MAX_EVENTS = 1 << 18, COPY_BYTES = 1 << 30 };

typedef struct {
    const char *model, *autotune_file, *recompute, *fp8;
    int64_t sequences, micros, seq_len, vocab, chunk, steps, warm, deterministic, capture;
    int64_t delayed;
} Options;

typedef struct {
    Options o;
    Arena arena;
    ModelConfig config;
    Job job;
    Rank rank;
    const Device *device;
    RankTrace trace;
    Team *team;
    int64_t steps; /* done so far */
    double start_s, flops_per_s, copy_Bps;
} Bench;

/* ---- rates of the GPU ---- */

static Err time_copies(const DeviceRuntime *m, DeviceContext *c, char *from, double *best)
{
    DeviceTimestamps *timestamps;
    DeviceQueue *q = m->queue(c, QUEUE_COMPUTE);
    double seconds[12];
    TRY(m->timestamps_open(c, 12, &timestamps));
    for (int i = 0; i < 12; i++) {
        TRY(m->timestamp(q, timestamps, i));
        TRY(m->copy(q, from + COPY_BYTES, from, COPY_BYTES));
    }
    TRY(m->sync(q));
    TRY(m->timestamps_read(timestamps, 12, seconds));
    m->timestamps_close(timestamps);
    *best = 0;
    for (int i = 2; i < 12; i++) {
        const double rate = 2.0 * COPY_BYTES / (seconds[i] - seconds[i - 1]);
        if (rate > *best) *best = rate;
    }
    return OK;
}

static Err measure_card(Bench *b)
{
    const DeviceRuntime *m = b->device->runtime;
    DeviceContext *c;
    DeviceInfo info;
    void *at;
    const ProfileTarget of = {.device = b->device, .dtype = BF16};
    TRY(profile_peak_measure(&of, &b->flops_per_s));
    TRY(m->open(0, &c));
    TRY(m->alloc(c, 2 * (size_t)COPY_BYTES, &at));
    const Err err = time_copies(m, c, at, &b->copy_Bps);
    TRY(m->info(c, &info));
    m->free(c, at);
    m->close(c);
    printf("%s\na large GEMM: %.0f TFLOP/s; a copy: %.2f TB/s\n", info.name, 1e-12 * b->flops_per_s,
           1e-12 * b->copy_Bps);
    return err;
}

/* ---- the job ---- */

static bool is_fp8(const Bench *b) { return strcmp(b->o.fp8, "none") != 0; }

static Fp8Options fp8_options(const Bench *b)
{
    const PrecisionRow *row = precision_row(PRECISION_FP8);
    const bool spare = strcmp(b->o.fp8, "auto") == 0;
    if (!is_fp8(b)) return (Fp8Options){0};
    return (Fp8Options){.names = spare ? "*" : b->o.fp8,
                        .compute = row->compute,
                        .gradient = row->gradient,
                        .scaling = b->o.delayed ? SCALING_DELAYED : SCALING_TENSOR,
                        .spare_ends = spare};
}

static JobSettings settings_of(const Bench *b)
{
    const bool full = strcmp(b->o.recompute, "full") == 0;
    const bool selective = strcmp(b->o.recompute, "selective") == 0;
    return (JobSettings){.kind = JOB_STEP,
                         .config = &b->config,
                         .dtype = BF16,
                         .batch = {b->o.sequences / b->o.micros, b->o.seq_len},
                         .micros = (int)b->o.micros,
                         .causal = true,
                         .schedule = "1f1b",
                         .workspace = &cuda_workspace,
                         .compile = {.chunk_elements = b->o.chunk,
                                     .device_memory = true,
                                     .fp8 = fp8_options(b),
                                     .recompute = full        ? RECOMPUTE_FULL
                                                  : selective ? RECOMPUTE_SELECTIVE
                                                              : RECOMPUTE_NONE},
                         .optim = bench_adamw};
}

static Err open_rank(Bench *b)
{
    const JobSettings set = settings_of(b);
    TRY(job_compile(&set, &b->arena, &b->job));
    const RankSettings rank = {.program = &b->job.linked,
                               .device = b->device,
                               .team = b->team, /* of the host: initial weights */
                               .deterministic = b->o.deterministic != 0,
                               .optim = b->job.settings.optim,
                               .capture = b->o.capture != 0,
                               .trace = &b->trace};
    TRY(rank_open(&b->rank, &rank));
    TRY(rank_init_weights(&b->rank, 1));
    inputs_fill(&b->rank, b->o.sequences / b->o.micros, b->o.seq_len, b->config.vocab);
    return OK;
}

static Err autotune(Bench *b)
{
    const DeviceRuntime *m = b->device->runtime;
    const double start = now_s();
    const bool kept = b->o.autotune_file && access(b->o.autotune_file, R_OK) == 0;
    if (kept) TRY(m->autotune->load(b->rank.context, b->o.autotune_file));
    m->autotune->measure(b->rank.context, true);
    TRY(rank_autotune(&b->rank));
    m->autotune->measure(b->rank.context, false);
    if (b->o.autotune_file) TRY(m->autotune->save(b->rank.context, b->o.autotune_file));
    printf("algorithms of GEMMs: %s, %.2f s\n", kept ? "from a file" : "measured", now_s() - start);
    return OK;
}

/* ---- the steps ---- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Err step(Bench *b, double *seconds)
{
    StepResult result;
    const double start = now_s();
    TRY(rank_step(&b->rank, &(StepSettings){.step = ++b->steps, .lr = 1e-4}, &result));
    *seconds = now_s() - start;
    if (b->steps == 1) printf("first loss %.4f\n", result.loss);
    return OK;
}

static Err time_steps(Bench *b, double *median)
{
    double seconds[MAX_STEPS];
    const double tokens = (double)(b->o.sequences * b->o.seq_len);
    double params = 0;
    for (int p = 0; p < b->job.model.n_params; p++) params += (double)b->job.model.param[p].count;
    const double attention =
        12.0 * (double)b->config.n_layers * (double)b->config.width * (double)b->o.seq_len;
    TRY(step(b, &seconds[0]));
    printf("first step done %.2f s after the start\n", now_s() - b->start_s);
    for (const double until = now_s() + (double)b->o.warm; now_s() < until;)
        TRY(step(b, &seconds[0]));
    for (int i = 0; i < b->o.steps; i++) TRY(step(b, &seconds[i]));
    qsort(seconds, (size_t)b->o.steps, sizeof *seconds, by_size);
    *median = seconds[b->o.steps / 2];
    printf("step: %.2f ms median, %.2f best; %.0f tokens/s; %.0f TFLOP/s by 6N + 12LdT; mfu %.1f%% "
           "(attention counted half, of the large GEMM)\n",
           1e3 * *median, 1e3 * seconds[0], tokens / *median,
           1e-12 * (6 * params + attention) * tokens / *median,
           100 * (6 * params + attention / 2) * tokens / *median / b->flops_per_s);
    return OK;
}

static void print_capture(const Bench *b)
{
    const char *refused = rank_capture_refused(&b->rank);
    if (refused || !b->o.capture)
        printf("steps launched op by op: %s\n", refused ? refused : "capture=0");
    else
        printf("steps captured: %lld graph, launched %lld times\n",
               (long long)b->rank.capture.n_captured, (long long)b->rank.capture.n_launched);
}

/* Times one more step, launched op by op. */
static Err take_apart(Bench *b, double median)
{
    double step_s;
    b->trace.n = 0;
    b->trace.cap = MAX_EVENTS;
    TRY(step(b, &step_s));
    shares_print(&b->job, &b->trace, b->flops_per_s, b->copy_Bps, step_s);
    printf("%-18s %6s %9.3f %6.1f%% (op by op; %.2f as timed above)\n", "step", "", 1e3 * step_s,
           100.0, 1e3 * median);
    return OK;
}

static Err print_memory(const Bench *b)
{
    DeviceInfo info;
    const size_t *bytes = b->job.linked.bytes;
    const double gib = 1.0 / (1 << 30);
    const size_t sum = bytes[ARENA_STATE] + bytes[ARENA_STEP] + bytes[ARENA_WORK];
    TRY(b->device->runtime->info(b->rank.context, &info));
    printf("memory: %.2f GiB (state %.2f, step %.2f, work %.2f); workspaces of libraries %.2f; the "
           "GPU reports %.2f in use\n",
           gib * (double)sum, gib * (double)bytes[ARENA_STATE], gib * (double)bytes[ARENA_STEP],
           gib * (double)bytes[ARENA_WORK], gib * (double)info.workspace_bytes,
           gib * (double)(info.total_bytes - info.free_bytes));
    return OK;
}

static Err run(Bench *b)
{
    char vocab[64];
    const ModelField field = {"vocab_size", vocab, "vocab=", 2};
    double median;
    TRY(arena_open(&b->arena, "bench", ARENA_PLENTY));
    snprintf(vocab, sizeof vocab, "%lld", (long long)b->o.vocab);
    TRY(model_config_load(b->o.model, &field, b->o.vocab > 0, &b->arena, &b->config));
    TRY(ARENA_NEW(&b->arena, MAX_EVENTS, &b->trace.at));
    b->config.fp8_marks = is_fp8(b) && b->o.delayed;
    device_cuda_search(getenv("PATH"));
    TRY(device_open("cuda", BENCH_CUDA_OBJECT, &b->device));
    TRY(measure_card(b));
    printf("\n%s, %lld x %lld tokens, bf16%s%s%s\n", b->o.model, (long long)b->o.sequences,
           (long long)b->o.seq_len, is_fp8(b) ? ", fp8 " : "", is_fp8(b) ? b->o.fp8 : "",
           b->o.deterministic ? ", deterministic" : "");
    b->start_s = now_s();
    TRY(team_open(&b->team, (int)sysconf(_SC_NPROCESSORS_ONLN), NULL));
    TRY(open_rank(b));
    printf("weights there after %.2f s\n", now_s() - b->start_s);
    TRY(autotune(b));
    TRY(time_steps(b, &median));
    print_capture(b);
    TRY(take_apart(b, median));
    TRY(print_memory(b));
    rank_close(&b->rank);
    team_close(b->team);
    arena_close(&b->arena);
    return OK;
}

static bool read_option(const char *word, Options *o)
{
    const struct {
        const char *key, **text;
        int64_t *number;
    } table[] = {{"model=", &o->model, NULL},         {"autotune=", &o->autotune_file, NULL},
                 {"recompute=", &o->recompute, NULL}, {"fp8=", &o->fp8, NULL},
                 {"sequences=", NULL, &o->sequences}, {"micros=", NULL, &o->micros},
                 {"seq_len=", NULL, &o->seq_len},     {"vocab=", NULL, &o->vocab},
                 {"chunk=", NULL, &o->chunk},         {"steps=", NULL, &o->steps},
                 {"warm=", NULL, &o->warm},           {"deterministic=", NULL, &o->deterministic},
                 {"capture=", NULL, &o->capture},     {"delayed=", NULL, &o->delayed}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const size_t n = strlen(table[i].key);
        if (strncmp(word, table[i].key, n) != 0) continue;
        if (table[i].text) *table[i].text = word + n;
        if (table[i].number) *table[i].number = atoll(word + n);
        return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    static Bench b = {.o = {"gpt2-124m", NULL, "none", "none", 64, 1, 1024, 0, 0, 20, 10, 0, 1, 0}};
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &b.o)) {
            fprintf(stderr,
                    "cuda_step: \"%s\": there are model= sequences= micros= seq_len= vocab= chunk= "
                    "steps= warm= deterministic=0|1 capture=0|1 recompute=none|selective|full "
                    "fp8=none|auto|PATTERNS delayed=0|1 autotune=FILE\n",
                    argv[i]);
            return 2;
        }
    const bool known = strcmp(b.o.recompute, "none") == 0 ||
                       strcmp(b.o.recompute, "selective") == 0 ||
                       strcmp(b.o.recompute, "full") == 0;
    if (!known || b.o.steps < 1 || b.o.steps > MAX_STEPS || b.o.warm < 0 || b.o.sequences < 1 ||
        b.o.seq_len < 1 || b.o.micros < 1 || b.o.sequences % b.o.micros != 0) {
        fprintf(
            stderr,
            "cuda_step: recompute=%s steps=%lld warm=%lld sequences=%lld micros=%lld seq_len=%lld: "
            "recompute is none, selective or full, steps are 1 to %d, seconds to warm up 0 or "
            "more, micros a divisor of sequences, the others at least 1\n",
            b.o.recompute, (long long)b.o.steps, (long long)b.o.warm, (long long)b.o.sequences,
            (long long)b.o.micros, (long long)b.o.seq_len, MAX_STEPS);
        return 2;
    }
    if (run(&b) == OK) return 0;
    fprintf(stderr, "cuda_step: %s\n", err_text());
    return 1;
}
