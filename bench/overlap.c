/* overlap.c -- overlap of transfers with computation, on an emulated slow network.
 *
 *     build/release/bench/overlap                        2 thread-ranks, gpt2 of 12 layers, f32
 *     build/release/bench/overlap width=256 tokens=512 steps=5 sleep_ms=0
 *
 * Every GEMM and every attention sleeps sleep_ms after its work: computation that takes time but no
 * core, so that ranks need no cores of their own and the machine may be busy. With sleep_ms=0
 * kernels take their real time; then each rank needs a core and nothing else should run.
 *
 * Each kind of data parallelism runs with every transfer waited for where it is begun (off), and
 * with waits as late as possible (on). Each runs without delays and with a bandwidth at which the
 * largest transfer of a unit takes as long as a layer's forward. Waiting takes no core. The growth
 * of a step is the exposed communication; with overlap on it should be at most a fifth of the
 * growth with overlap off. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/local/local.h"
#include "base/clock.h"
#include "device/cpu/cpu.h"
#include "job/job.h"

enum { MAX_RANKS = 16, MAX_STEPS = 1000, MAX_RECORDS = 1 << 14, MAX_EVENTS = 1 << 16, MICROS = 2 };
static const double MAX_SHARE = 0.2;

typedef struct {
    int ranks, layers, width, tokens, steps, sleep_ms;
    Cores cores;
} Options;

/* One run: a kind of data parallelism, overlap on or off, and the bandwidth of the network. */
typedef struct {
    const Options *o;
    int zero;
    bool in_order;
    double slow_Bps; /* 0: no delay */
} Trial;

typedef struct {
    double step_s;        /* of the fastest step */
    double forward_s;     /* of a layer, in the fastest step */
    size_t largest_bytes; /* maximum of the bytes that leave a rank in one transfer */
} Outcome;

typedef struct {
    const Trial *trial;
    CommWorld *world;
    int rank;
    Err err;
    char text[1024]; /* of err */
    Outcome out;
    ModelConfig config;
    Job job;
    Rank at_work;
    RankTrace trace;
    Arena arena;
    Comm *comm;
    Team *team;
} RankThread;

/* Kernels get no context, so their settings are global; set before any rank runs. */
static const Device *inner;
static Device sleepy;
static struct timespec pause_time;

