/* supervise.c -- the parent process that restarts a worker. */
#define _DEFAULT_SOURCE
#include "cli/supervise.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "cli/args.h"
#include "cli/config/job.h"
#include "cli/verbs.h"
#include "comm/mpi.h"
#include "state/folder.h"
#include "train/replicas.h"

enum { MAX_RESTARTS = 1000000, WORD_BYTES = 48 };

/* Pauses before a restart. The pause doubles while restarts make no progress: 20 of them outlast a
 * file server that is away for ten minutes. */
#define FIRST_PAUSE_S 0.1
#define LONGEST_PAUSE_S 60.0

/* Arguments that the supervisor sets; each has its own word. */
typedef enum {
    SET_FRESH,
    SET_DP,
    SET_DP_REPLICATE,
    SET_DP_SHARD,
    SET_RANKS,
    SET_CHECK_EVERY,
    N_SETTINGS
} SupervisorKey;

static const char *const set_key[N_SETTINGS] = {"run.fresh",     "mesh.dp",   "mesh.dp_replicate",
                                                "mesh.dp_shard", "run.ranks", "run.check_every"};

/* The last step in the metrics and the newest checkpoint of a run; 0: none. */
typedef struct {
    int64_t step, checkpoint;
} RunPosition;

typedef struct {
    Arena arena;
    int times;
    bool fewer;
    int argc; /* of the next worker */
    char **argv;
    char word[N_SETTINGS][WORD_BYTES];
    Config config;  /* of the next worker, with --fewer */
    bool unchecked; /* run.check_every was set to 0 for the next worker */
    RunPosition at;
    double pause_s; /* before the next worker */
    Relay relay;
} Supervisor;

/* ---- arguments of the next worker ---- */

static bool sets(const char *word, const char *key)
{
    const size_t length = strlen(key);
    return strncmp(word, key, length) == 0 && word[length] == '=';
}

/* Replaces every argument for the key by key=value. */
static void set_word(Supervisor *v, SupervisorKey key, const char *value)
{
    int n = 0;
    for (int i = 0; i < v->argc; i++)
        if (!sets(v->argv[i], set_key[key])) v->argv[n++] = v->argv[i];
    snprintf(v->word[key], WORD_BYTES, "%s=%s", set_key[key], value);
    v->argv[n++] = v->word[key];
    v->argv[v->argc = n] = NULL;
}

static void set_number(Supervisor *v, SupervisorKey key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    set_word(v, key, text);
}

/* *out is false if no two ranks hold the same weights. Compiled for a device without a driver: the
 * parent process must not open CUDA. */
static Err have_copies(const Config *config, Arena *arena, bool *out)
{
    Config *c;
    Job *job;
    ModelConfig *model;
    JobSettings set;
    TRY(ARENA_NEW(arena, 1, &c));
    TRY(ARENA_NEW(arena, 1, &job));
    TRY(ARENA_NEW(arena, 1, &model));
    *c = *config;
    c->run_device = config_precision(c)->storage == F64 ? DEVICE_REF : DEVICE_CPU;
    c->parallel_prepack = false;
    TRY(config_model(c, arena, model));
    TRY(config_job(c, model, &set));
    TRY(job_compile(&set, arena, job));
    *out = replicas_possible(&job->linked, (int)c->run_ranks, arena) == OK;
    return OK;
}

/* Sets run.check_every=0 if the remaining ranks have nothing to compare: the worker would refuse
 * it. Other errors are left to the worker, which reports them. */
static void set_check_every(Supervisor *v)
{
    Arena arena;
    bool copies = true;
    v->unchecked = false;
    if (v->config.run_check_every == 0 || arena_open(&arena, "copies", ARENA_PLENTY) != OK) return;
    v->unchecked = have_copies(&v->config, &arena, &copies) == OK && !copies;
    arena_close(&arena);
    if (!v->unchecked) return;
    v->config.run_check_every = 0;
    set_number(v, SET_CHECK_EVERY, 0);
}

/* Removes one data-parallel rank. All derived keys are set too, since the arguments may contain
 * them. */
