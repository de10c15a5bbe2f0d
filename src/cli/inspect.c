/* inspect.c -- `sheaf inspect FILE`: what a file of ours is, said in words.
 *
 *     token files      as `sheaf data show`
 *     run files        the model, the data, the steps; what is not as by default
 *     schedules        ranks, chunks, micro-batches, actions; whether it is a good one
 *     metrics.jsonl    steps, losses, tokens
 *     config.json      the model
 *     recorder.json    of a run that failed: where each rank was, its latest transfers, who waits for whom
 *     a checkpoint     its folder or manifest.json: the step, the tensors; whether its files are there
 *     .safetensors     anybody's: tensors and metadata
 *     a run folder     what is in it
 *
 * What a file is, its content says, or where content cannot, its name. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/args.h"
#include "cli/inspect.h"
#include "cli/verbs.h"

enum { HEAD_BYTES = 4096 };

bool inspect_ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

bool inspect_head_holds(Bytes data, const char *word)
{
    const size_t n = strlen(word), head = data.bytes < HEAD_BYTES ? data.bytes : HEAD_BYTES;
    for (size_t i = 0; i + n <= head; i++)
        if (memcmp(data.at + i, word, n) == 0) return true;
    return false;
}

/* The first row that knows the file, or NULL. */
static const InspectKind *kind_of(const char *path, Bytes data)
{
    static const InspectKind *const table[] = {inspect_state, inspect_jobs, inspect_results};
    for (int t = 0; t < 3; t++)
        for (const InspectKind *k = table[t]; k->is; k++)
            if (k->is(path, data)) return k;
    return NULL;
}

static Err inspect_file(const char *path, Arena *a)
{
    Bytes data;
    TRY(map_file(path, &data));
    const InspectKind *kind = kind_of(path, data);
    const Err err =
        kind ? kind->describe(path, data, a)
             : err_fail(ERR_CHECK,
                        "%s: no file of ours that I know; token files, run files (.yaml), "
                        "schedules, metrics.jsonl, recorder.json, config.json, checkpoints, "
                        ".safetensors and run folders are. `sheaf data show` tells what it would "
                        "be as training data",
                        path);
    unmap(&data);
    return err;
}

/* A checkpoint, a run folder, or a model's: the files in it that we know. */
static Err inspect_folder(const char *path, bool check, Arena *a)
{
    static const char *const names[] = {"config.yaml", "config.json", "metrics.jsonl",
                                        "recorder.json"};
    char file[INSPECT_PATH_BYTES];
    bool known, any = false;
    TRY(inspect_state_folder(path, check, a, &any));
    for (int i = 0; i < 4; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        if (!map_exists(file)) continue;
        any = true;
        TRY(inspect_file(file, a));
    }
    snprintf(file, sizeof file, "%s/checkpoints", path);
    TRY(inspect_state_folder(file, check, a, &known));
    if (any || known) return OK;
    return err_fail(ERR_CHECK,
                    "%s: a folder without config.yaml, config.json, metrics.jsonl or checkpoints",
                    path);
}

int verb_inspect(int argc, char **argv)
{
    Arena arena;
    PlainArgs files = {0};
    struct stat s;
    int status = 0;
    if (arena_open(&arena, "inspect", ARENA_PLENTY) != OK) return cli_fail(ERR_NOMEM);
    bool check = false;
    const Flag flags[] = {{"--check", NULL, &check}};
    Err err = args_plain(argc, argv, flags, 1, &arena, &files);
    if (err == OK && files.n == 0) err = err_fail(ERR_CONFIG, "inspect: no file; name one");
    if (err != OK) status = cli_fail(err);
    for (int i = 0; i < files.n && err == OK; i++) {
        const bool folder = stat(files.at[i], &s) == 0 && S_ISDIR(s.st_mode);
        const Err of_file =
            folder ? inspect_folder(files.at[i], check, &arena) : inspect_file(files.at[i], &arena);
        if (of_file != OK) status = cli_fail(of_file);
    }
    arena_close(&arena);
    return status;
}
