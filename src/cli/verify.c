/* verify.c -- `sheaf verify`: compares the model of a run under several layouts with one rank.
 *
 *     sheaf verify run.yaml [key=value ...] [--ranks N] [--layouts "tp=2 zero=1; dp=4"] [--full]
 *                  [--plan FILE] [--json]
 *
 * Without --layouts it takes the layout of the run and a set that covers every pair of options on
 * at most N ranks. Exit status 0: all layouts compute the same model; 1: some deviate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/config/mesh.h"
#include "cli/machine.h"
#include "cli/verbs.h"
#include "cli/verify.h"
#include "cli/worker.h"
#include "comm/mpi.h"

enum { MAX_RANKS = 64, MAX_STAGES = 4 };

typedef struct {
    const char *ranks, *layouts;
    bool json, full;
} VerifyFlags;

static Err read_layouts(const char *list, Arena *a, ParallelSettings **out, int *n)
{
    int most = 1;
    for (const char *c = list; *c; c++) most += *c == ';';
    TRY(ARENA_NEW(a, most, out));
    *n = 0;
    for (const char *at = list; *at;) {
        const size_t length = strcspn(at, ";");
        ParallelSettings *one = &(*out)[*n];
        if (strspn(at, " \t\n,") >= length) { /* nothing between two semicolons */
            at += length + (at[length] == ';');
            continue;
        }
        TRY(layout_parse(at, length, one));
        if (layout_ranks(one) > MAX_RANKS)
            return err_fail(
                ERR_CONFIG,
                "--layouts: \"%.*s\" has %d ranks; verify runs ranks as threads, at most "
                "%d",
                (int)length, at, layout_ranks(one), MAX_RANKS);
        (*n)++;
        at += length + (at[length] == ';');
    }
    if (*n == 0) return err_fail(ERR_CONFIG, "--layouts: no layout; give some, as \"tp=2; dp=4\"");
    return OK;
}

static Err read_ranks(const char *text, int *out)
{
    char *end;
    const long ranks = text ? strtol(text, &end, 10) : 4;
    if (text && (*end || end == text || ranks < 2 || ranks > 16))
        return err_fail(ERR_CONFIG,
                        "--ranks %s: must be a number from 2 to 16; --layouts can have up to %d",
                        text, MAX_RANKS);
    *out = (int)ranks;
    return OK;
}

/* The layout of the run first, then the covering set. */
static Err choose_layouts(const Config *c, const VerifyFlags *want, Arena *a, Verification *v)
{
    ParallelSettings *cover, own = config_parallel(c), **out = &v->layout;
    own.units = v->units;
    int *n = &v->n_layouts;
    int ranks, n_cover;
    if (want->layouts && v->units)
        return err_fail(ERR_CONFIG,
                        "--layouts with values of keys for single layers: they are verified with "
                        "the layout of the run only; leave out --layouts, or the rules");
    if (want->layouts) return read_layouts(want->layouts, a, out, n);
    TRY(read_ranks(want->ranks, &ranks));
    const int units = (int)v->trial_model.n_layers + 2;
    const LayoutLimits limits = {.ranks = ranks,
                                 .stages = units < MAX_STAGES ? units : MAX_STAGES,
                                 .heads = v->trial_model.n_heads,
                                 .key_heads = v->trial_model.n_kv_heads,
                                 .strength = 2,
                                 .experts = v->trial_model.experts.n,
                                 .head_size = v->trial_model.head_size,
                                 .frames = v->trial_model.frames};
    TRY(layouts_covering(&limits, a, &cover, &n_cover));
    TRY(ARENA_NEW(a, n_cover + 1, out));
    *n = 0;
    if ((layout_ranks(&own) > 1 || own.units) && layout_ranks(&own) <= MAX_RANKS)
        (*out)[(*n)++] = own;
    memcpy(*out + *n, cover, (size_t)n_cover * sizeof *cover);
    *n += n_cover;
    return OK;
}

/* Layouts with pipeline stages and no schedule of their own get the run's. */
static void set_schedules(const Config *c, Verification *v)
{
    for (int i = 0; i < v->n_layouts; i++) {
        ParallelSettings *p = &v->layout[i];
        if (p->mesh.pp > 1 && !p->schedule) p->schedule = c->parallel_schedule;
    }
}

/* A layer for each run of layers with the same options, in a model that keeps at least two. */
static Err shrink_units(const Config *c, const JobSettings *job, Verification *v)
{
    const UnitOptions *all = job->parallel.units;
    const int layers = (int)v->model.n_layers;
    UnitOptions *units;
    int n = 0;
    TRY(ARENA_NEW(c->arena, layers + 2, &units));
    units[0] = all[0];
    for (int i = 1; i <= layers; i++)
        if (!v->shrunken || i == 1 || !job_same_options(&all[i], &all[i - 1])) units[++n] = all[i];
    if (n == 1 && layers > 1) units[++n] = all[1];
    units[n + 1] = all[layers + 1];
    v->trial_model.n_layers = n;
    v->units = units;
    return OK;
}

