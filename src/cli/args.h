/* args.h -- the arguments of a verb: the run file, section.key=value settings, flags.
 *
 *     sheaf explain run.yaml mesh.tp=2 --rank 3 --json
 *
 *     const Flag flags[] = {{"--rank", &rank, NULL}, {"--json", NULL, &json}};
 *     TRY(args_split(argc, argv, flags, 2, arena, &args));      accepts the rows of flags.def
 *     TRY(args_config(&args, arena, &config)); */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include "base/arena.h"
#include "cli/config/config.h"

/* Where a flag is stored. A verb has one for each of its rows in flags.def, and no others. */
typedef struct {
    const char *name;   /* "--rank" */
    const char **value; /* receives the value of --rank 3 or --rank=3; NULL: no value */
    bool *given;        /* set to true if the flag is present; may be NULL */
} Flag;

typedef struct {
    const char *file; /* NULL: not given */
    const char **set; /* "section.key=value" */
    int n_set;
    const char *plan; /* the plan file, if the verb has a Flag {"--plan", &args.plan, NULL} */
} Args;

/* Local. argv[0] is the verb, or the part of a verb (flags.h). ERR_CONFIG for an unknown flag, a
 * flag that is given again, a second file, a missing value. */
Err args_split(int argc, char **argv, const Flag *flags, int n_flags, Arena *a, Args *out);

/* Local. The configuration of the file, the plan and the settings. */
static inline Err args_config(const Args *args, Arena *a, Config *out)
{
    return config_open(
        &(ConfigSource){
            .file = args->file, .plan = args->plan, .set = args->set, .n_set = args->n_set},
        a, out);
}

/* Arguments that are not flags, in order. */
typedef struct {
    const char **at;
    int n;
} PlainArgs;

/* Local. For verbs whose arguments are files: separates the flags from all other arguments. */
Err args_plain(int argc, char **argv, const Flag *flags, int n_flags, Arena *a, PlainArgs *out);

#endif
