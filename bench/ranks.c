/* ranks.c -- the same step on one rank with many threads and on many ranks with one thread each.
 *
 *     build/release/bench/ranks         gpt2-124m, 4 x 1,024 tokens, f32: 2 ranks and 2 threads
 *     build/release/bench/ranks model=llama-tiny ranks=64 sequences=64 seq_len=32 zero=3
 *     build/release/bench/ranks model=bench/small_moe.json sequences=8 seq_len=256 ep=2
 *
 * Both alternate in one process, so that other load on the machine affects both. Data parallel
 * ranks share the sequences; the time includes their transfers. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "support/adamw.h"
#include "support/clock.h"
#include "job/batch.h"
#include "world/world.h"

typedef struct {
    const char *model;
    int64_t sequences, seq_len;
    int ranks, threads, zero, ep, steps, turns;
    double expert_rows; /* as parallel.expert_rows */
} Options;

/* One configuration of the step. */
typedef struct {
    const Options *o;
    const Device *device;
    Cores cores;
    int ranks, threads;
    double step_s; /* best step of this turn */
    double cpu_s;  /* CPU time per step, of all threads; less sensitive to other load */
    double loss;
    int64_t sent;
} RunConfig;

static void fill_inputs(Rank *r, const Job *job, const Options *o)
{
    const BatchSplit split = batch_split(job);
    const BatchPart part = batch_part(&split, o->sequences, 0);
    for (int64_t i = 0; i < part.n * o->seq_len; i++) {
        const int64_t at = part.first * o->seq_len + i, first = i - i % o->seq_len;
        const uint64_t bits = (uint64_t)(at + 1) * 6364136223846793005u;
        const int32_t vocab = (int32_t)job->settings.config->vocab;
        ((int32_t *)rank_input(r, 0, INPUT_TOKENS).data)[i] =
            (int32_t)((bits >> 33) % (uint64_t)vocab);
        ((int32_t *)rank_input(r, 0, INPUT_TARGETS).data)[i] =
            (int32_t)((bits >> 20) % (uint64_t)vocab);
        ((int32_t *)rank_input(r, 0, INPUT_POSITIONS).data)[i] = (int32_t)(i - first);
        ((float *)rank_input(r, 0, INPUT_WEIGHTS).data)[i] = 1;
        const int32_t range[4] = {(int32_t)first, (int32_t)i + 1, 0, 0};
        memcpy((int32_t *)rank_input(r, 0, INPUT_RANGES).data + 4 * i, range, sizeof range);
    }
    rank_set_rows(r, 0, part.n * o->seq_len);
}

static Err compile(WorldRank *w, const RunConfig *config, Job *job)
{
    const Options *o = config->o;
    ModelConfig *model;
    TRY(ARENA_NEW(w->arena, 1, &model));
    TRY(model_config_load(o->model, NULL, 0, w->arena, model));
    const int64_t each = (o->sequences + config->ranks - 1) / config->ranks;
    const JobSettings set = {
        .kind = JOB_STEP,
        .config = model,
        .dtype = F32,
        .batch = {each, o->seq_len},
        .micros = 1,
        .schedule = "1f1b",
        .optim = bench_adamw,
        .parallel = {.mesh = {.dp_shard = config->ranks, .ep = config->ranks > 1 ? o->ep : 1},
                     .expert_rows = o->expert_rows,
                     .rank = w->rank,
                     .zero = config->ranks > 1 ? o->zero : 0}};
    return job_compile(&set, w->arena, job);
}

static Err time_steps(Rank *rank, RunConfig *config, WorldRank *w)
{
    double best = 1e30, cpu_s = 0;
    for (int i = 0; i <= config->o->steps; i++) { /* the first touches all memory */
        StepResult result;
        const double start = now_s(), cpu_start = clock_s(CLOCK_PROCESS_CPUTIME_ID);
        TRY(rank_step(rank, &(StepSettings){.step = i + 1, .lr = 1e-4}, &result));
        const double took = now_s() - start;
        if (i > 0 && took < best) best = took;
        if (i > 0) cpu_s += clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;
        if (w->rank == 0) config->loss = result.loss;
    }
    if (w->rank == 0) config->step_s = best;
    if (w->rank == 0) config->cpu_s = cpu_s / config->o->steps;
    return OK;
}