static void set_fewer(Supervisor *v)
{
    Config *c = &v->config;
    const int64_t others = c->mesh_tp * c->mesh_cp * c->mesh_pp;
    const bool two = strcmp(c->origin[KEY_mesh_dp_replicate], "default") != 0 ||
                     strcmp(c->origin[KEY_mesh_dp_shard], "default") != 0;
    v->unchecked = false;
    if (c->mesh_dp < 2) return;
    if (!two) {
        c->mesh_dp_shard = --c->mesh_dp;
    } else {
        if (c->mesh_dp_replicate > 1)
            set_number(v, SET_DP_REPLICATE, --c->mesh_dp_replicate);
        else
            set_number(v, SET_DP_SHARD, --c->mesh_dp_shard);
        c->mesh_dp = c->mesh_dp_replicate * c->mesh_dp_shard;
    }
    c->run_ranks = c->mesh_dp * others;
    set_number(v, SET_DP, c->mesh_dp);
    set_number(v, SET_RANKS, c->run_ranks);
    set_check_every(v);
}

/* ---- progress of the run ---- */

static int64_t newest_checkpoint(Supervisor *v, const char *dir)
{
    char path[1100];
    Generation *list;
    int n = 0;
    const size_t mark = arena_mark(&v->arena);
    snprintf(path, sizeof path, "%s/checkpoints", dir);
    const int64_t step = folder_list(path, &v->arena, &list, &n) == OK && n > 0 ? list[0].step : 0;
    arena_rewind(&v->arena, mark);
    return step;
}

/* Returns the step of the last complete line of metrics.jsonl. */
static int64_t last_step(const char *dir)
{
    char path[1100], line[4096];
    long long step, last = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strchr(line, '\n') && sscanf(line, "{\"step\": %lld", &step) == 1) last = step;
    if (f) fclose(f);
    return last;
}

/* Sets the pause before the next restart. A restart makes progress if it comes past the last step
 * or the last checkpoint of all before. */
static void note_progress(Supervisor *v, const WorkerEnd *end, bool restarted)
{
    const RunPosition now = {end->dir[0] ? last_step(end->dir) : 0,
                             end->dir[0] ? newest_checkpoint(v, end->dir) : 0};
    const bool further = now.step > v->at.step || now.checkpoint > v->at.checkpoint;
    const double longer_s = fmin(2 * v->pause_s, LONGEST_PAUSE_S);
    v->pause_s = further || !restarted ? FIRST_PAUSE_S : longer_s;
    if (now.step > v->at.step) v->at.step = now.step;
    if (now.checkpoint > v->at.checkpoint) v->at.checkpoint = now.checkpoint;
}

/* ---- reports ---- */

static void log_restart(const Supervisor *v, const WorkerEnd *end, int restart)
{
    char path[1100], when[32];
    const time_t now = time(NULL);
    struct tm utc;
    if (!end->dir[0]) return;
    snprintf(path, sizeof path, "%s/restarts.jsonl", end->dir);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *o = json_pack("{si ss sI sI si}", "restart", restart, "time", when, "step",
                          (json_int_t)v->at.step, "checkpoint", (json_int_t)v->at.checkpoint,
                          "status", end->status);
    json_object_set_new(o, "reason", json_string(end->why));
    if (v->fewer) json_object_set_new(o, "ranks", json_integer(v->config.run_ranks));
    char *line = json_dumps(o, 0);
    FILE *f = line ? fopen(path, "a") : NULL;
    if (!f || fprintf(f, "%s\n", line) < 0 || fflush(f) != 0)
        fprintf(stderr, "sheaf: %s: cannot be written: %s\n", path, strerror(errno));
    if (f) fclose(f);
    free(line);
    json_decref(o);
}

static void report_restart(const Supervisor *v, const WorkerEnd *end, int restart)
{
    char ranks[160] = "";
    if (v->fewer)
        snprintf(ranks, sizeof ranks, ", on %lld rank%s%s", (long long)v->config.run_ranks,
                 v->config.run_ranks == 1 ? "" : "s",
                 v->unchecked
                     ? "; no two ranks hold the same weights: run.check_every=0 from here on"
                     : "");
    fprintf(
        stderr,
        "sheaf: restart %d of %d in %.1f s%s: the worker ended with status %d at step %lld; the "
        "newest checkpoint is of step %lld%s%s\n",
        restart, v->times, v->pause_s, ranks, end->status, (long long)v->at.step,
        (long long)v->at.checkpoint, end->why[0] ? "; " : "", end->why);
}

/* ---- the flags ---- */

