/* context.c -- hops of attention plans on an emulated slow network: the share that hides.
 *
 *     build/release/bench/context                           4 thread-ranks, every way
 *     build/release/bench/context ranks=2 tokens=64 block_ms=20 steps=3
 *     build/release/bench/context real=16384 threads=2      a real sequence, see below
 *
 * Attention sleeps for each pair of a query and a key after its work, in tiles between which the
 * rank polls its comm as between the tiles of any kernel. So computation takes time but no core,
 * and ranks need no cores of their own. A visit of the ring with zigzag tokens takes block_ms
 * forward and twice that backward. The network has the bandwidth at which the keys of one block
 * take as long: a hop is as long as a block. It moves nothing while its hosts compute and do not
 * poll (CommSettings.delay_noticed).
 *
 * moving    seconds of all transfers of attention at that bandwidth, as a rank receives them
 * exposed   growth of the waits of programs, from a network without delays to this one
 * hidden    1 - exposed / moving; the column beside it has kernels of one tile, without polls
 * longer    growth of the time from the first RUN of a rank to the end of its last, which no way of
 *           counting waits can hide; reductions of gradients come after
 *
 * rsa has a full mask and no shared key heads, so that keys, or values, take block_ms too, and so
 * does a visit of one pass.
 *
 * real=S: one sequence of S tokens on one rank with `threads` threads, and on as many ranks of one
 * thread by a ring with zigzag tokens, by turns; nothing sleeps, and the network is this machine.
 * It needs the machine to itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "device/cpu/cpu.h"
#include "support/adamw.h"
#include "support/job_threads.h"

enum { TILES = 64, LAYERS = 2, HEADS = 8, KEY_HEADS = 4, HEAD = 16, MAX_STEPS = 64 };
static const double MUST_HIDE = 0.85, MUST_REACH = 0.9;

typedef struct {
    int ranks, tokens, block_ms, steps, real, threads, turns;
} Options;

/* ---- attention that sleeps ---- */

static const Device *inner;
static Device sleepy;
static double seconds_per_pair; /* and head, forward */
static int tiles;

typedef struct {
    double start_s, each_s;
} SleepTiles;

static void sleep_tile(void *work, int64_t tile)
{
    const SleepTiles *w = work;
    const double at_s = w->start_s + (double)(tile + 1) * w->each_s;
    const struct timespec at = {(time_t)at_s, (long)(1e9 * (at_s - (double)(time_t)at_s))};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) continue;
}

static int64_t within(int64_t lo, int64_t hi, int64_t first, int64_t end)
{
    const int64_t a = lo > first ? lo : first, b = hi < end ? hi : end;
    return b > a ? b - a : 0;
}

/* Pairs of the call's queries with its keys, times the heads. */
static double pairs_of(const Call *c)
{
    const Tensor *q = &c->in[0], *k = &c->in[1], *ranges = &c->in[3];
    const int64_t first = c->attr.attention.key_at, end = first + k->n[0];
    int64_t pairs = 0;
    for (int64_t t = 0; t < ranges->n[0]; t++) {
        const int32_t *r = (const int32_t *)ranges->data + t * ranges->stride[0];
        pairs += within(r[0], r[1], first, end) + within(r[2], r[3], first, end);
    }
    return (double)(pairs * q->n[1]);
}

/* Runs the kernel, then sleeps for these pairs, `times` as long as forward. */
static Err sleepy_run(KernelId id, const Call *c, double pairs, double times)
{
    const double start_s = now_s();
    const double each_s = pairs * seconds_per_pair * times / tiles;
    TRY(inner->kernel[id](c));
    team_run(c->team, tiles, sleep_tile, &(SleepTiles){start_s, each_s});
    return OK;
}

static Err sleepy_forward(const Call *c) { return sleepy_run(KERNEL_attention, c, pairs_of(c), 1); }
static Err sleepy_backward(const Call *c)
{
    return sleepy_run(KERNEL_attention_dx, c, pairs_of(c), 2);
}

