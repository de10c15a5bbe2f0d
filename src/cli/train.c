/* train.c -- `sheaf train`: configuration, data and device put together, then the loop on every
 * rank.
 *
 *     sheaf train run.yaml [key=value ...] [--trace FILE] [--supervise N [--fewer]]
 *
 *     worker   configuration, model, data, device                    once in a process
 *     ranks    team, compile, agree; memory, run folder (rank 0), agree; the loop
 *
 * Ctrl-C and SIGTERM end after the step, with a checkpoint; a second Ctrl-C ends at once. */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/supervise.h"
#include "cli/train.h"
#include "cli/train_state.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "data/tokenizer.h"

enum { IN_FLIGHT = 64, RECORDS = 4096 };

/* Text is read by bytes: with a tokenizer it is built into a token file first. */
static Err check_files(const Dataset *d, const char *tokenizer)
{
    if (strcmp(tokenizer, "bytes") == 0) return OK;
    for (int i = 0; i < d->settings.n_paths; i++) {
        const Tokens *t = &d->file[i];
        if (t->format != FORMAT_TEXT && t->format != FORMAT_JSONL) continue;
        return err_fail(ERR_CONFIG,
                        "data.tokenizer=%.200s: %s is %s; make a token file of it, and train on "
                        "that: sheaf data build %s --tokenizer %.200s -o NAME.bin",
                        tokenizer, t->path, tokens_words(t), t->path, tokenizer);
    }
    return OK;
}

/* The model must have a row for each id that the tokenizer can give. */
static Err check_tokenizer(TrainSession *s)
{
    const char *path = s->config.data_tokenizer;
    Tokenizer *t;
    if (strcmp(path, "bytes") == 0) return OK;
    const size_t mark = arena_mark(&s->arena);
    TRY(tokenizer_load(path, &s->arena, &t));
    const int64_t ids = t->n_ids;
    tokenizer_close(t);
    arena_rewind(&s->arena, mark);
    if (ids > s->model.vocab)
        return err_fail(ERR_CONFIG,
                        "data.tokenizer=%.200s: has %lld ids, and the model's vocabulary has %lld; "
                        "set model.vocab_size=%lld or more",
                        path, (long long)ids, (long long)s->model.vocab, (long long)ids);
    return OK;
}

static Err open_data(TrainSession *s)
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
static Err prepare(TrainSession *s, int argc, char **argv)
{
    Args args;
    SuperviseFlags parents = {0}; /* the parent has honoured them */
    const Flag flags[] = {{"--trace", &s->trace_path, NULL},
                          {"--supervise", &parents.times, NULL},
                          {"--fewer", NULL, &parents.fewer}};
    TRY(args_split(argc, argv, flags, 3, &s->arena, &args));
    s->file = args.file;
    TRY(launch_config(&s->launch, &args, &s->arena, &s->config));
    TRY(config_model(&s->config, &s->arena, &s->model));
    snprintf(s->dir_name, sizeof s->dir_name, "%s", s->config.run_dir);
    if (!s->dir_name[0]) config_run_name(s->file, s->model.name, s->dir_name, sizeof s->dir_name);
    TRY(check_tokenizer(s));
    TRY(open_data(s));
    TRY(check_files(&s->train, s->config.data_tokenizer));
    TRY(check_files(&s->valid, s->config.data_tokenizer));
    TRY(machine_device(&s->config, &s->device));
    snprintf(s->checkpoints, sizeof s->checkpoints, "%s/checkpoints", s->dir_name);
    TRY(train_scalars(s, &s->scalars));
    TRY(train_init(s));
    TRY(kill_at_read(&s->kill));
    return ARENA_NEW(&s->arena, s->launch.here, &s->trace);
}

static Err run_world(TrainSession *s)
{
    const WorldSettings set = {.ranks = s->launch.ranks,
                               .mpi = s->launch.mpi,
                               .in_flight = IN_FLIGHT,
                               .records = RECORDS,
                               .timeout_s = s->config.run_timeout_s,
                               .board = s->board,
                               .body = train_rank,
                               .work = s};
    if (s->prepared != OK && !s->launch.mpi) return s->prepared;
    return world_run(&set);
}

static void conclude(const TrainSession *s)
{
    char rate[24], bytes[24], count[24];
    const TrainResult *r = &s->result;
    if (r->was_done) {
        printf("nothing to do: the run in %s is at step %lld, and run.steps=%lld; a larger one "
               "goes on\n",
               s->dir.path, (long long)r->steps, (long long)s->config.run_steps);
        return;
    }
    printf("%s after %lld steps: loss %.4f at %s", r->stopped ? "stopped" : "done",
           (long long)r->steps, r->first_loss, r->first == 1 ? "the start" : "step ");
    if (r->first > 1) printf("%lld, where it went on", (long long)r->first);
    printf(", %.4f at the end", r->last_loss);
    if (r->has_valid) printf(", %.4f on held-out text", r->valid_loss);
    printf("; %s tokens, %s tok/s, memory %s%s; metrics in %s/metrics.jsonl\n",
           text_count((double)r->tokens, count),
           text_count((double)r->tokens_here / r->seconds, rate), text_bytes(r->peak_bytes, bytes),
           s->launch.ranks > 1 ? " on the highest rank" : "", s->dir.path);
}

/* Of an error that all ranks know, rank 0 tells. */
static int say_failure(const TrainSession *s, Err err)
{
    char path[1200], text[2048];
    char me[32];
    snprintf(me, sizeof me, "rank %d: ", s->launch.by.rank);
    snprintf(text, sizeof text, "%s", err_text());
    snprintf(s->board->why, sizeof s->board->why, "%.500s", text);
    /* Rank 0 may be the one that stopped: who found out says it too. */
    const bool found = strncmp(text, me, strlen(me)) == 0 || (err != ERR_PEER && !s->agreed);
    const bool mine = s->launch.by.rank == 0 || found;
    const int status = mine ? cli_fail(err) : err == ERR_CONFIG ? 2 : 1;
    if (err != ERR_CONFIG && s->board->dir[0] && s->launch.ranks > 1 &&
        worker_dump(s->board, text, path))
        fprintf(stderr, "sheaf: what each rank did last is in %s; `sheaf inspect` tells it\n",
                path);
    return status;
}

static int train(int argc, char **argv, FlightRecorder *board)
{
    static TrainSession s; /* large */
    s = (TrainSession){.dir = {.lock = -1}, .board = board};
    Err err = arena_open(&s.arena, "train", ARENA_PLENTY);
    if (err == OK) err = launch_open(&s.launch);
    if (err == OK) {
        s.prepared = prepare(&s, argc, argv);
        s.stop = interrupt_watch();
        interrupt_watch_term();
        signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like a full disk */
        err = run_world(&s);
    }
    const int asked = s.stop && *s.stop ? *s.stop : SIGINT; /* of another rank's it is not known */
    const int status = err == OK ? s.result.stopped ? 128 + asked : 0 : say_failure(&s, err);
    if (err == OK && s.launch.by.rank == 0) conclude(&s);
    run_dir_close(&s.dir);
    launch_close(&s.launch);
    dataset_close(&s.train);
    dataset_close(&s.valid);
    arena_close(&s.arena);
    return status;
}

int verb_train(int argc, char **argv) { return supervise_run(train, argc, argv); }
