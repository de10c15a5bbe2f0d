/* args.h -- what follows a verb, sorted: the run file, section.key=value words, flags.
 *
 *     sheaf explain run.yaml mesh.tp=2 --rank 3 --json
 *
 *     const Flag flags[] = {{"--rank", &rank, NULL}, {"--json", NULL, &json}};
 *     TRY(args_split(argc, argv, flags, 2, arena, &args));
 *     TRY(config_load(args.file, args.set, args.n_set, arena, &config)); */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include <stdbool.h>
#include "base/arena.h"

typedef struct {
    const char *name;   /* "--rank" */
    const char **value; /* where its value goes, as --rank 3 or --rank=3; NULL: it takes none */
    bool *given;        /* set when the flag is there; may be NULL */
} Flag;

typedef struct {
    const char *file; /* NULL: none was given */
    const char **set;
    int n_set;
} Args;

/* Local. argv[0] is the verb. ERR_CONFIG for an unknown flag, a second file, a missing value. */
Err args_split(int argc, char **argv, const Flag *flags, int n_flags, Arena *a, Args *out);

typedef struct {
    const char **at;
    int n;
} PlainArgs;

/* Local. For verbs that take files alone: the words that are no flags, in order. */
Err args_plain(int argc, char **argv, const Flag *flags, int n_flags, Arena *a, PlainArgs *out);

#endif
