/* verbs.h -- the verbs of the command: one file and one table row each.
 *
 * A verb gets argv from its own name on and returns the exit status: 0 success, 1 failure, 2 a
 * request that cannot be fulfilled (ERR_CONFIG), 128 + n after a stop request by signal n. */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

#include <stdbool.h>

#include "base/err.h"

#ifndef SHEAF_VERSION
#define SHEAF_VERSION "0.1.0"
#endif

typedef struct {
    const char *name;
    const char *usage;                 /* the arguments after the name; all are in flags.def */
    const char *meaning;               /* one line of `sheaf help` */
    int (*run)(int argc, char **argv); /* argv[0] is the verb; NULL: planned */
    bool writes_alone;                 /* in one process: several would write the same files */
} Verb;

/* The table of verbs, ended by a row without a name. */
extern const Verb verbs[];
/* Local. The row, or NULL. */
const Verb *verb_find(const char *name);

int verb_data(int argc, char **argv);
int verb_explain(int argc, char **argv);
int verb_simulate(int argc, char **argv);
int verb_plan(int argc, char **argv);
int verb_profile(int argc, char **argv);
int verb_verify(int argc, char **argv);
int verb_train(int argc, char **argv);
int verb_eval(int argc, char **argv);
int verb_generate(int argc, char **argv);
int verb_help(int argc, char **argv);
int verb_inspect(int argc, char **argv);
int verb_reshape(int argc, char **argv);

/* Local. Prints "sheaf: " and the latest error message to stderr; returns the exit status. */
int cli_fail(Err err);
/* Local. Runs the command with these arguments: main() without the setup of the process. */
int cli_run(int argc, char **argv);

#endif
