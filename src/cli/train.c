/* train.c -- `sheaf train`: configuration, data and device put together, then the loop on every rank.
 *
 *     sheaf train run.yaml [key=value ...] [--trace FILE]
 *
 *     worker   configuration, model, data, device                    once in a process
 *     ranks    team, compile, agree; memory, run folder (rank 0), agree; the loop
 *
 * Ctrl-C ends after the step, with all that was written whole; a second one ends at once. */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/config_job.h"
#include "cli/config_print.h"
#include "cli/launch.h"
#include "cli/machine.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "train/loop.h"
#include "train/peak.h"
#include "train/rundir.h"

enum { VALID_SEQUENCES = 64, IN_FLIGHT = 64, RECORDS = 4096 };

/* A handler can reach nothing else. */
static volatile sig_atomic_t stop_asked;
static struct timespec asked_at;

/* A launcher may send the same wish to a process and to its group: at the same moment it is one. */
static void on_interrupt(int signal_number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double after =
        (double)(now.tv_sec - asked_at.tv_sec) + 1e-9 * (double)(now.tv_nsec - asked_at.tv_nsec);
    if (stop_asked && after > 0.2) _exit(128 + signal_number);
    if (!stop_asked) asked_at = now;
    stop_asked = 1;
}

/* All that the ranks of a process share. */
typedef struct {
    Arena arena;
    Launch launch;
    const char *file, *trace_path; /* of the run; NULL: none */
    char dir_name[1024];
    Config config;
    ModelConfig model;
    Dataset train, valid;
    RunDir dir;
    const Device *device;
    Board *board;
    double peak;
    PeakOf peak_of;
    char cache[1024], processor[128]; /* cache: the file of peaks; "" when there is none */
    Err prepared;
    _Atomic int64_t bytes; /* of all ranks here */
    const Trace **trace;   /* [launch.here] */
    TrainResult result;
    bool agreed; /* the error is one that rank 0 tells */
} Session;

/* What is one rank's. */
typedef struct {
    Session *s;
    WorldRank *world;
    Job job, valid_job;
    Team *team;
    Trace trace;
} Runner;

static Err open_data(Session *s)
{
    const Config *c = &s->config;
    DatasetSettings set = {.path = c->data_train.at,
                           .n_paths = c->data_train.n,
                           .format = config_token_format(c),
                           .seq_len = c->data_seq_len,
                           .pack = c->data_pack,
                           .vocab = s->model.vocab,
                           .seed = (uint64_t)c->run_seed};
    if (set.n_paths == 0)
        return err_fail(ERR_CONFIG,
                        "data.train: no file is given; set it to a text or a token file, as in "
                        "`sheaf train run.yaml data.train=mytext.txt`");
    TRY(dataset_open(&set, &s->arena, &s->train));
    if (c->run_valid_every > 0 && c->data_valid.n == 0)
        return err_fail(ERR_CONFIG,
                        "run.valid_every=%lld: data.valid names no file to measure on; set it, or "
                        "run.valid_every=0",
                        (long long)c->run_valid_every);
    if (c->run_valid_every == 0) return OK;
    set.path = c->data_valid.at;
    set.n_paths = c->data_valid.n;
    set.seed = 0; /* the same samples in every run, whatever its seed and batch */
    return dataset_open(&set, &s->arena, &s->valid);
}

/* What is the same for every rank of this process. */
static Err prepare(Session *s, int argc, char **argv)
{
    Args args;
    const Flag flags[] = {{"--trace", &s->trace_path, NULL}};
    TRY(args_split(argc, argv, flags, 1, &s->arena, &args));
    s->file = args.file;
    TRY(launch_config(&s->launch, &args, &s->arena, &s->config));
    TRY(config_model(&s->config, &s->arena, &s->model));
    snprintf(s->dir_name, sizeof s->dir_name, "%s", s->config.run_dir);
    if (!s->dir_name[0]) config_run_name(s->file, s->model.name, s->dir_name, sizeof s->dir_name);
    TRY(open_data(s));
    TRY(machine_device(&s->config, &s->device));
    return ARENA_NEW(&s->arena, s->launch.here, &s->trace);
}

/* ---- a rank ---- */

static const Job *valid_job(const Runner *r)
{
    return r->s->config.run_valid_every > 0 ? &r->valid_job : NULL;
}

static Err compile(Runner *r)
{
    JobSettings set;
    Session *s = r->s;
    TRY(config_job(&s->config, &s->model, &set));
    set.parallel.rank = r->world->rank;
    TRY(job_compile(&set, r->world->arena, &r->job));
    set.kind = JOB_LOSS;
    if (valid_job(r)) TRY(job_compile(&set, r->world->arena, &r->valid_job));
    atomic_fetch_add(&s->bytes, train_bytes(&r->job, valid_job(r)));
    return OK;
}

