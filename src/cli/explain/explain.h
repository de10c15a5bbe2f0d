/* explain.h -- what `sheaf explain` says of one rank: one set of facts, for people or as JSON.
 *
 *     run.yaml --> Config --> JobSettings --> Job --> Facts --+--> text
 *                                                             +--> JSON
 *
 * Facts are sums over the Job; nothing here knows more than the program that will run. */
#ifndef CLI_EXPLAIN_EXPLAIN_H
#define CLI_EXPLAIN_EXPLAIN_H

#include "base/text.h"
#include "plan/facts.h"

struct json_t;

/* Local. All of it, for people; `temp` is another arena than that of the text. */
Err explain_text(const Facts *f, Arena *temp, Text *out);
void explain_plan_text(const Facts *f, Text *out);                  /* model, plan */
Err explain_units_text(const Facts *f, Arena *temp, Text *out);     /* units, parameters */
Err explain_actions_text(const Facts *f, Arena *temp, Text *out);   /* the list of the rank */
Err explain_transfers_text(const Facts *f, Arena *temp, Text *out); /* of a step */
Err explain_steps_text(const Facts *f, Arena *temp, Text *out);     /* of what has steps */
void explain_pipeline_text(const Facts *f, Text *out);              /* as it was played */
void explain_memory_text(const Facts *f, Text *out);
void explain_cost_text(const Facts *f, Text *out); /* work, flops */
/* Local. One object, keys in a fixed order. */
Err explain_json(const Facts *f, Text *out);
/* Local. The value as text; it is given up. ERR_NOMEM when there is none. */
Err json_text(struct json_t *value, Text *out);

/* Local. "none", "selective", "full", or the patterns. */
const char *recompute_text(const CompileOptions *o);
/* Local. "dp {1 3}"; "tp {8..15}"; "dp, 2048 ranks". In `buffer`, which is returned. */
enum { GROUP_TEXT_BYTES = 96 };
const char *group_text(const Mesh *m, RankList group, char buffer[GROUP_TEXT_BYTES]);
/* Local. "dp x tp", likewise. */
const char *axes_text(const Mesh *m, unsigned axes, char buffer[GROUP_TEXT_BYTES]);

/* Local. The schedule as a picture, into a file (explain_svg.c). */
Err explain_svg(const Facts *f, const char *path, Arena *temp);
/* Local. And as a file that parallel.schedule takes. */
Err explain_schedule_file(const Facts *f, const char *path, Arena *temp);

#endif
