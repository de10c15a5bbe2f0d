/* verbs.c -- the table of verbs, and the dispatch from argv to one of them. */
#include "cli/verbs.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/text.h"
#include "comm/mpi.h"
#include "comm/nccl.h"
#include "data/map.h"
#include "device/registry.h"

const Verb verbs[] = {
    {"train", "run.yaml [key=value ...] [flags]",
     "train a model; resumes if the run folder has a checkpoint", verb_train, false},
    {"verify", "run.yaml [key=value ...] [flags]",
     "check on this machine that parallel layouts compute the same model", verb_verify, false},
    {"explain", "run.yaml [key=value ...] [flags]",
     "print the programs, schedule, transfers and memory of a rank", verb_explain, false},
    {"simulate", "run.yaml [key=value ...] [flags]",
     "compute memory, traffic, flops and time of every rank without running", verb_simulate, false},
    {"plan", "run.yaml [key=value ...] --cluster FILE [flags]",
     "find the fastest way to distribute a run over a cluster, with a certificate", verb_plan,
     true},
    {"profile", "[flags]", "measure the speed of this machine's CPU or GPUs for simulate --cluster",
     verb_profile, false},
    {"data", "build | show | check ...",
     "build files of tokens or clips for training; show and check them", verb_data, true},
    {"reshape", "SRC DST [key=value ...] [flags]",
     "convert a checkpoint to another layout, or from and to Hugging Face", verb_reshape, true},
    {"eval", "MODEL --text F | --tokens F | --tasks F.jsonl [key=value ...] [flags]",
     "measure perplexity on a text, or accuracy on multiple-choice tasks", verb_eval, false},
    {"generate", "MODEL -p \"...\" [key=value ...] [flags]",
     "generate text from prompts, streamed as it is produced; or clips", verb_generate, false},
    {"inspect", "FILE ... [flags]", "describe any Sheaf file in plain text; verify a checkpoint",
     verb_inspect, false},
    {"help", "[KEY | SECTION | VERB]", "describe a key, a section or a verb", verb_help, false},
    {NULL, NULL, NULL, NULL, false},
};

const Verb *verb_find(const char *name)
{
    for (const Verb *v = verbs; v->name; v++)
        if (strcmp(v->name, name) == 0) return v;
    return NULL;
}

int cli_fail(Err err)
{
    fprintf(stderr, "sheaf: %s\n", err_text());
    return err == ERR_CONFIG ? 2 : 1;
}

/* The verbs of this version, joined: "train, verify, explain". */
static void list_working(char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (const Verb *v = verbs; v->name; v++)
        if (v->run && used < bytes)
            used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? ", " : "", v->name);
}

/* ERR_CONFIG for a verb that is planned, misspelled or unknown. */
static Err refuse_verb(const char *name)
{
    const char *names[32];
    char available[256];
    int n = 0;
    list_working(available, sizeof available);
    if (verb_find(name))
        return err_fail(ERR_CONFIG, "%s: not in this version; available: %s", name, available);
    for (; verbs[n].name; n++) names[n] = verbs[n].name;
    const char *nearest = text_nearest(name, names, n);
    if (nearest)
        return err_fail(ERR_CONFIG, "%.80s: unknown verb; did you mean %s?", name, nearest);
    return err_fail(ERR_CONFIG, "%.80s: unknown verb; available: %s", name, available);
}

/* True if a launcher started several processes of a verb that runs in one; the first one prints
 * it. */
static bool refuse_launcher(const Verb *v)
{
    MpiLaunch by;
    if (!v->writes_alone || !mpi_launched(getenv, &by) || by.ranks == 1) return false;
    (void)err_fail(ERR_CONFIG,
                   "%s: %s started %d processes, which would all write the same files; start it "
                   "without %s",
                   v->name, by.by, by.ranks, by.by);
    if (by.rank == 0) (void)cli_fail(ERR_CONFIG);
    return true;
}

/* True if the first argument of the verb or the last one asks for help. */
static bool asks_for_help(int argc, char **argv)
{
    const char *const word[] = {argc > 2 ? argv[2] : "", argv[argc - 1]};
    for (int i = 0; i < 2 && argc > 2; i++)
        if (strcmp(word[i], "--help") == 0 || strcmp(word[i], "-h") == 0) return true;
    return false;
}

int cli_run(int argc, char **argv)
{
    char *const help[] = {(char *)"help", NULL};
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) return cli_fail(err_fail(ERR_CONFIG, "no verb; `sheaf help` lists them"));
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return verb_help(1, (char **)help);
    if (strcmp(name, "--version") == 0) {
        puts("sheaf " SHEAF_VERSION);
        char device[DEVICE_TEXT_BYTES], nccl[NCCL_TEXT_BYTES];
        puts(device_open_text("cuda", NULL, device));
        puts(nccl_text(NULL, nccl));
        return 0;
    }
    const Verb *verb = verb_find(name);
    if (!verb || !verb->run) return cli_fail(refuse_verb(name));
    if (asks_for_help(argc, argv)) return verb_help(2, (char *[]){"help", argv[1], NULL});
    if (refuse_launcher(verb)) return 2;
    const int status = verb->run(argc - 1, argv + 1);
    return status == 0 && map_check() != OK ? cli_fail(ERR_IO) : status;
}