static Err open_runner(Runner *r)
{
    Session *s = r->s;
    const int threads = (int)s->config.run_threads, place = r->world->place;
    TRY(compile(r));
    const bool pin = s->config.run_pin && launch_pins(&s->launch, threads);
    TRY(team_open(&r->team, threads, pin ? place * threads : -1));
    if (!s->trace_path) return OK;
    TRY(trace_open(&r->trace, r->world->rank, s->launch.here, r->world->arena));
    s->trace[place] = &r->trace;
    return OK;
}

/* Told before anything is allocated: what does not fit, and the ways out. */
static Err check_memory(Session *s)
{
    char need[24], have[24];
    const int64_t bytes = atomic_load(&s->bytes), memory = machine_memory_bytes();
    if (bytes <= memory) return OK;
    return err_fail(
        ERR_CONFIG,
        "the run takes %s, this machine has %s; try parallel.recompute=full, a smaller batch.micro "
        "(now %lld) or data.seq_len (now %lld), or a smaller model; `sheaf explain` shows what "
        "takes it",
        text_bytes(bytes, need), text_bytes(memory, have), (long long)s->config.batch_micro,
        (long long)s->config.data_seq_len);
}

static void announce(const Runner *r)
{
    char count[24], bytes[24], ranks[64] = "";
    const Session *s = r->s;
    if (s->launch.ranks > 1)
        snprintf(ranks, sizeof ranks, "%d ranks of %lld threads; ", s->launch.ranks,
                 (long long)s->config.run_threads);
    printf("%s: %s parameters; %s, %s; %s%lld tokens a step; memory %s, known before the run\n",
           s->model.name, text_count((double)model_param_count(&r->job.model), count),
           machine_device_text(s->device), dtype_name(r->job.model.dtype), ranks,
           (long long)(s->config.batch_global * s->config.data_seq_len),
           text_bytes(atomic_load(&s->bytes), bytes));
    if (s->dir.old[0]) printf("the run that was in %s is in %s now\n", s->dir.path, s->dir.old);
}

static Err measure_peak(Session *s, const Runner *r)
{
    char rate[24];
    bool measured;
    const bool keep = machine_cache_path("peaks.json", s->cache, sizeof s->cache);
    const char *cache = s->cache;
    s->peak_of = (PeakOf){s->device, r->job.model.dtype, r->team,
                          machine_processor(s->processor, sizeof s->processor),
                          machine_device_text(s->device)};
    if (!keep) s->cache[0] = '\0';
    TRY(peak_load(&s->peak_of, keep ? cache : NULL, &s->peak, &measured));
    printf("mfu = flops of products and attention (causal: half) / (seconds x peak); peak "
           "%sflop/s%s, %s%s%s\n",
           text_count(s->peak, rate), s->launch.ranks > 1 ? " a rank" : "",
           measured ? "measured now" : "measured before", keep ? ", kept in " : "",
           keep ? cache : "");
    return OK;
}

/* Rank 0 alone. Last: what is refused moves nothing. */
static Err open_run(Runner *r)
{
    Session *s = r->s;
    TRY(rundir_open(&s->dir, s->dir_name, s->config.run_fresh));
    TRY(config_write(&s->config, s->dir.path));
    announce(r);
    return measure_peak(s, r);
}

