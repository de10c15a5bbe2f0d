/* pipeline.c -- the measured step of a pipeline against the player's prediction.
 *
 *     build/release/bench/pipeline        gpt2-124m, 2 stages of 1 thread, 8 micro-batches, 1f1b
 *     build/release/bench/pipeline schedule=zbh1 stages=2 seq_len=512
 *
 * Costs of a chunk's F, I, W and B are measured while all stages run, and the player walks the same
 * lists with them. The player does not model transfers and shared
 * cores. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "schedule/play.h"
#include "support/adamw.h"
#include "support/clock.h"
#include "job/job.h"
#include "world/world.h"

enum { EVENTS = 1 << 18, MAX_STAGES = 16, MAX_UNITS = 512 };

typedef struct {
    const char *model, *schedule;
    int64_t seq_len;
    int stages, micros, steps;
    Cores cores;
} Options;

/* Measurements of all ranks. */
typedef struct {
    const Options *o;
    const Device *device;
    double cost[MAX_UNITS][N_PHASES]; /* seconds of a RUN; each unit is on one rank */
    double end_s[MAX_STAGES];         /* of norm and updates */
    double step_s;
} Bench;

static void fill_inputs(Rank *r, int micro, const Options *o, int32_t vocab)
{
    for (int32_t i = 0; i < o->seq_len; i++) {
        const uint64_t bits = (uint64_t)(micro * o->seq_len + i + 1) * 6364136223846793005u;
        const int32_t range[4] = {0, i + 1, 0, 0};
        ((int32_t *)rank_input(r, micro, INPUT_TOKENS).data)[i] =
            (int32_t)((bits >> 33) % (uint64_t)vocab);
        ((int32_t *)rank_input(r, micro, INPUT_TARGETS).data)[i] =
            (int32_t)((bits >> 20) % (uint64_t)vocab);
        ((int32_t *)rank_input(r, micro, INPUT_POSITIONS).data)[i] = i;
        ((float *)rank_input(r, micro, INPUT_WEIGHTS).data)[i] = 1;
        memcpy((int32_t *)rank_input(r, micro, INPUT_RANGES).data + 4 * i, range, sizeof range);
    }
}

static Err compile(WorldRank *w, const Bench *b, Job *job)
{
    const Options *o = b->o;
    ModelConfig *config;
    TRY(ARENA_NEW(w->arena, 1, &config));
    TRY(model_config_load(o->model, NULL, 0, w->arena, config));
    const JobSettings set = {
        .kind = JOB_STEP,
        .config = config,
        .dtype = F32,
        .batch = {1, o->seq_len},
        .micros = o->micros,
        .schedule = o->schedule,
        .optim = bench_adamw,
        .parallel = {
            .mesh = {.pp = o->stages}, .rank = w->rank, .schedule = o->schedule, .split = "even"}};
    return job_compile(&set, w->arena, job);
}

/* Sums the computing time by unit and phase; waits are excluded. */
static void add_events(Bench *b, const RankTrace *t, int rank)
{
    for (int64_t i = 0; i < t->n; i++) {
        const TraceEvent *e = &t->at[i];
        const double s = (e->end_s - e->begin_s) / b->o->steps;
        if (e->action == A_NORM || e->action == A_UPDATE) b->end_s[rank] += s;
        if (e->action != A_RUN || e->instr < 0 || e->op == OP_wait) continue;
        b->cost[e->unit][e->phase] += s / b->o->micros;
    }
}

static Err time_steps(Rank *rank, Bench *b, WorldRank *w)
{
    double total = 0;
    for (int i = 0; i <= b->o->steps; i++) { /* the first touches all memory */
        StepResult result;
        if (i == 1) rank->settings.trace->n = 0;
        TRY(world_agree(w, OK)); /* all start together */
        const double start = now_s();
        TRY(rank_step(rank, &(StepSettings){.step = i + 1, .lr = 1e-4}, &result));
        if (i > 0) total += now_s() - start;
    }
    if (w->rank == 0) b->step_s = total / b->o->steps;
    add_events(b, rank->settings.trace, w->rank);
    return OK;
}

