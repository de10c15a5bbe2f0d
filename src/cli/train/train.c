/* train.c -- `sheaf train`: loads configuration, data and device once per process, then runs the
 * ranks.
 *
 *     sheaf train run.yaml [key=value ...] [--plan FILE] [--trace FILE] [--supervise N [--fewer]]
 *
 *     process   prepare: configuration, model, data, device
 *     ranks     train_rank: the phases of train/run.h
 *
 * Ctrl-C, SIGTERM and the signals of job schedulers (cli/interrupt.h) end the run after the current
 * step, with a checkpoint; a second Ctrl-C ends it at once. */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/new_file.h"
#include "cli/supervise.h"
#include "cli/train/train.h"
#include "cli/train/state.h"
#include "cli/verbs.h"
#include "cli/worker.h"

enum { IN_FLIGHT = 64, RECORDS = 4096, VALID_SEQUENCES = 64 };

/* Opens the files of a list as clips. */
static Err open_clips(TrainSession *s, DatasetSettings *set)
{
    ClipFile *file;
    TRY(ARENA_NEW(&s->arena, set->n_paths, &file));
    for (int i = 0; i < set->n_paths; i++) {
        if (!clip_path_is(set->path[i]))
            return err_fail(ERR_CONFIG,
                            "%s: %s is a model of clips, and reads .npy and .safetensors; `sheaf "
                            "data build` makes such files",
                            set->path[i], s->model.name);
        TRY(clip_open(set->path[i], &s->arena, &s->clips[s->n_clips]));
        file[i] = s->clips[s->n_clips++].clips;
    }
    set->clip_file = file;
    set->model = &s->model;
    return OK;
}

/* Refuses clips for a model of text. */
static Err refuse_clips(const TrainSession *s, const DatasetSettings *set)
{
    for (int i = 0; i < set->n_paths; i++)
        if (clip_path_is(set->path[i]) && set->format == FORMAT_AUTO)
            return err_fail(ERR_CONFIG,
                            "%s: an array of latents, and %s is a model of text; train a "
                            "model.name=stdit-tiny on it, or set data.format to read the file as "
                            "tokens",
                            set->path[i], s->model.name);
    return OK;
}

static Err open_dataset(TrainSession *s, DatasetSettings *set, Dataset *out)
{
    TRY(s->model.frames ? open_clips(s, set) : refuse_clips(s, set));
    TRY(dataset_open(set, &s->arena, out));
    return s->model.frames ? OK : train_check_bytes(s, out);
}

static Err open_data(TrainSession *s)
{
    const Config *c = &s->config;
    const char *tokenizer = NULL;
    if (!s->model.frames) TRY(train_tokenizer(s, &tokenizer));
    TRY(ARENA_NEW(&s->arena, c->data_train.n + c->data_valid.n, &s->clips));
    DatasetSettings set = {.path = c->data_train.at,
                           .n_paths = c->data_train.n,
                           .format = config_token_format(c),
                           .seq_len = c->data_seq_len,
                           .pack = c->data_pack,
                           .vocab = s->model.vocab,
                           .tokenizer = tokenizer,
                           .threads = (int)c->run_threads,
                           .seed = (uint64_t)c->run_seed};
    if (set.n_paths == 0)
        return err_fail(ERR_CONFIG,
                        "data.train: no file is set; set it to a %s, as in `sheaf train run.yaml "
                        "data.train=%s`",
                        s->model.frames > 0 ? "file of clips" : "text or a token file",
                        s->model.frames > 0 ? "clips.npy" : "mytext.txt");
    TRY(open_dataset(s, &set, &s->train));
    if (c->run_valid_every > 0 && c->data_valid.n == 0)
        return err_fail(ERR_CONFIG,
                        "run.valid_every=%lld: data.valid is not set; set it, or "
                        "run.valid_every=0",
                        (long long)c->run_valid_every);
    if (c->run_valid_every == 0) return OK;
    set.path = c->data_valid.at;
    set.n_paths = c->data_valid.n;
    set.seed = 0; /* the same samples in every run, for any run.seed */
    return open_dataset(s, &set, &s->valid);
}

/* True if a line of standard output can be overwritten. A launcher may give a rank a terminal of
 * its own, and write what the rank prints to a file. */
static bool is_terminal(void)
{
    const char *term = getenv("TERM");
    MpiLaunch by;
    return relay_is_terminal() && term && strcmp(term, "dumb") != 0 && !mpi_launched(getenv, &by);
}

