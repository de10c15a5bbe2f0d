/* inspect.c -- `sheaf inspect FILE`: describes any Sheaf file in plain text.
 *
 *     token files      as `sheaf data show`
 *     run files        the model, the data, the steps, the keys that differ from their defaults
 *     plan files       the run that they are for, the choices, the predictions
 *     cluster files    the main rates
 *     schedules        stages, chunks, micro-batches, actions; the result of the check
 *     metrics.jsonl    steps, losses, tokens
 *     config.json      the model
 *     recorder.json    of a failed run: position and latest transfers of each rank, and the ranks
 *                      that it waits for
 *     a checkpoint     folder or manifest.json: the step, the tensors, whether all files exist
 *     .safetensors     of any program: tensors and metadata
 *     a run folder     the files in it
 *
 * The kind of a file follows from its content, or from its name if the content is not
 * distinctive. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/args.h"
#include "cli/inspect/inspect.h"
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

/* Returns the first kind that recognizes the file, or NULL. */
static const InspectKind *kind_of(const char *path, Bytes data)
{
    static const InspectKind *const table[] = {inspect_state, inspect_plans, inspect_jobs,
                                               inspect_results};
    for (int t = 0; t < 4; t++)
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
                        "%s: not a known file; known are token files, clips (.npy), run files, "
                        "plans and cluster files (.yaml), schedules, metrics.jsonl, recorder.json, "
                        "config.json, checkpoints, .safetensors and "
                        "run folders. `sheaf data show` describes any file as training data",
                        path);
    unmap(&data);
    return err;
}

/* Describes the known files in a checkpoint, a run folder or a model folder. */
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
    if (err == OK && files.n == 0) err = err_fail(ERR_CONFIG, "inspect: no file; give one or more");
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