static Err run_rank(WorldRank *w, void *work)
{
    Bench *b = work;
    Rank rank = {0};
    Team *team = NULL;
    Job *job;
    RankTrace trace = {.cap = EVENTS};
    TRY(ARENA_NEW(w->arena, 1, &job));
    TRY(world_agree(w, compile(w, b, job)));
    TRY(ARENA_NEW(w->arena, EVENTS, &trace.at));
    TRY(team_open_on(&team, 1, &b->o->cores, b->o->stages, w->rank));
    const RankSettings set = {.program = &job->linked,
                              .device = b->device,
                              .comm = w->comm,
                              .team = team,
                              .trace = &trace,
                              .optim = job->settings.optim};
    Err err = world_agree(w, rank_open(&rank, &set));
    if (err == OK) err = rank_init_weights(&rank, 1);
    for (int m = 0; m < b->o->micros && err == OK; m++)
        fill_inputs(&rank, m, b->o, (int32_t)job->settings.config->vocab);
    if (err == OK) err = time_steps(&rank, b, w);
    if (err == OK && trace.missed) err = err_fail(ERR_CHECK, "too many events; fewer steps");
    world_leave(w, err);
    rank_close(&rank);
    team_close(team);
    return err;
}

/* Plays the schedule with the measured costs of its chunks. */
static Err play(Bench *b, Arena *arena)
{
    WorldRank me = {.arena = arena};
    Job *job;
    Play p;
    double *cost, end_s = 0;
    TRY(ARENA_NEW(arena, 1, &job));
    TRY(compile(&me, b, job));
    const Schedule *s = &job->chunks;
    TRY(ARENA_NEW(arena, s->chunks * N_PHASES, &cost));
    for (int c = 0; c < s->chunks; c++)
        for (int u = s->first_unit[c]; u < s->first_unit[c + 1]; u++)
            for (int k = 0; k < N_PHASES; k++) cost[c * N_PHASES + k] += b->cost[u][k];
    TRY(schedule_play(s, &(PlayCosts){.cost = cost}, arena, &p));
    for (int r = 0; r < b->o->stages; r++)
        if (b->end_s[r] > end_s) end_s = b->end_s[r];
    printf("played: %.0f ms of runs, %.0f%% of it waiting, and %.0f ms of norm and updates\n",
           1e3 * p.makespan, 100 * p.idle, 1e3 * end_s);
    printf("measured: %.0f ms a step, %+.1f%% of what was played\n", 1e3 * b->step_s,
           100 * (b->step_s / (p.makespan + end_s) - 1));
    return OK;
}

static Err run(const Options *o)
{
    static Bench b;
    Arena arena;
    b.o = o;
    TRY(device_cpu_open(NULL, &b.device));
    TRY(arena_open(&arena, "pipeline", ARENA_PLENTY));
    printf("%s, f32, %d micro-batches of %lld tokens, %s on %d stages of 1 thread\n%s\n", o->model,
           o->micros, (long long)o->seq_len, o->schedule, o->stages,
           device_cpu_text((char[CPU_TEXT_BYTES]){0}));
    const WorldSettings world = {.ranks = o->stages,
                                 .in_flight = 64,
                                 .records = 64,
                                 .timeout_s = 600,
                                 .body = run_rank,
                                 .work = &b};
    TRY(world_run(&world));
    TRY(play(&b, &arena));
    arena_close(&arena);
    return OK;
}

static bool read_option(const char *word, Options *o)
{
    const char *value = strchr(word, '=');
    if (!value) return false;
    if (strncmp(word, "model=", 6) == 0) return o->model = value + 1, true;
    if (strncmp(word, "schedule=", 9) == 0) return o->schedule = value + 1, true;
    if (strncmp(word, "seq_len=", 8) == 0) return o->seq_len = atoll(value + 1), true;
    if (strncmp(word, "stages=", 7) == 0) return o->stages = atoi(value + 1), true;
    if (strncmp(word, "micros=", 7) == 0) return o->micros = atoi(value + 1), true;
    if (strncmp(word, "steps=", 6) == 0) return o->steps = atoi(value + 1), true;
    return false;
}

int main(int argc, char **argv)
{
    Options o = {"gpt2-124m", "1f1b", 256, 2, 8, 2, {0}};
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &o) || o.stages < 1 || o.stages > MAX_STAGES) {
            fprintf(stderr,
                    "bench/pipeline: \"%s\": there are model= schedule= seq_len= stages=1..%d "
                    "micros= steps=\n",
                    argv[i], MAX_STAGES);
            return 2;
        }
    cores_find(&o.cores);
    if (run(&o) == OK) return 0;
    fprintf(stderr, "bench/pipeline: %s\n", err_text());
    return 1;
}