static TrainSettings loop_settings(TrainSession *s)
{
    const Config *c = &s->config;
    return (TrainSettings){.device = s->device,
                           .deterministic = c->numerics_deterministic,
                           .capture = c->run_capture != CAPTURE_OFF,
                           .train = &s->train,
                           .valid = &s->valid,
                           .lr = config_lr(c),
                           .global = c->batch_global,
                           .valid_every = c->run_valid_every,
                           .valid_limit = VALID_SEQUENCES,
                           .seed = (uint64_t)c->run_seed,
                           .init = s->init ? &s->init->manifest : NULL,
                           .dir = s->dir_name,
                           .tensorboard = c->run_tensorboard,
                           .log_samples = c->run_log_samples,
                           .check_every = c->run_check_every,
                           .save = train_save_settings(s),
                           .out = stdout,
                           .terminal = is_terminal()};
}

/* Hosts must agree on what auto and search choose, with the cluster file and the launcher of
 * each. */
static Err hash_choices(TrainSession *s)
{
    ContextSearch search;
    const char *rules = s->run.job.parallel.tp_weights;
    for (; s->run.job.parallel.tp_choice && rules && *rules; rules++)
        s->run.config_hash = s->run.config_hash * 1099511628211u + (unsigned char)*rules;
    TRY(config_cluster(&s->config, &s->arena, &s->run.job));
    TRY(job_choose_context(&s->run.job, &s->arena, &search));
    if (search.n == 0) return OK;
    const ContextCandidate *c = &search.list[search.best];
    const uint64_t inner = c->kind == CONTEXT_DOUBLE_RING ? (uint64_t)c->inner : 0;
    s->run.config_hash +=
        inner << 32 | (uint64_t)c->heads << 16 | (uint64_t)c->kind << 8 | (uint64_t)c->tokens;
    return OK;
}

static Err fill_run(TrainSession *s)
{
    TrainRun *run = &s->run;
    TRY(config_job(&s->config, &s->model, &run->job));
    TRY(train_config_hash(&s->config, &s->arena, &run->config_hash));
    run->job.parallel.host_ranks = s->launch.host_ranks;
    if (run->job.parallel.context == CONTEXT_DOUBLE_RING && s->config.mesh_cp_inner == 0)
        run->config_hash += (uint64_t)s->launch.host_ranks; /* hosts must agree on inner rings */
    TRY(hash_choices(s));
    run->loop = loop_settings(s);
    run->transport = config_transport(&s->config, s->device, s->launch.comm_world != NULL);
    run->fresh = s->config.run_fresh;
    run->ranks_here = s->launch.here;
    return s->trace_path ? ARENA_NEW(&s->arena, run->ranks_here, &run->trace) : OK;
}

/* Sets trace_path: FILE, or FILE.RANK if each rank is a process of its own. */
static Err name_trace(TrainSession *s, const char *file)
{
    if (!file) return OK;
    Text t = text_in(&s->arena);
    text_add(&t, "%s", file);
    if (s->launch.comm_world) text_add(&t, ".%d", s->launch.rank);
    TRY(text_done(&t, &s->trace_path));
    return new_file_check("--trace", s->trace_path);
}

/* Loads everything that the ranks of this process share. */
static Err prepare(TrainSession *s, int argc, char **argv)
{
    Args args;
    const char *trace = NULL;
    SuperviseFlags parents = {0}; /* handled by the parent process */
    const Flag flags[] = {{"--trace", &trace, NULL},
                          {"--plan", &args.plan, NULL},
                          {"--supervise", &parents.times, NULL},
                          {"--fewer", NULL, &parents.fewer}};
    TRY(args_split(argc, argv, flags, 4, &s->arena, &args));
    s->file = args.file;
    TRY(launch_config(&s->launch, &args, &s->arena, &s->config));
    TRY(name_trace(s, trace));
    TRY(config_model(&s->config, &s->arena, &s->model));
    snprintf(s->dir_name, sizeof s->dir_name, "%s", s->config.run_dir);
    if (!s->dir_name[0]) config_run_name(s->file, s->model.name, s->dir_name, sizeof s->dir_name);
    TRY(open_data(s));
    machine_set_cuda(s->launch.ranks, s->launch.here);
    TRY(machine_device(&s->config, &s->device));
    snprintf(s->checkpoints, sizeof s->checkpoints, "%s/checkpoints", s->dir_name);
    TRY(train_scalars(s, &s->scalars));
    TRY(train_init(s));
    TRY(kill_at_read(&s->kill));
    return fill_run(s);
}

