/* verify.c -- `sheaf verify`: compares the model of a run under several layouts with one rank.
 *
 *     sheaf verify run.yaml [key=value ...] [--ranks N] [--layouts "tp=2 zero=1; dp=4"] [--full]
 *                  [--plan FILE] [--on-device] [--json]
 *     mpirun -n 4 sheaf verify run.yaml ...                    layouts of 4 ranks, as processes
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
#include "cli/verify/verify.h"
#include "cli/worker.h"

enum { MAX_RANKS = 64, MAX_STAGES = 4 };

typedef struct {
    const char *ranks, *layouts;
    bool json, full, on_device;
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

/* `processes`: those that were launched, if there are several. */
static Err read_ranks(const char *text, int processes, int *out)
{
    char *end;
    const long ranks = text ? strtol(text, &end, 10) : processes > 1 ? processes : 4;
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
    own.tp_weights = v->tp_weights;
    int *n = &v->n_layouts;
    int ranks, n_cover;
    if (want->layouts && v->units)
        return err_fail(ERR_CONFIG,
                        "--layouts with values of keys for single layers: they are verified with "
                        "the layout of the run only; leave out --layouts, or the rules");
    if (want->layouts) return read_layouts(want->layouts, a, out, n);
    TRY(read_ranks(want->ranks, v->launch.ranks, &ranks));
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
    const int own_ranks = layout_ranks(&own), others = v->launch.by.ranks;
    if (own_ranks > MAX_RANKS || (others > 1 && own_ranks != others)) v->own_left_out = own_ranks;
    if ((own_ranks > 1 || own.units) && own_ranks <= MAX_RANKS) (*out)[(*n)++] = own;
    memcpy(*out + *n, cover, (size_t)n_cover * sizeof *cover);
    *n += n_cover;
    return OK;
}

/* Layouts of as many ranks as there are processes. Others of the user's list are refused, those of
 * a covering set are counted. */
static Err keep_launched(const VerifyFlags *want, Verification *v)
{
    const MpiLaunch *by = &v->launch.by;
    int kept = 0;
    if (by->ranks == 1) return OK;
    for (int i = 0; i < v->n_layouts; i++) {
        char words[LAYOUT_TEXT_BYTES];
        const int ranks = layout_ranks(&v->layout[i]);
        if (want->layouts && ranks != by->ranks)
            return err_fail(
                ERR_CONFIG,
                "--layouts: \"%s\" has %d rank%s, and %s started %d processes; start %d, "
                "or verify it without %s, where ranks are threads",
                layout_words(&v->layout[i], words), ranks, ranks == 1 ? "" : "s", by->by, by->ranks,
                ranks, by->by);
        if (ranks == by->ranks) v->layout[kept++] = v->layout[i];
    }
    v->left_out = v->n_layouts - kept;
    v->n_layouts = kept;
    if (kept > 0) return OK;
    return err_fail(ERR_CONFIG,
                    "verify: none of the %d layouts has %d ranks, as many as %s started processes; "
                    "give some with --layouts, or a larger set with --ranks N",
                    v->left_out, by->ranks, by->by);
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
    const bool processes = v->launch.comm_world != NULL;
    if (processes || c->run_comm == COMM_BY_NCCL)
        machine_set_cuda(MAX_RANKS, processes ? 1 : MAX_RANKS);
    TRY(machine_device(c, &v->device));
    v->transport = config_transport(c, v->device, processes);
    if (want->on_device && job.dtype == F64)
        return err_fail(ERR_CONFIG,
                        "--on-device: a run in f64 is compared on the device ref alone; leave it "
                        "out, or set precision.compute=f32");
    v->shrunken = !want->full && verify_shrink(&v->model, &v->trial_model);
    if (!v->shrunken) v->trial_model = v->model;
    if (job.parallel.units) TRY(shrink_units(c, &job, v));
    v->tp_weights = job.parallel.tp_weights; /* of the model as it is, also by a search */
    v->set = (VerifySettings){
        .config = &v->trial_model,
        .batch = {2, trial_length(v, job.batch.seq_len)},
        .device = v->device,
        .transport = processes || c->run_comm != COMM_BY_AUTO ? &v->transport : NULL,
        .processes = v->launch.comm_world,
        .own_order = v->device->runtime && (processes || c->run_comm == COMM_BY_NCCL),
        .on_device_only = want->on_device,
        .dtype = job.dtype,
        .compile = job.compile,
        .stage = v->stage,
        .n_stage_rules = job.n_stage_rules,
        .origin = job.origin,
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
    const bool is_first = v->launch.rank == 0;
    if (is_first && !want->json) verify_print_head(v);
    for (int i = 0; i < v->n_layouts; i++) {
        VerifyLine *line = &v->line[v->n_lines];
        int n;
        TRY(verify_layout(&v->set, &v->layout[i], temp, line, &n));
        v->n_lines += n;
        for (int k = 0; k < n; k++) v->failed += !line[k].ok;
        if (is_first && !want->json) verify_print_lines(line, n);
    }
    if (!is_first) return OK;
    return want->json ? verify_json(v) : (verify_print_summary(v), OK);
}

static Err verify_request(int argc, char **argv, Arena *arena, Arena *temp, Verification *v)
{
    VerifyFlags want = {0};
    Args args;
    const Flag flags[] = {
        {"--ranks", &want.ranks, NULL},         {"--layouts", &want.layouts, NULL},
        {"--plan", &args.plan, NULL},           {"--full", NULL, &want.full},
        {"--on-device", NULL, &want.on_device}, {"--json", NULL, &want.json}};
    Config *config;
    TRY(args_split(argc, argv, flags, sizeof flags / sizeof *flags, arena, &args));
    TRY(ARENA_NEW(arena, 1, &config));
    TRY(args_config(&args, arena, config));
    TRY(config_model(config, arena, &v->model));
    TRY(verify_settings(config, &want, v));
    TRY(choose_layouts(config, &want, arena, v));
    TRY(keep_launched(&want, v));
    set_schedules(config, v);
    TRY(ARENA_NEW(arena, v->n_layouts * MAX_VERIFY_LINES, &v->line));
    return run_all(v, &want, temp);
}

static int verify(int argc, char **argv, FlightRecorder *recorder)
{
    static Verification v; /* large */
    Arena arena = {0}, temp = {0};
    v = (Verification){0};
    Err err = launch_open(&v.launch, recorder); /* every layout opens a world of its own */
    if (err == OK) err = arena_open(&arena, "verify", ARENA_PLENTY);
    if (err == OK) err = arena_open(&temp, "trials", ARENA_PLENTY);
    if (err == OK) err = verify_request(argc, argv, &arena, &temp, &v);
    int status = err == OK ? (v.failed ? 1 : 0) : err == ERR_CONFIG ? 2 : 1;
    if (err != OK && v.launch.rank == 0) status = cli_fail(err);
    status = worker_flush(status);
    launch_close(&v.launch); /* ends the others, if this one failed alone */
    arena_close(&temp);
    arena_close(&arena);
    return status;
}

int verb_verify(int argc, char **argv) { return worker_run(verify, argc, argv, NULL, NULL); }