/* Of two passes each has half of the work; all pairs of a block, whatever the mask. */
static double kept_pairs(const Tensor *scores)
{
    return (double)(scores->n[0] * scores->n[1] * scores->n[2]);
}
static Err sleepy_scores(const Call *c)
{
    return sleepy_run(KERNEL_attention_scores, c, kept_pairs(&c->out[0]), 0.5);
}
static Err sleepy_weigh(const Call *c)
{
    return sleepy_run(KERNEL_attention_weigh, c, kept_pairs(&c->in[0]), 0.5);
}
static Err sleepy_weigh_dx(const Call *c)
{
    return sleepy_run(KERNEL_attention_weigh_dx, c, kept_pairs(&c->in[0]), 1);
}
static Err sleepy_scores_dx(const Call *c)
{
    return sleepy_run(KERNEL_attention_scores_dx, c, kept_pairs(&c->in[0]), 1);
}

static Err open_devices(void)
{
    TRY(device_cpu_open(NULL, &inner));
    sleepy = *inner;
    sleepy.kernel[KERNEL_attention] = sleepy_forward;
    sleepy.kernel[KERNEL_attention_dx] = sleepy_backward;
    sleepy.kernel[KERNEL_attention_scores] = sleepy_scores;
    sleepy.kernel[KERNEL_attention_weigh] = sleepy_weigh;
    sleepy.kernel[KERNEL_attention_weigh_dx] = sleepy_weigh_dx;
    sleepy.kernel[KERNEL_attention_scores_dx] = sleepy_scores_dx;
    return OK;
}

/* ---- one run ---- */

/* Of all ranks and the steps, added up under the lock. */
typedef struct {
    pthread_mutex_t lock;
    double Bps, waits_s, moving_s, runs_s;
    int64_t seen[MAX_JOB_THREADS]; /* records before this step */
} StepSums;

static void add_step(void *context, int step, const Job *job, const RankTrace *trace,
                     const Recorder *recorder)
{
    StepSums *s = context;
    const int rank = job->settings.parallel.rank;
    double waits_s = 0, bytes = 0, first_s = 1e300, last_s = 0;
    for (int64_t i = 0; i < trace->n; i++) {
        const TraceEvent *e = &trace->at[i];
        if (e->action != A_RUN) continue;
        if (e->op == OP_wait) waits_s += e->end_s - e->begin_s;
        if (e->begin_s < first_s) first_s = e->begin_s;
        if (e->end_s > last_s) last_s = e->end_s;
    }
    for (int64_t i = s->seen[rank]; i < recorder->total; i++) {
        const Record *r = recorder_at(recorder, i);
        if (r && r->purpose == PURPOSE_PROGRAM && r->kind != COMM_SEND)
            bytes += (double)(r->kind == COMM_RECV ? r->bytes : r->sent_bytes);
    }
    pthread_mutex_lock(&s->lock);
    s->seen[rank] = recorder->total;
    if (step > 0) s->waits_s += waits_s, s->runs_s += last_s - first_s;
    if (step > 0 && s->Bps > 0) s->moving_s += bytes / s->Bps;
    pthread_mutex_unlock(&s->lock);
}

static Err load_model(int64_t tokens, int layers, int heads, int key_heads, int head, Arena *a,
                      ModelConfig *out)
{
    char text[6][16];
    const int64_t value[] = {layers, (int64_t)heads * head, heads, key_heads, tokens, 64};
    static const char *const key[] = {"num_hidden_layers",       "hidden_size",
                                      "num_attention_heads",     "num_key_value_heads",
                                      "max_position_embeddings", "intermediate_size"};
    ModelField set[6];
    for (int i = 0; i < 6; i++) {
        snprintf(text[i], sizeof text[i], "%lld", (long long)value[i]);
        set[i] = (ModelField){key[i], text[i], key[i], (int)strlen(key[i])};
    }
    return model_config_load("llama-tiny", set, 6, a, out);
}

static JobSettings job_of(const ModelConfig *m, int64_t tokens)
{
    return (JobSettings){.kind = JOB_STEP,
                         .config = m,
                         .dtype = F32,
                         .batch = {1, tokens},
                         .micros = 1,
                         .schedule = "1f1b",
                         .optim = bench_adamw};
}

