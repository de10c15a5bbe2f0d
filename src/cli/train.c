/* train.c -- `sheaf train`: configuration, data and device put together, then the loop.
 *
 *     sheaf train run.yaml [key=value ...]
 *
 * Ctrl-C ends after the step, with all that was written whole; a second one ends at once. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/config_job.h"
#include "cli/config_print.h"
#include "cli/machine.h"
#include "cli/verbs.h"
#include "comm/local/local.h"
#include "train/loop.h"
#include "train/peak.h"
#include "train/rundir.h"

enum { VALID_SEQUENCES = 64 };

static volatile sig_atomic_t stop_asked; /* a handler can reach nothing else */

static void on_interrupt(int signal_number)
{
    if (stop_asked) _exit(128 + signal_number);
    stop_asked = 1;
}

/* All that lives as long as the command. */
typedef struct {
    Arena arena;
    Config config;
    ModelConfig model;
    Job job, valid_job;
    Dataset train, valid;
    RunDir dir;
    const Device *device;
    Team *team;
    Comm *comm;
    double peak;
    PeakOf peak_of;
    char cache[1024], processor[128]; /* cache: the file of peaks; "" when there is none */
} Session;

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

static Err compile(Session *s)
{
    JobSettings set;
    TRY(config_job(&s->config, &s->model, &set));
    TRY(job_compile(&set, &s->arena, &s->job));
    if (s->config.run_valid_every == 0) return OK;
    set.kind = JOB_LOSS;
    return job_compile(&set, &s->arena, &s->valid_job);
}

/* Told before anything is allocated: what does not fit, and the ways out. */
static Err check_memory(const Session *s)
{
    char need[24], have[24];
    const int64_t bytes = train_bytes(&s->job, &s->valid_job), memory = machine_memory_bytes();
    if (bytes <= memory) return OK;
    return err_fail(
        ERR_CONFIG,
        "the run takes %s, this machine has %s; try parallel.recompute=full, a smaller batch.micro "
        "(now %lld) or data.seq_len (now %lld), or a smaller model; `sheaf explain` shows what "
        "takes it",
        text_bytes(bytes, need), text_bytes(memory, have), (long long)s->config.batch_micro,
        (long long)s->config.data_seq_len);
}

static Err write_config(const Session *s)
{
    char path[1100];
    const char *yaml;
    Arena temp;
    TRY(arena_open(&temp, "config", (size_t)1 << 24));
    Text t = text_in(&temp);
    config_print(&s->config, &t);
    Err err = text_done(&t, &yaml);
    snprintf(path, sizeof path, "%s/config.yaml", s->dir.path);
    FILE *f = err == OK ? fopen(path, "w") : NULL;
    if (err == OK && (!f || fputs(yaml, f) < 0 || fflush(f) != 0))
        err = err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (f) fclose(f);
    arena_close(&temp);
    return err;
}

static Err open_machine(Session *s)
{
    const CommSettings set = {.ranks = 1, .in_flight = 16, .records = 1024};
    TRY(machine_device(&s->config, &s->device));
    const bool whole = s->config.run_threads >= team_cores(); /* else two runs would share a core */
    TRY(team_open(&s->team, (int)s->config.run_threads, s->config.run_pin && whole ? 0 : -1));
    return local_open(&s->arena, &set, &s->comm);
}

static Err measure_peak(Session *s)
{
    char rate[24];
    bool measured;
    const bool keep = machine_cache_path("peaks.json", s->cache, sizeof s->cache);
    const char *cache = s->cache;
    s->peak_of = (PeakOf){s->device, s->job.model.dtype, s->team,
                          machine_processor(s->processor, sizeof s->processor),
                          machine_device_text(s->device)};
    if (!keep) s->cache[0] = '\0';
    TRY(peak_load(&s->peak_of, keep ? cache : NULL, &s->peak, &measured));
    printf("mfu = flops of products and attention (causal: half) / (seconds x peak); peak "
           "%sflop/s, %s%s%s\n",
           text_count(s->peak, rate), measured ? "measured now" : "measured before",
           keep ? ", kept in " : "", keep ? cache : "");
    return OK;
}