/* Tokens of a sequence of the trials. */
static int64_t trial_length(const Verification *v, int64_t seq_len)
{
    enum { SHORT = 12 };
    if (v->trial_model.frames) return v->trial_model.max_positions;
    return v->shrunken && seq_len > SHORT ? SHORT : seq_len;
}

/* A shrunken model with short sequences and blocks of 16 elements has all the seams of a large one,
 * and runs in seconds. */
static Err verify_settings(const Config *c, const VerifyFlags *want, Verification *v)
{
    JobSettings job;
    TRY(config_job(c, &v->model, &job));
    memcpy(v->stage, job.stage, sizeof v->stage);
    if (c->run_comm == COMM_BY_NCCL) machine_set_cuda(MAX_RANKS, MAX_RANKS);
    TRY(machine_device(c, &v->device));
    v->transport = config_transport(c, v->device, false);
    v->shrunken = !want->full && verify_shrink(&v->model, &v->trial_model);
    if (!v->shrunken) v->trial_model = v->model;
    if (job.parallel.units) TRY(shrink_units(c, &job, v));
    v->set = (VerifySettings){.config = &v->trial_model,
                              .batch = {2, trial_length(v, job.batch.seq_len)},
                              .device = v->device,
                              .transport = c->run_comm == COMM_BY_AUTO ? NULL : &v->transport,
                              .dtype = job.dtype,
                              .compile = job.compile,
                              .stage = v->stage,
                              .n_stage_rules = job.n_stage_rules,
                              .schedule = "1f1b",
                              .optim = job.optim,
                              .lr = c->optim_lr,
                              .seed = (uint64_t)c->run_seed,
                              .steps = 3,
                              .is_plain = job.dtype == F64};
    if (v->shrunken) v->set.optim.block = 16;
    return OK;
}

static Err run_all(Verification *v, const VerifyFlags *want, Arena *temp)
{
    if (!want->json) verify_print_head(v);
    for (int i = 0; i < v->n_layouts; i++) {
        VerifyLine *line = &v->line[v->n_lines];
        int n;
        TRY(verify_layout(&v->set, &v->layout[i], temp, line, &n));
        v->n_lines += n;
        for (int k = 0; k < n; k++) v->failed += !line[k].ok;
        if (!want->json) verify_print_lines(line, n);
    }
    return want->json ? verify_json(v) : (verify_print_summary(v), OK);
}

/* Refuses a launcher of several processes: each process would repeat the whole verification. */
static Err refuse_launcher(void)
{
    MpiLaunch by;
    if (!mpi_launched(getenv, &by) || by.ranks == 1) return OK;
    return err_fail(ERR_CONFIG,
                    "verify: %s started %d processes; verify runs its ranks as threads: start it "
                    "without %s",
                    by.by, by.ranks, by.by);
}

static Err verify_request(int argc, char **argv, Arena *arena, Arena *temp, int *failed)
{
    VerifyFlags want = {0};
    Args args;
    const Flag flags[] = {{"--ranks", &want.ranks, NULL},
                          {"--layouts", &want.layouts, NULL},
                          {"--plan", &args.plan, NULL},
                          {"--full", NULL, &want.full},
                          {"--json", NULL, &want.json}};
    Config *config;
    Verification *v;
    TRY(refuse_launcher());
    TRY(args_split(argc, argv, flags, sizeof flags / sizeof *flags, arena, &args));
    TRY(ARENA_NEW(arena, 1, &config));
    TRY(ARENA_NEW(arena, 1, &v));
    TRY(args_config(&args, arena, config));
    TRY(config_model(config, arena, &v->model));
    TRY(verify_settings(config, &want, v));
    TRY(choose_layouts(config, &want, arena, v));
    set_schedules(config, v);
    TRY(ARENA_NEW(arena, v->n_layouts * MAX_VERIFY_LINES, &v->line));
    TRY(run_all(v, &want, temp));
    *failed = v->failed;
    return OK;
}

static int verify(int argc, char **argv, FlightRecorder *recorder)
{
    Arena arena = {0}, temp = {0};
    (void)recorder; /* unused: every layout opens a world of its own */
    int failed = 0;
    Err err = arena_open(&arena, "verify", ARENA_PLENTY);
    if (err == OK) err = arena_open(&temp, "trials", ARENA_PLENTY);
    if (err == OK) err = verify_request(argc, argv, &arena, &temp, &failed);
    arena_close(&temp);
    arena_close(&arena);
    if (err != OK) return cli_fail(err);
    return worker_flush(failed ? 1 : 0);
}

int verb_verify(int argc, char **argv) { return worker_run(verify, argc, argv, NULL, NULL); }