static Err run_way(const Options *o, const JobSettings *job, double Bps, bool in_tiles,
                   StepSums *out)
{
    double seconds[MAX_STEPS];
    *out = (StepSums){.lock = PTHREAD_MUTEX_INITIALIZER, .Bps = Bps};
    tiles = in_tiles ? TILES : 1;
    return job_threads_run(&(JobThreads){.job = *job,
                                         .device = &sleepy,
                                         .threads = 1,
                                         .steps = o->steps,
                                         .delay_Bps = Bps,
                                         .delay_noticed = true,
                                         .real_time = true,
                                         .stepped = add_step,
                                         .context = out},
                           seconds);
}

typedef struct {
    double exposed_s, moving_s, longer_s; /* of a step, mean per rank */
} HopTimes;

static Err measure(const Options *o, const JobSettings *job, double Bps, bool in_tiles,
                   HopTimes *out)
{
    StepSums fast, slow;
    const double steps = (double)o->steps * o->ranks;
    TRY(run_way(o, job, 0, in_tiles, &fast));
    TRY(run_way(o, job, Bps, in_tiles, &slow));
    *out = (HopTimes){(slow.waits_s - fast.waits_s) / steps, slow.moving_s / steps,
                      (slow.runs_s - fast.runs_s) / steps};
    return OK;
}

static Err measure_way(const Options *o, const ModelConfig *m, ContextKind kind, int heads,
                       double Bps, double *hidden)
{
    JobSettings job = job_of(m, (int64_t)o->ranks * o->tokens);
    HopTimes t[2];
    char name[64];
    job.parallel.mesh = (MeshSizes){.cp = o->ranks, .cp_heads = heads};
    job.parallel.context = kind;
    job.parallel.cp_inner =
        kind == CONTEXT_DOUBLE_RING ? mesh_largest_part(o->ranks, o->ranks - 1) : 0;
    for (int in_tiles = 0; in_tiles < 2; in_tiles++)
        TRY(measure(o, &job, Bps, in_tiles, &t[in_tiles]));
    snprintf(name, sizeof name, heads ? "%s cp_heads=%d" : "%s", context_name(kind), heads);
    *hidden = 1 - t[1].exposed_s / t[1].moving_s;
    printf("%-22s %10.1f %10.1f %8.0f%% %10.1f %14.0f%%\n", name, 1e3 * t[1].moving_s,
           1e3 * t[1].exposed_s, 100 * *hidden, 1e3 * t[1].longer_s,
           100 * (1 - t[0].exposed_s / t[0].moving_s));
    fflush(stdout);
    return OK;
}

static Err run_table(const Options *o, Arena *a, bool *holds)
{
    ModelConfig m;
    const double block_s = 1e-3 * o->block_ms, n = o->tokens;
    const double Bps = n * 2 * KEY_HEADS * HEAD * 4 / block_s;
    double hidden;
    seconds_per_pair = block_s / (n * n / 2 * HEADS);
    TRY(load_model((int64_t)o->ranks * o->tokens, LAYERS, HEADS, KEY_HEADS, HEAD, a, &m));
    printf("%d layers, %d ranks of %d tokens; a block takes %d ms, a hop of keys %d ms; ms of a "
           "step\n",
           LAYERS, o->ranks, o->tokens, o->block_ms, o->block_ms);
    printf("%-22s %10s %10s %9s %10s %15s\n", "way", "moving", "exposed", "hidden", "longer",
           "without polls");
    for (ContextKind kind = CONTEXT_GATHER; kind < N_CAUSAL_CONTEXTS; kind++) {
        if (kind == CONTEXT_DOUBLE_RING && mesh_largest_part(o->ranks, o->ranks - 1) == 1) continue;
        if (kind == CONTEXT_ULYSSES && o->ranks > HEADS) continue;
        TRY(measure_way(o, &m, kind, 0, Bps, &hidden));
        if (kind == CONTEXT_RING) *holds = hidden >= MUST_HIDE;
    }
    if (o->ranks > 2 && o->ranks % 2 == 0) TRY(measure_way(o, &m, CONTEXT_RING, 2, Bps, &hidden));
    m.full_mask = true;
    m.n_kv_heads = m.n_heads;
    TRY(measure_way(o, &m, CONTEXT_RSA, 0, Bps, &hidden));
    printf("the ring hides at least %.0f%% of its transfers: %s\n", 100 * MUST_HIDE,
           *holds ? "yes" : "NO");
    return OK;
}