static Err run_rank(WorldRank *w, void *work)
{
    RunConfig *config = work;
    Rank rank = {0};
    Team *team = NULL;
    Job *job;
    TRY(ARENA_NEW(w->arena, 1, &job));
    TRY(world_agree(w, compile(w, config, job)));
    TRY(team_open_on(&team, config->threads, &config->cores, config->ranks, w->rank));
    const RankSettings set = {.program = &job->linked,
                              .device = config->device,
                              .comm = w->comm,
                              .team = team,
                              .optim = job->settings.optim};
    Err err = world_agree(w, rank_open(&rank, &set));
    if (err == OK) err = rank_init_weights(&rank, 1);
    if (err == OK) fill_inputs(&rank, job, config->o);
    if (err == OK) err = time_steps(&rank, config, w);
    world_leave(w, err);
    rank_close(&rank);
    team_close(team);
    return err;
}

static Err take_turn(RunConfig *config)
{
    const WorldSettings world = {.ranks = config->ranks,
                                 .in_flight = 64,
                                 .records = 64,
                                 .timeout_s = 600,
                                 .body = run_rank,
                                 .work = config};
    TRY(world_run(&world));
    const double tokens = (double)(config->o->sequences * config->o->seq_len);
    printf("%2d ranks x %d threads: %7.0f ms, %7.0f tokens/s, loss %.5f, %.2f s of cores\n",
           config->ranks, config->threads, 1e3 * config->step_s, tokens / config->step_s,
           config->loss, config->cpu_s);
    fflush(stdout);
    return OK;
}

static Err run(const Options *o)
{
    RunConfig one = {.o = o, .ranks = 1, .threads = o->threads},
              many = {.o = o, .ranks = o->ranks, .threads = 1};
    double best[2] = {1e30, 1e30};
    TRY(device_cpu_open(NULL, &one.device));
    many.device = one.device;
    cores_find(&one.cores);
    many.cores = one.cores;
    printf("%s, f32, %lld x %lld tokens a step; dp=%d zero=%d ep=%d and one rank\n%s\n", o->model,
           (long long)o->sequences, (long long)o->seq_len, o->ranks, o->zero, o->ep,
           device_cpu_text((char[CPU_TEXT_BYTES]){0}));
    for (int turn = 0; turn < o->turns; turn++) {
        TRY(take_turn(&one));
        TRY(take_turn(&many));
        if (one.step_s < best[0]) best[0] = one.step_s;
        if (many.step_s < best[1]) best[1] = many.step_s;
    }
    printf("best of each: %d ranks run at %.3f of the speed of one with %d threads\n", o->ranks,
           best[0] / best[1], o->threads);
    return OK;
}

static bool read_option(const char *word, Options *o)
{
    const struct {
        const char *key;
        int *value;
    } number[] = {{"ranks=", &o->ranks}, {"threads=", &o->threads}, {"zero=", &o->zero},
                  {"ep=", &o->ep},       {"steps=", &o->steps},     {"turns=", &o->turns}};
    const char *value = strchr(word, '=');
    if (!value) return false;
    if (strncmp(word, "model=", 6) == 0) return o->model = value + 1, true;
    if (strncmp(word, "sequences=", 10) == 0) return o->sequences = atoll(value + 1), true;
    if (strncmp(word, "seq_len=", 8) == 0) return o->seq_len = atoll(value + 1), true;
    if (strncmp(word, "expert_rows=", 12) == 0) return o->expert_rows = atof(value + 1), true;
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (strncmp(word, number[i].key, strlen(number[i].key)) == 0)
            return *number[i].value = atoi(value + 1), true;
    return false;
}

int main(int argc, char **argv)
{
    Options o = {.model = "gpt2-124m",
                 .sequences = 4,
                 .seq_len = 1024,
                 .ranks = 2,
                 .threads = 2,
                 .zero = 1,
                 .ep = 1,
                 .expert_rows = 2,
                 .steps = 2,
                 .turns = 2};
    for (int i = 1; i < argc; i++)
        if (!read_option(argv[i], &o)) {
            fprintf(stderr,
                    "bench/ranks: \"%s\": there are model= sequences= seq_len= ranks= threads= "
                    "zero= ep= expert_rows= steps= turns=\n",
                    argv[i]);
            return 2;
        }
    if (run(&o) == OK) return 0;
    fprintf(stderr, "bench/ranks: %s\n", err_text());
    return 1;
}