static void announce(const Session *s)
{
    char count[24], bytes[24];
    printf("%s: %s parameters; %s, %s; %lld tokens a step; memory %s, known before the run\n",
           s->model.name, text_count((double)model_param_count(&s->job.model), count),
           machine_device_text(s->device), dtype_name(s->job.model.dtype),
           (long long)(s->config.batch_global * s->config.data_seq_len),
           text_bytes(train_bytes(&s->job, &s->valid_job), bytes));
    if (s->dir.old[0]) printf("the run that was in %s is in %s now\n", s->dir.path, s->dir.old);
}

static Err open_session(Session *s, int argc, char **argv)
{
    Args args;
    char dir[1100];
    TRY(args_split(argc, argv, NULL, 0, &s->arena, &args));
    TRY(config_load(args.file, args.set, args.n_set, &s->arena, &s->config));
    TRY(config_model(&s->config, &s->arena, &s->model));
    TRY(open_data(s));
    TRY(compile(s));
    TRY(check_memory(s));
    snprintf(dir, sizeof dir, "%s", s->config.run_dir);
    if (!dir[0]) config_run_name(args.file, s->model.name, dir, sizeof dir);
    TRY(open_machine(s));
    TRY(rundir_open(&s->dir, dir, s->config.run_fresh)); /* last: what is refused moves nothing */
    TRY(write_config(s));
    announce(s);
    return measure_peak(s);
}

/* Can a line be written over? */
static bool renews_lines(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

static TrainSettings settings_of(const Session *s)
{
    const Config *c = &s->config;
    const bool valid = c->run_valid_every > 0;
    return (TrainSettings){.job = &s->job,
                           .valid_job = valid ? &s->valid_job : NULL,
                           .device = s->device,
                           .comm = s->comm,
                           .team = s->team,
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
                           .terminal = renews_lines()};
}

static void conclude(const Session *s, const TrainResult *r)
{
    char rate[24], bytes[24], count[24];
    printf("%s after %lld steps: loss %.4f at the start, %.4f at the end",
           r->stopped ? "stopped" : "done", (long long)r->steps, r->first_loss, r->last_loss);
    if (r->has_valid) printf(", %.4f on held-out text", r->valid_loss);
    printf("; %s tokens, %s tok/s, memory %s; metrics in %s/metrics.jsonl\n",
           text_count((double)r->tokens, count), text_count((double)r->tokens / r->seconds, rate),
           text_bytes(r->peak_bytes, bytes), s->dir.path);
}

static Err run_session(Session *s, bool *stopped)
{
    TrainResult result;
    const TrainSettings set = settings_of(s);
    TRY(train_run(&set, &result));
    if (s->cache[0] && result.peak_flops > s->peak)
        peak_raise(&s->peak_of, s->cache, result.peak_flops);
    conclude(s, &result);
    *stopped = result.stopped;
    return OK;
}

int verb_train(int argc, char **argv)
{
    static Session s; /* jobs point into it */
    bool stopped = false;
    const struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    s = (Session){.dir = {.lock = -1}};
    stop_asked = 0;
    Err err = arena_open(&s.arena, "train", ARENA_PLENTY);
    if (err == OK) err = open_session(&s, argc, argv);
    if (err == OK) {
        sigaction(SIGINT, &act, NULL);
        err = run_session(&s, &stopped);
    }
    rundir_close(&s.dir);
    if (s.team) team_close(s.team);
    if (s.comm) comm_close(s.comm);
    dataset_close(&s.train);
    dataset_close(&s.valid);
    arena_close(&s.arena);
    if (err != OK) return cli_fail(err);
    return stopped ? 130 : 0;
}
