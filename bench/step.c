/* step.c -- a whole training step on device cpu, and where its time goes, kernel by kernel.
 *
 *     build/release/bench/step                       gpt2-124m, 1 sequence of 256 tokens, f32
 *     build/release/bench/step sequences=4 seq_len=1024 steps=3
 *     build/release/bench/step dtype=bf16 threads=1 model=llama-tiny
 *     build/release/bench/step library=libopenblas.so.0    f32 products by OpenBLAS
 *
 * Speed is told by 6 N + 12 L d T flops a token (N parameters, L layers of width d, T tokens of a
 * sequence): attention counts in full, though a causal one does half of it. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "train/job.h"

typedef struct {
    const char *model, *library; /* NULL: our own products */
    int64_t sequences, seq_len, chunk;
    DType dtype;
    int threads, steps;
} Options;

static double clock_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now_s(void) { return clock_s(CLOCK_MONOTONIC); }

/* Kernels get no context, so what is measured lies here. */
static const Device *inner;
static double seconds[N_KERNELS];
static int64_t calls[N_KERNELS];

static Err timed(KernelId id, const Call *call)
{
    const double start = now_s();
    const Err err = inner->kernel[id](call);
    seconds[id] += now_s() - start;
    calls[id]++;
    return err;
}

#define KERNEL(id)                                                                                 \
    static Err timed_##id(const Call *call) { return timed(KERNEL_##id, call); }
#include "device/kernels.def"
#undef KERNEL

static const Device timed_device = {
    .name = "cpu",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = timed_##id,
#include "device/kernels.def"
#undef KERNEL
        },
};

static void fill_inputs(Rank *r, const Options *o, int64_t vocab)
{
    uint64_t seed = 1;
    for (int32_t i = 0; i < o->sequences * o->seq_len; i++) {
        const int32_t first = i - i % (int32_t)o->seq_len;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ((int32_t *)rank_input(r, 0, INPUT_TOKENS).data)[i] =
            (int32_t)((seed >> 33) % (uint64_t)vocab);
        ((int32_t *)rank_input(r, 0, INPUT_TARGETS).data)[i] =
            (int32_t)((seed >> 20) % (uint64_t)vocab);
        ((int32_t *)rank_input(r, 0, INPUT_POSITIONS).data)[i] = i - first;
        ((float *)rank_input(r, 0, INPUT_WEIGHTS).data)[i] = 1;
        const int32_t range[4] = {first, i + 1, 0, 0};
        memcpy((int32_t *)rank_input(r, 0, INPUT_RANGES).data + 4 * i, range, sizeof range);
    }
}

/* Kernels by their time, and what is left: walking the list, filling calls. */
static void print_shares(double step_s, int steps)
{
    double rest = step_s * steps;
    printf("%-18s %10s %8s %7s\n", "kernel", "calls/step", "ms/step", "share");
    for (int shown = 0; shown < N_KERNELS; shown++) {
        int top = 0;
        for (int k = 1; k < N_KERNELS; k++)
            if (seconds[k] > seconds[top]) top = k;
        if (calls[top] == 0) break;
        printf("%-18s %10.0f %8.1f %6.1f%%\n", kernel_name((KernelId)top),
               (double)calls[top] / steps, 1e3 * seconds[top] / steps,
               100 * seconds[top] / (step_s * steps));
        rest -= seconds[top];
        seconds[top] = calls[top] = 0;
    }
    printf("%-18s %10s %8.1f %6.1f%%\n", "the rest", "", 1e3 * rest / steps,
           100 * rest / (step_s * steps));
}

static double flops_per_token(const Job *job, const Options *o)
{
    double params = 0;
    for (int p = 0; p < job->model.n_params; p++) params += (double)job->model.param[p].count;
    const ModelConfig *c = job->settings.config;
    return 6 * params + 12.0 * (double)c->n_layers * (double)c->width * (double)o->seq_len;
}

static Err measure(Rank *rank, const Job *job, const Options *o)
{
    StepResult result;
    double best = 1e30, total = 0, cpu_s;
    const double tokens = (double)(o->sequences * o->seq_len);
    TRY(rank_step(rank, &(StepSettings){.step = 1, .lr = 1e-4}, &result)); /* touches all memory */
    printf("first loss %.4f\n", result.loss);
    memset(seconds, 0, sizeof seconds);
    memset(calls, 0, sizeof calls);
    cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < o->steps; i++) {
        const double start = now_s();
        TRY(rank_step(rank, &(StepSettings){.step = i + 2, .lr = 1e-4}, &result));
        const double step_s = now_s() - start;
        total += step_s;
        if (step_s < best) best = step_s;
    }
    cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
    const double flops = flops_per_token(job, o) * tokens;
    printf("step: %.0f ms mean, %.0f ms best; %.0f tokens/s, %.1f GF/s (best %.1f)\n",
           1e3 * total / o->steps, 1e3 * best, tokens * o->steps / total,
           1e-9 * flops * o->steps / total, 1e-9 * flops / best);
    /* What others do on the machine does not enter here. */
    printf("cores at work: %.2f; GF per second of a core: %.1f\n", cpu_s / total,
           1e-9 * flops * o->steps / cpu_s);
    print_shares(total / o->steps, o->steps);
    return OK;
}

static Err run(const Options *o)
{
    Arena arena;
    ModelConfig config;
    Job job;
    Rank rank;
    Team *team;
    TRY(arena_open(&arena, "bench", ARENA_PLENTY));
    TRY(model_config_load(o->model, NULL, 0, &arena, &config));
    const JobSettings set = {.kind = JOB_STEP,
                             .config = &config,
                             .dtype = o->dtype,
                             .batch = {o->sequences, o->seq_len},
                             .micros = 1,
                             .schedule = "1f1b",
                             .compile = {.chunk_elements = o->chunk},
                             .optim = {.kind = OPTIM_ADAMW,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = 0.1,
                                       .clip = 1,
                                       .block = 65536}};
    TRY(job_compile(&set, &arena, &job));
    TRY(device_cpu_open(o->library, &inner));
    TRY(team_open(&team, o->threads, NULL));
    const RankSettings rank_set = {
        .program = &job.linked, .device = &timed_device, .team = team, .optim = job.settings.optim};
    TRY(rank_open(&rank, &rank_set));
    TRY(rank_init_weights(&rank, 1));
    fill_inputs(&rank, o, config.vocab);
    printf("%s, %s, %lld x %lld tokens, %d threads\n%s\n", o->model, dtype_name(o->dtype),
           (long long)o->sequences, (long long)o->seq_len, o->threads, device_cpu_text());
    TRY(measure(&rank, &job, o));
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
    else if (is(word, "sequences"))
        o->sequences = atoll(value);
    else if (is(word, "seq_len"))
        o->seq_len = atoll(value);
    else if (is(word, "chunk"))
        o->chunk = atoll(value);
    else if (is(word, "threads"))
        o->threads = atoi(value);
    else if (is(word, "steps"))
        o->steps = atoi(value);
    else if (strcmp(word, "dtype=f32") == 0)
        o->dtype = F32;
    else if (strcmp(word, "dtype=bf16") == 0)
        o->dtype = BF16;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    Options o = {"gpt2-124m", NULL, 1, 256, 0, F32, 2, 3};
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &o)) {
            fprintf(stderr,
                    "bench/step: \"%s\": there are model= library= sequences= seq_len= chunk= "
                    "dtype=f32|bf16 threads= steps=\n",
                    argv[i]);
            return 2;
        }
    if (run(&o) == OK) return 0;
    fprintf(stderr, "bench/step: %s\n", err_text());
    return 1;
}
