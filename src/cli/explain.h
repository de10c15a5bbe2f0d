/* explain.h -- what `sheaf explain` says: one set of facts, printed for people or as JSON.
 *
 *     run.yaml --> Config --> JobSettings --> Job --> Facts --+--> text
 *                                                             +--> JSON
 *
 * Facts are sums over the Job; nothing here knows more than the program that will run. */
#ifndef CLI_EXPLAIN_H
#define CLI_EXPLAIN_H

#include "base/text.h"
#include "cli/config.h"
#include "train/job.h"

/* What instructions do, at full extents. */
typedef struct {
    int instructions;
    double flops, flops_again;  /* again: computed a second time; not in flops */
    size_t bytes, bytes_copied; /* read and written by compute; by copies between spaces */
} Work;

typedef struct {
    const Config *config;
    const ModelConfig *model;
    const Job *job;
    const char *device; /* that `sheaf train` would use */
    int only;           /* the kind whose program is shown; -1: all */

    int units_of[MAX_KINDS];
    Work of[MAX_KINDS][N_PHASES]; /* one run of a phase */
    Work step;                    /* all runs of the list */
    double flops_forward;         /* of step.flops: what the loss alone needs */
    double flops_formula;         /* (6 N + 12 L d T) for each token */

    int64_t tokens_micro, tokens_step;
    size_t weights, moments, gradients, inputs, other; /* state: the first two; step: the rest */
    size_t total;
} Facts;

/* Local. Compiles the forward part once more, to tell its flops from those of backward. */
Err facts_gather(Facts *f, Arena *arena);

/* Local. All of it, for people; `temp` is another arena than that of the text. */
Err explain_text(const Facts *f, Arena *temp, Text *out);
void explain_plan_text(const Facts *f, Text *out);                /* model, plan, units */
void explain_cost_text(const Facts *f, Text *out);                /* memory, flops, bytes */
Err explain_actions_text(const Facts *f, Arena *temp, Text *out); /* the list of the rank */
/* Local. One object, keys in a fixed order. */
Err explain_json(const Facts *f, Text *out);
struct json_t *program_json(const Facts *f, int kind); /* one of its programs */
/* Local. The value as text; it is given up. ERR_NOMEM when there is none. */
Err json_text(struct json_t *value, Text *out);

/* Local. "none", "selective", "full", or the patterns. */
const char *recompute_text(const CompileOptions *o);

#endif