/* ---- a real sequence ---- */

static double cores_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a step, and those of all cores, which other work on the machine changes less. */
static Err real_step(const JobSettings *job, int threads, double *seconds, double *of_cores)
{
    const double before_s = cores_s();
    TRY(job_threads_run(&(JobThreads){.job = *job, .device = inner, .threads = threads, .steps = 1},
                        seconds));
    *of_cores = (cores_s() - before_s) / 2; /* of a step before it, too */
    return OK;
}

static Err run_real(const Options *o, Arena *a, bool *holds)
{
    ModelConfig m;
    double one[MAX_STEPS], many[MAX_STEPS], one_cores[MAX_STEPS], many_cores[MAX_STEPS];
    TRY(load_model(o->real, 1, HEADS / 2, KEY_HEADS / 2, 64, a, &m));
    JobSettings job = job_of(&m, o->real), ring = job;
    ring.parallel = (ParallelSettings){
        .mesh = {.cp = o->threads}, .context = CONTEXT_RING, .tokens = TOKENS_ZIGZAG};
    printf("1 layer, %d heads of 64, %d of keys; a sequence of %d tokens; seconds of a step\n",
           HEADS / 2, KEY_HEADS / 2, o->real);
    for (int t = 0; t < o->turns; t++) {
        TRY(real_step(&job, o->threads, &one[t], &one_cores[t]));
        TRY(real_step(&ring, 1, &many[t], &many_cores[t]));
        printf("  %d threads %.3f, %d ranks %.3f; of all cores %.3f, %.3f\n", o->threads, one[t],
               o->threads, many[t], one_cores[t], many_cores[t]);
        fflush(stdout);
    }
    const double ratio = median_of(one, o->turns) / median_of(many, o->turns);
    *holds = ratio >= MUST_REACH;
    printf("a ring of %d ranks has %.3f of the speed of one rank with %d threads; at least %.1f: "
           "%s\n",
           o->threads, ratio, o->threads, MUST_REACH, *holds ? "yes" : "NO");
    printf("core-seconds: the ring takes %.3f times as many\n",
           median_of(many_cores, o->turns) / median_of(one_cores, o->turns));
    return OK;
}

static bool read_option(const char *word, Options *o)
{
    const struct {
        const char *key;
        int *value;
        int least, most;
    } table[] = {{"ranks=", &o->ranks, 2, 16},         {"tokens=", &o->tokens, 2, 4096},
                 {"block_ms=", &o->block_ms, 1, 1000}, {"steps=", &o->steps, 1, MAX_STEPS},
                 {"real=", &o->real, 64, 1 << 20},     {"threads=", &o->threads, 2, 16},
                 {"turns=", &o->turns, 1, MAX_STEPS}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strncmp(word, table[i].key, strlen(table[i].key)) != 0) continue;
        *table[i].value = atoi(word + strlen(table[i].key));
        return *table[i].value >= table[i].least && *table[i].value <= table[i].most;
    }
    return false;
}

int main(int argc, char **argv)
{
    Options o = {.ranks = 4, .tokens = 64, .block_ms = 20, .steps = 2, .threads = 2, .turns = 3};
    Arena arena;
    bool holds = true;
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &o)) {
            fprintf(stderr,
                    "bench/context: \"%s\": there are ranks= (2 to 16) tokens= (of a rank) "
                    "block_ms= steps= real= (tokens of a sequence) threads= turns=\n",
                    argv[i]);
            return 2;
        }
    Err err = arena_open(&arena, "bench", ARENA_PLENTY);
    if (err == OK) err = open_devices();
    if (err == OK) err = o.real ? run_real(&o, &arena, &holds) : run_table(&o, &arena, &holds);
    if (err != OK) {
        fprintf(stderr, "bench/context: %s\n", err_text());
        return 1;
    }
    return !holds;
}