static Err run_world(TrainSession *s)
{
    const WorldSettings set = {.ranks = s->launch.ranks,
                               .comm_world = s->launch.comm_world,
                               .in_flight = IN_FLIGHT,
                               .records = RECORDS,
                               .timeout_s = s->config.run_timeout_s,
                               .flight_recorder = s->recorder,
                               .body = train_rank,
                               .work = s};
    if (s->run.prepared != OK && !s->launch.comm_world) return s->run.prepared;
    TRY(launch_renumber(&s->launch, s->run.prepared == OK));
    return world_run(&set);
}

static void print_summary(const TrainSession *s)
{
    char rate[24], bytes[24], count[24], steps[COUNTED_BYTES];
    const TrainResult *r = &s->run.result;
    const char *dir = s->run.folder.path;
    if (r->was_done) {
        printf("nothing to do: the run in %s is at step %lld, and run.steps=%lld; set a larger "
               "run.steps to continue\n",
               dir, (long long)r->steps, (long long)s->config.run_steps);
        return;
    }
    printf("%s after %s: loss %.4f at %s", r->stopped ? "stopped" : "done",
           text_counted(r->steps, "step", steps), r->first_loss,
           r->first == 1 ? "the start" : "step ");
    if (r->first > 1) printf("%lld, where it resumed", (long long)r->first);
    printf(", %.4f at the end", r->last_loss);
    if (r->has_valid)
        printf(", %.4f on held-out %s", r->valid_loss, s->model.frames ? "clips" : "text");
    printf("; %s tokens, %s tok/s, memory %s%s; metrics in %s/metrics.jsonl\n",
           text_count((double)r->tokens, count),
           text_count((double)r->tokens_here / r->seconds, rate), text_bytes(r->peak_bytes, bytes),
           s->launch.ranks > 1 ? " on the highest rank" : "", dir);
}

/* Prints the error and returns the exit status. An error that all ranks have is printed by rank
 * 0. */
static int report_failure(const TrainSession *s, Err err)
{
    char path[1200], text[2048];
    char me[32];
    snprintf(me, sizeof me, "rank %d: ", s->launch.rank);
    snprintf(text, sizeof text, "%s", err_text());
    snprintf(s->recorder->why, sizeof s->recorder->why, "%.500s", text);
    /* Rank 0 may be the one that died, so the rank that found the error prints it too. */
    const bool found = strncmp(text, me, strlen(me)) == 0 || (err != ERR_PEER && !s->agreed);
    const bool mine = s->launch.rank == 0 || found;
    const int status = mine ? cli_fail(err) : err == ERR_CONFIG ? 2 : 1;
    if (err != ERR_CONFIG && s->recorder->dir[0] && s->launch.ranks > 1 &&
        worker_dump(s->recorder, text, path))
        fprintf(stderr,
                "sheaf: the last actions of each rank are in %s; `sheaf inspect` prints them\n",
                path);
    return status;
}

static int train(int argc, char **argv, FlightRecorder *recorder)
{
    static TrainSession s; /* large */
    s = (TrainSession){.run = {.folder = {.lock = -1}}, .recorder = recorder};
    Err err = arena_open(&s.arena, "train", ARENA_PLENTY);
    if (err == OK) err = launch_open(&s.launch, recorder);
    if (err == OK) {
        s.run.prepared = prepare(&s, argc, argv);
        s.run.loop.stop = s.stop = interrupt_watch();
        interrupt_watch_others();
        signal(SIGXFSZ, SIG_IGN); /* a file size limit is a write error, like a full disk */
        err = run_world(&s);
    }
    const TrainResult *result = &s.run.result;
    const int stopped = result->stopped ? 128 + result->stop_signal : 0;
    const int status = err == OK ? stopped : report_failure(&s, err);
    if (err == OK && s.launch.rank == 0) print_summary(&s);
    run_dir_close(&s.run.folder);
    launch_close(&s.launch);
    dataset_close(&s.train);
    dataset_close(&s.valid);
    for (int i = 0; i < s.n_clips; i++) clip_close(&s.clips[i]);
    arena_close(&s.arena);
    return status;
}

int verb_train(int argc, char **argv) { return supervise_run(train, argc, argv); }