#define SLEEPY(id)                                                                                 \
    static Err sleepy_##id(const Call *call)                                                       \
    {                                                                                              \
        const Err err = inner->kernel[KERNEL_##id](call);                                          \
        nanosleep(&pause_time, NULL);                                                              \
        return err;                                                                                \
    }
SLEEPY(gemm)
SLEEPY(attention)
SLEEPY(attention_dx)
#undef SLEEPY

static Err open_device(int sleep_ms)
{
    TRY(device_cpu_open(NULL, &inner));
    pause_time = (struct timespec){sleep_ms / 1000, sleep_ms % 1000 * 1000000L};
    sleepy = *inner;
    if (sleep_ms == 0) return OK;
    sleepy.kernel[KERNEL_gemm] = sleepy_gemm;
    sleepy.kernel[KERNEL_attention] = sleepy_attention;
    sleepy.kernel[KERNEL_attention_dx] = sleepy_attention_dx;
    return OK;
}

static Err load_model(const Options *o, Arena *a, ModelConfig *out)
{
    char layers[16], width[16], heads[16];
    snprintf(layers, sizeof layers, "%d", o->layers);
    snprintf(width, sizeof width, "%d", o->width);
    snprintf(heads, sizeof heads, "%d", o->width / 32);
    const ModelField set[] = {{"n_layer", layers, "layers=", 2},
                              {"n_embd", width, "width=", 2},
                              {"n_head", heads, "width=", 2}};
    return model_config_load("gpt2-tiny", set, 3, a, out);
}

static JobSettings job_settings(const RankThread *l)
{
    const Trial *t = l->trial;
    return (JobSettings){.kind = JOB_STEP,
                         .config = &l->config,
                         .dtype = F32,
                         .batch = {1, t->o->tokens},
                         .micros = MICROS,
                         .schedule = "1f1b",
                         .optim = {.kind = OPTIM_ADAMW,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .clip = 1,
                                   .block = 65536},
                         .parallel = {.mesh = {.dp_shard = t->o->ranks},
                                      .rank = l->rank,
                                      .zero = t->zero,
                                      .in_order = t->in_order}};
}

static void fill_inputs(Rank *r, int rank, int tokens)
{
    uint64_t seed = (uint64_t)rank + 1;
    for (int m = 0; m < MICROS; m++)
        for (int32_t i = 0; i < tokens; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            ((int32_t *)rank_input(r, m, INPUT_TOKENS).data)[i] = (int32_t)(seed >> 56);
            ((int32_t *)rank_input(r, m, INPUT_TARGETS).data)[i] = (int32_t)(seed >> 40 & 255);
            ((int32_t *)rank_input(r, m, INPUT_POSITIONS).data)[i] = i;
            ((float *)rank_input(r, m, INPUT_WEIGHTS).data)[i] = 1;
            const int32_t range[4] = {0, i + 1, 0, 0};
            memcpy((int32_t *)rank_input(r, m, INPUT_RANGES).data + 4 * i, range, sizeof range);
        }
}

static Err open_rank(RankThread *l)
{
    const Trial *t = l->trial;
    TRY(load_model(t->o, &l->arena, &l->config));
    const JobSettings set = job_settings(l);
    TRY(job_compile(&set, &l->arena, &l->job));
    TRY(team_open_on(&l->team, 1, &t->o->cores, t->o->ranks, l->rank));
    TRY(ARENA_NEW(&l->arena, MAX_EVENTS, &l->trace.at));
    l->trace.cap = MAX_EVENTS;
    const RankSettings rank_set = {.program = &l->job.linked,
                                   .device = &sleepy,
                                   .comm = l->comm,
                                   .team = l->team,
                                   .optim = l->job.settings.optim,
                                   .trace = &l->trace};
    TRY(rank_open(&l->at_work, &rank_set));
    TRY(rank_init_weights(&l->at_work, 1));
    fill_inputs(&l->at_work, l->rank, t->o->tokens);
    return OK;
}

/* Mean over the layers, which are neither the first unit nor the last; instructions identify a
 * RUN. */
static double forward_s(const RankThread *l)
{
    double sum_s = 0;
    for (int64_t i = 0; i < l->trace.n; i++) {
        const TraceEvent *e = &l->trace.at[i];
        const bool layer = e->unit > 0 && e->unit < l->job.model.n_units - 1;
        if (e->action == A_RUN && e->phase == PHASE_F && layer) sum_s += e->end_s - e->begin_s;
    }
    return sum_s / (l->trial->o->layers * MICROS);
}

static size_t largest_bytes(const Comm *c)
{
    const Recorder *r = comm_recorder(c);
    size_t largest = 0;
    for (int64_t i = 0; i < r->total; i++) {
        const Record *at = recorder_at(r, i);
        if (at && !at->scalar && at->sent_bytes > largest) largest = at->sent_bytes;
    }
    return largest;
}

static Err run_rank(RankThread *l)
{
    const Options *o = l->trial->o;
    StepResult result;
    TRY(open_rank(l));
    l->out.step_s = HUGE_VAL;
    for (int i = 0; i <= o->steps; i++) {
        const double start_s = now_s();
        l->trace.n = 0;
        TRY(rank_step(&l->at_work, &(StepSettings){.step = i + 1, .lr = 1e-4}, &result));
        const double step_s = now_s() - start_s;
        if (i == 0 || step_s >= l->out.step_s) continue; /* the first step touches all memory */
        l->out.step_s = step_s;
        l->out.forward_s = forward_s(l);
    }
    l->out.largest_bytes = largest_bytes(l->comm);
    return comm_idle(l->comm);
}

static void *rank_thread_main(void *rank_thread)
{
    RankThread *l = rank_thread;
    const CommSettings set = {.rank = l->rank,
                              .ranks = l->trial->o->ranks,
                              .in_flight = 64,
                              .records = MAX_RECORDS,
                              .timeout_s = 60,
                              .delay_Bps = l->trial->slow_Bps};
    l->err = arena_open(&l->arena, "bench", ARENA_PLENTY);
    if (l->err == OK) l->err = comm_join(l->world, &l->arena, &set, &l->comm);
    if (l->err == OK) l->err = run_rank(l);
    if (l->err == OK) return NULL;
    snprintf(l->text, sizeof l->text, "%s", err_text());
    if (l->comm) comm_abort(l->comm, l->err, l->text);
    return NULL;
}

/* Measures rank 0; ranks synchronize in every step. A bench that fails does not clean up. */
static Err run_trial(const Trial *t, Outcome *out)
{
    static RankThread rank_thread[MAX_RANKS];
    pthread_t thread[MAX_RANKS];
    CommWorld *world;
    TRY(local_start(t->o->ranks, &world));
    for (int i = 0; i < t->o->ranks; i++) {
        rank_thread[i] = (RankThread){.trial = t, .world = world, .rank = i};
        if (pthread_create(&thread[i], NULL, rank_thread_main, &rank_thread[i]) != 0)
            return err_fail(ERR_NOMEM, "thread %d cannot start; lower ranks=", i);
    }
    for (int i = 0; i < t->o->ranks; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < t->o->ranks; i++)
        if (rank_thread[i].err != OK)
            return err_fail(rank_thread[i].err, "rank %d: %s", i, rank_thread[i].text);
    *out = rank_thread[0].out;
    for (int i = 0; i < t->o->ranks; i++) {
        rank_close(&rank_thread[i].at_work);
        comm_close(rank_thread[i].comm);
        team_close(rank_thread[i].team);
        arena_close(&rank_thread[i].arena);
    }
    comm_world_stop(world);
    return OK;
}

/* *grows_s: time that the slow network adds to a step. */
static Err measure(const Options *o, int zero, bool in_order, double *grows_s)
{
    Trial t = {o, zero, in_order, 0};
    Outcome fast, slow;
    TRY(run_trial(&t, &fast));
    if (fast.largest_bytes == 0 || fast.forward_s <= 0)
        return err_fail(ERR_CHECK, "zero %d: no unit sent a byte, or none was run", zero);
    t.slow_Bps = (double)fast.largest_bytes / fast.forward_s;
    TRY(run_trial(&t, &slow));
    *grows_s = slow.step_s - fast.step_s;
    printf("%-4d  %-7s  %9.1f  %9.2f  %9.1f  %9.1f", zero, in_order ? "off" : "on",
           1e3 * fast.step_s, 1e3 * fast.forward_s, 1e3 * slow.step_s, 1e3 * *grows_s);
    return OK;
}

static Err run(const Options *o, bool *holds)
{
    printf("gpt2, %d layers of width %d, %d x %d tokens on each of %d thread-ranks; ms\n",
           o->layers, o->width, MICROS, o->tokens, o->ranks);
    TRY(open_device(o->sleep_ms));
    printf("zero  overlap       step    forward  slow step      grows   of off\n");
    *holds = true;
    for (int zero = 0; zero <= 3; zero++) {
        double off_s, on_s;
        TRY(measure(o, zero, true, &off_s));
        printf("\n");
        TRY(measure(o, zero, false, &on_s));
        printf("  %6.0f%%\n", 100 * on_s / off_s);
        fflush(stdout);
        *holds = *holds && on_s <= MAX_SHARE * off_s;
    }
    return OK;
}

static bool read_option(const char *word, Options *o)
{
    const struct {
        const char *key;
        int *value;
        int least, most;
    } table[] = {{"ranks=", &o->ranks, 2, MAX_RANKS}, {"layers=", &o->layers, 1, 1000},
                 {"width=", &o->width, 32, 8192},     {"tokens=", &o->tokens, 1, 1024},
                 {"steps=", &o->steps, 1, MAX_STEPS}, {"sleep_ms=", &o->sleep_ms, 0, 1000}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strncmp(word, table[i].key, strlen(table[i].key)) != 0) continue;
        *table[i].value = atoi(word + strlen(table[i].key));
        return *table[i].value >= table[i].least && *table[i].value <= table[i].most;
    }
    return false;
}

int main(int argc, char **argv)
{
    Options o = {.ranks = 2, .layers = 12, .width = 128, .tokens = 32, .steps = 2, .sleep_ms = 6};
    bool holds;
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &o)) {
            fprintf(stderr,
                    "bench/overlap: \"%s\": there are ranks= (2 to %d) layers= width= (a multiple "
                    "of 32) tokens= (to 1024) steps= sleep_ms=\n",
                    argv[i], MAX_RANKS);
            return 2;
        }
    cores_find(&o.cores);
    if (run(&o, &holds) != OK) {
        fprintf(stderr, "bench/overlap: %s\n", err_text());
        return 1;
    }
    printf("with overlap a step grows by at most %.0f%% of what it grows without: %s\n",
           100 * MAX_SHARE, holds ? "yes" : "NO");
    return !holds;
}