static Err read_flags(Supervisor *v, int argc, char **argv)
{
    SuperviseFlags flag = {0};
    bool supervised = false;
    const char *trace;
    char *rest;
    Args args;
    MpiLaunch by;
    const Flag flags[] = {{"--supervise", &flag.times, &supervised},
                          {"--fewer", NULL, &flag.fewer},
                          {"--plan", &args.plan, NULL},
                          {"--trace", &trace, NULL}};
    TRY(args_split(argc, argv, flags, 4, &v->arena, &args));
    if (flag.fewer && args.plan)
        return err_fail(ERR_CONFIG, "--fewer with --plan: a plan is for its number of ranks; leave "
                                    "one of the two out");
    if (!supervised)
        return err_fail(ERR_CONFIG, "--fewer: has an effect only with --supervise N; give both");
    const long n = strtol(flag.times, &rest, 10);
    if (*rest || n < 1 || n > MAX_RESTARTS)
        return err_fail(ERR_CONFIG, "--supervise %.40s: must be a number of restarts, 1 to %d",
                        flag.times, MAX_RESTARTS);
    if (mpi_launched(getenv, &by) && by.ranks > 1)
        return err_fail(
            ERR_CONFIG,
            "--supervise under %s: it ends all ranks when one dies, so no process is left to "
            "restart them; start it again, and the run resumes, as in: for i in 1 2 3; do %s ... "
            "&& break; done",
            by.by, by.by);
    v->times = (int)n;
    v->fewer = flag.fewer;
    return flag.fewer ? args_config(&args, &v->arena, &v->config) : OK;
}

static Err prepare(Supervisor *v, int argc, char **argv)
{
    TRY(read_flags(v, argc, argv));
    v->argc = argc;
    TRY(ARENA_NEW(&v->arena, argc + N_SETTINGS + 1, &v->argv));
    memcpy(v->argv, argv, sizeof *argv * (size_t)argc);
    return OK;
}

/* True for ends that a restart must not follow: success, a refused request, a stop request. */
static bool is_final(const WorkerEnd *end)
{
    const bool asked = worker_is_stop(end->status - 128);
    return end->status == 0 || end->status == 2 || asked || end->by_user;
}

static void pause_for(double seconds)
{
    const time_t whole = (time_t)seconds;
    nanosleep(&(struct timespec){whole, (long)(1e9 * (seconds - (double)whole))}, NULL);
}

static int keep_running(Supervisor *v, int (*work)(int, char **, FlightRecorder *))
{
    for (int restart = 1;; restart++) {
        WorkerEnd end;
        worker_run(work, v->argc, v->argv, &v->relay, &end);
        if (is_final(&end)) return end.status;
        note_progress(v, &end, restart > 1);
        if (restart > v->times) {
            fprintf(stderr, "sheaf: no more restarts: the limit of --supervise is reached\n");
            return end.status;
        }
        if (end.dir[0]) set_word(v, SET_FRESH, "false"); /* keeps the folder that this run made */
        if (v->fewer) set_fewer(v);
        unsetenv("SHEAF_KILL_AT"); /* a fault injected by a test happens once */
        log_restart(v, &end, restart);
        report_restart(v, &end, restart);
        relay_move(&v->relay);
        pause_for(v->pause_s);
    }
}

/* True if argv has --supervise or --fewer. All other arguments are parsed and checked by the
 * worker. */
static bool is_supervised(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--supervise", 11) == 0 || strcmp(argv[i], "--fewer") == 0)
            return true;
    return false;
}

static int run_supervised(Supervisor *v, int (*work)(int, char **, FlightRecorder *), int argc,
                          char **argv)
{
    Err err = arena_open(&v->arena, "supervise", ARENA_PLENTY);
    if (err == OK) err = prepare(v, argc, argv);
    if (err != OK) return cli_fail(err);
    const int status = keep_running(v, work);
    arena_close(&v->arena);
    return status;
}

int supervise_run(int (*work)(int argc, char **argv, FlightRecorder *recorder), int argc,
                  char **argv)
{
    static Supervisor v; /* large */
    memset(&v, 0, sizeof v);
    const Err err = relay_open(&v.relay);
    if (err != OK) return cli_fail(err);
    const int status = is_supervised(argc, argv) ? run_supervised(&v, work, argc, argv)
                                                 : worker_run(work, argc, argv, &v.relay, NULL);
    return relay_close(&v.relay, status);
}
