/* job_threads.c -- a thread for each rank of a job: compiles, runs steps, records their times. */
#define _GNU_SOURCE
#include "support/job_threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "comm/local/local.h"
#include "support/inputs.h"

typedef struct {
    const JobThreads *of;
    CommWorld *world;
    int rank, ranks;
    double *seconds;
    Err err;
    char text[1024]; /* of err */
    Job job;
    Rank at_work;
    RankTrace trace;
    Arena arena;
    Comm *comm;
    Team *team;
} RankThread;

enum { MAX_EVENTS = 1 << 16 };

static Err run_rank(RankThread *l)
{
    const JobThreads *t = l->of;
    JobSettings set = t->job;
    Cores cores;
    StepResult result;
    set.parallel.rank = l->rank;
    TRY(job_compile(&set, &l->arena, &l->job));
    cores_find(&cores);
    TRY(team_open_on(&l->team, t->threads, &cores, l->ranks, l->rank));
    if (t->stepped) TRY(ARENA_NEW(&l->arena, MAX_EVENTS, &l->trace.at));
    l->trace.cap = MAX_EVENTS;
    TRY(rank_open(&l->at_work, &(RankSettings){.program = &l->job.linked,
                                               .trace = t->stepped ? &l->trace : NULL,
                                               .device = t->device,
                                               .comm = l->comm,
                                               .team = l->team,
                                               .optim = set.optim}));
    TRY(rank_init_weights(&l->at_work, 1));
    inputs_fill(&l->at_work, set.batch.sequences, set.batch.seq_len, set.config->vocab);
    for (int i = 0; i <= t->steps; i++) {
        const double start_s = now_s();
        l->trace.n = 0;
        TRY(rank_step(&l->at_work, &(StepSettings){.step = i + 1, .lr = 1e-4}, &result));
        if (i > 0 && l->rank == 0) l->seconds[i - 1] = now_s() - start_s;
        if (t->stepped) t->stepped(t->context, i, &l->job, &l->trace, comm_recorder(l->comm));
    }
    return comm_idle(l->comm);
}

static void *rank_main(void *rank_thread)
{
    RankThread *l = rank_thread;
    const CommSettings set = {.rank = l->rank,
                              .ranks = l->ranks,
                              .in_flight = 128,
                              .records = 1024,
                              .timeout_s = 120,
                              .delay_Bps = l->of->delay_Bps,
                              .delay_noticed = l->of->delay_noticed};
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* nanoseconds: sleeps end on time */
    if (l->of->delay_Bps > 0 || l->of->real_time)    /* without the right to it, nothing changes */
        pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){1});
    l->err = arena_open(&l->arena, "bench", ARENA_PLENTY);
    if (l->err == OK) l->err = comm_join(l->world, &l->arena, &set, &l->comm);
    if (l->err == OK) l->err = run_rank(l);
    if (l->err == OK) return NULL;
    snprintf(l->text, sizeof l->text, "%s", err_text());
    if (l->comm) comm_abort(l->comm, l->err, l->text);
    return NULL;
}

/* A run that fails does not clean up: the program ends. */
static Err run_threads(RankThread *l, int n)
{
    pthread_t thread[MAX_JOB_THREADS];
    for (int i = 0; i < n; i++)
        if (pthread_create(&thread[i], NULL, rank_main, &l[i]) != 0)
            return err_fail(ERR_NOMEM, "thread %d cannot start", i);
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++)
        if (l[i].err != OK) return err_fail(l[i].err, "rank %d: %s", i, l[i].text);
    for (int i = 0; i < n; i++) {
        rank_close(&l[i].at_work);
        comm_close(l[i].comm);
        team_close(l[i].team);
        arena_close(&l[i].arena);
    }
    return OK;
}

Err job_threads_run(const JobThreads *t, double *seconds)
{
    Mesh mesh;
    CommWorld *world;
    TRY(job_mesh(&t->job, &mesh));
    if (mesh.world > MAX_JOB_THREADS)
        return err_fail(ERR_CONFIG, "%d ranks; at most %d", mesh.world, MAX_JOB_THREADS);
    RankThread *l = calloc((size_t)mesh.world, sizeof *l);
    if (!l) return err_fail(ERR_NOMEM, "no memory for %d ranks", mesh.world);
    TRY(local_start(mesh.world, &world));
    for (int i = 0; i < mesh.world; i++)
        l[i] = (RankThread){
            .of = t, .world = world, .rank = i, .ranks = mesh.world, .seconds = seconds};
    const Err err = run_threads(l, mesh.world);
    if (err != OK) return err;
    comm_world_stop(world);
    free(l);
    return OK;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double median_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* ---- the device whose GEMMs sleep ---- */

static const Device *inner_device;
static double inner_flops_per_s;
static Device device_sleepy;

static void sleep_until(double at_s)
{
    const struct timespec at = {(time_t)at_s, (long)(1e9 * (at_s - (double)(time_t)at_s))};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) continue;
}

static double gemm_flops(const Call *c)
{
    const Tensor *a = &c->in[0], *out = &c->out[0];
    const int64_t m = out->n[0], k = c->attr.gemm.ta ? a->n[0] : a->n[1];
    return 2.0 * (double)m * (double)out->n[1] * (double)k;
}

/* A GEMM that is called soon after the one before it starts at that one's end: the time between
 * the two is that of small kernels and of a late wake-up, not of a wait for another rank. */
static const double WAKE_UP_S = 0.5e-3;
static _Thread_local double free_s;

static Err run_sleepy(KernelId id, const Call *c)
{
    const double now = now_s(), start_s = now - free_s < WAKE_UP_S ? free_s : now;
    TRY(inner_device->kernel[id](c));
    free_s = start_s + gemm_flops(c) / inner_flops_per_s;
    sleep_until(free_s);
    return OK;
}

#define SLEEPY(id)                                                                                 \
    static Err sleepy_##id(const Call *c) { return run_sleepy(KERNEL_##id, c); }
SLEEPY(gemm)
SLEEPY(gemm_add)
SLEEPY(gemm_gelu)
SLEEPY(gemm_dgelu)
SLEEPY(gemm_dswiglu)
#undef SLEEPY

const Device *sleepy_device(const Device *inner, double flops_per_s)
{
    inner_device = inner;
    inner_flops_per_s = flops_per_s;
    device_sleepy = *inner;
    device_sleepy.kernel[KERNEL_gemm] = sleepy_gemm;
    device_sleepy.kernel[KERNEL_gemm_add] = sleepy_gemm_add;
    device_sleepy.kernel[KERNEL_gemm_gelu] = sleepy_gemm_gelu;
    device_sleepy.kernel[KERNEL_gemm_dgelu] = sleepy_gemm_dgelu;
    device_sleepy.kernel[KERNEL_gemm_dswiglu] = sleepy_gemm_dswiglu;
    return &device_sleepy;
}