/* Can a line be written over? */
static bool renews_lines(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

static TrainSettings settings_of(Runner *r)
{
    const Session *s = r->s;
    const Config *c = &s->config;
    return (TrainSettings){.job = &r->job,
                           .valid_job = valid_job(r),
                           .device = s->device,
                           .world = r->world,
                           .team = r->team,
                           .train = &s->train,
                           .valid = &s->valid,
                           .lr = config_lr(c),
                           .global = c->batch_global,
                           .valid_every = c->run_valid_every,
                           .valid_limit = VALID_SEQUENCES,
                           .seed = (uint64_t)c->run_seed,
                           .dir = s->dir.path,
                           .tensorboard = c->run_tensorboard,
                           .peak_flops = s->peak,
                           .stop = &stop_asked,
                           .out = stdout,
                           .terminal = renews_lines(),
                           .trace = s->trace_path ? &r->trace : NULL};
}

/* All ranks have theirs, and none gives it back before the file is written. */
static Err write_trace(Runner *r)
{
    Session *s = r->s;
    char path[1100];
    Err err = OK;
    if (!s->trace_path) return OK;
    snprintf(path, sizeof path, s->launch.mpi ? "%.1000s.%d" : "%.1000s", s->trace_path,
             r->world->rank);
    TRY(world_agree(r->world, OK));
    if (r->world->place == 0) err = trace_write(path, s->trace, s->launch.here, &r->job.model);
    TRY(world_agree(r->world, err));
    if (r->world->rank != 0) return OK;
    printf("trace of %s in %s: open it in ui.perfetto.dev\n",
           s->launch.mpi ? "each rank" : "all ranks", path);
    if (trace_missed(&r->trace) > 0)
        printf("the trace ends early: it holds %lld events of a rank, %lld more came; trace fewer "
               "steps (run.steps)\n",
               (long long)(r->trace.events.n + r->trace.n_transfers),
               (long long)trace_missed(&r->trace));
    return OK;
}

static Err run_phases(Runner *r)
{
    Session *s = r->s;
    WorldRank *w = r->world;
    TrainResult result;
    TRY(world_agree(w, s->prepared));
    TRY(world_agree(w, open_runner(r)));
    Err err = w->place == 0 ? check_memory(s) : OK;
    if (err == OK && w->rank == 0) err = open_run(r);
    TRY(world_agree(w, err));
    if (w->place == 0) memcpy(s->board->dir, s->dir_name, sizeof s->dir_name); /* it is there now */
    const TrainSettings set = settings_of(r);
    TRY(train_run(&set, &result));
    if (w->place == 0) s->result = result;
    if (w->rank == 0 && s->cache[0] && result.peak_flops > s->peak)
        peak_raise(&s->peak_of, s->cache, result.peak_flops);
    return write_trace(r);
}

/* The body of a rank. */
static Err run_rank(WorldRank *w, void *session)
{
    Runner *r;
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &r)));
    r->s = session;
    r->world = w;
    const Err err = run_phases(r);
    if (w->place == 0) r->s->agreed = w->agreed;
    if (r->team) team_close(r->team);
    return err;
}

/* ---- the worker ---- */

static Err run_world(Session *s)
{
    const WorldSettings set = {.ranks = s->launch.ranks,
                               .mpi = s->launch.mpi,
                               .in_flight = IN_FLIGHT,
                               .records = RECORDS,
                               .timeout_s = s->config.run_timeout_s,
                               .board = s->board,
                               .body = run_rank,
                               .work = s};
    if (s->prepared != OK && !s->launch.mpi) return s->prepared;
    return world_run(&set);
}

static void conclude(const Session *s)
{
    char rate[24], bytes[24], count[24];
    const TrainResult *r = &s->result;
    printf("%s after %lld steps: loss %.4f at the start, %.4f at the end",
           r->stopped ? "stopped" : "done", (long long)r->steps, r->first_loss, r->last_loss);
    if (r->has_valid) printf(", %.4f on held-out text", r->valid_loss);
    printf("; %s tokens, %s tok/s, memory %s%s; metrics in %s/metrics.jsonl\n",
           text_count((double)r->tokens, count), text_count((double)r->tokens / r->seconds, rate),
           text_bytes(r->peak_bytes, bytes), s->launch.ranks > 1 ? " on the highest rank" : "",
           s->dir.path);
}

/* Of an error that all ranks know, rank 0 tells. */
static int say_failure(const Session *s, Err err)
{
    char path[1200], text[2048];
    const bool mine = s->launch.by.rank == 0 || (err != ERR_PEER && !s->agreed);
    snprintf(text, sizeof text, "%s", err_text());
    const int status = mine ? cli_fail(err) : err == ERR_CONFIG ? 2 : 1;
    if (s->board->dir[0] && s->launch.ranks > 1 && worker_dump(s->board, text, path))
        fprintf(stderr, "sheaf: what each rank did last is in %s; `sheaf inspect` tells it\n",
                path);
    return status;
}

static int train(int argc, char **argv, Board *board)
{
    static Session s; /* large */
    const struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    s = (Session){.dir = {.lock = -1}, .board = board};
    stop_asked = 0;
    Err err = arena_open(&s.arena, "train", ARENA_PLENTY);
    if (err == OK) err = launch_open(&s.launch);
    if (err == OK) {
        s.prepared = prepare(&s, argc, argv);
        sigaction(SIGINT, &act, NULL);
        err = run_world(&s);
    }
    const int status = err == OK ? s.result.stopped ? 130 : 0 : say_failure(&s, err);
    if (err == OK && s.launch.by.rank == 0) conclude(&s);
    rundir_close(&s.dir);
    launch_close(&s.launch);
    dataset_close(&s.train);
    dataset_close(&s.valid);
    arena_close(&s.arena);
    return status;
}

int verb_train(int argc, char **argv) { return worker_run(train, argc, argv); }
