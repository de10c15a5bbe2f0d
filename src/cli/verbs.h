/* verbs.h -- the verbs of the command: one file each, one row each.
 *
 * A verb gets what follows its name and answers with the exit status: 0 done, 1 failed, 2 a request
 * that cannot be honoured. */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

#include "base/err.h"

#ifndef SHEAF_VERSION
#define SHEAF_VERSION "0.1.0"
#endif

typedef struct {
    const char *name;
    const char *usage;                 /* what follows the name */
    const char *meaning;               /* one line */
    int (*run)(int argc, char **argv); /* argv[0] is the verb; NULL: not yet */
} Verb;

/* The rows; a row without a name ends them. */
extern const Verb verbs[];
/* Local. What else `sheaf help VERB` says: the flags of a verb that has many; NULL: nothing. */
const char *verb_more(const Verb *verb);
extern const char generate_help[], eval_help[];
/* Local. The row, or NULL. */
const Verb *verb_find(const char *name);

int verb_data(int argc, char **argv);
int verb_explain(int argc, char **argv);
int verb_simulate(int argc, char **argv);
int verb_verify(int argc, char **argv);
int verb_train(int argc, char **argv);
int verb_eval(int argc, char **argv);
int verb_generate(int argc, char **argv);
int verb_help(int argc, char **argv);
int verb_inspect(int argc, char **argv);
int verb_reshape(int argc, char **argv);

/* Local. Says "sheaf: " and the latest message on stderr; returns the exit status for it. */
int cli_fail(Err err);
/* Local. What `sheaf` with these arguments does: main without the process. */
int cli_run(int argc, char **argv);

#endif
