/* explain.h -- the facts that `sheaf explain` prints about one rank, as text or JSON.
 *
 *     run.yaml --> Config --> JobSettings --> Job --> Facts --+--> text
 *                                                             +--> JSON
 *
 * Facts are sums over the compiled Job, the same program that a run executes. Nothing is
 * estimated by a second formula. */
#ifndef CLI_EXPLAIN_EXPLAIN_H
#define CLI_EXPLAIN_EXPLAIN_H

#include "base/text.h"
#include "plan/facts/facts.h"

struct json_t;

/* Local. The whole report as text, and its parts. `temp` must not be the arena of the text. */
Err explain_text(const Facts *f, Arena *temp, Text *out);
Err explain_plan_text(const Facts *f, Arena *temp, Text *out);      /* model, plan */
Err explain_units_text(const Facts *f, Arena *temp, Text *out);     /* units, parameters */
Err explain_actions_text(const Facts *f, Arena *temp, Text *out);   /* action list of the rank */
Err explain_transfers_text(const Facts *f, Arena *temp, Text *out); /* transfers of a step */
Err explain_steps_text(const Facts *f, Arena *temp, Text *out); /* steps of GATHER, REDUCE, moves */
void explain_experts_text(const Job *job, Text *out);  /* experts on other ranks; else nothing */
void explain_pipeline_text(const Facts *f, Text *out); /* simulated schedule */
void explain_memory_text(const Facts *f, Text *out);
void explain_cost_text(const Facts *f, Text *out); /* work, flops */
/* Local. The attention plan `name` for the run's cp ranks, and a table of all plans. */
Err explain_context_text(const Facts *f, const char *name, Arena *temp, Text *out);
/* Local. Draws it into an SVG file: a hop of keys takes as long as a visit of half of the pairs. */
Err explain_context_svg(const Facts *f, const char *name, const char *path, Arena *temp);
/* Local. The report as one JSON object with keys in a fixed order. */
Err explain_json(const Facts *f, Text *out);
/* Local. Prints the value and releases it. ERR_NOMEM if it is NULL or cannot be printed. */
Err json_text(struct json_t *value, Text *out);

/* Local. "dp {1 3}"; "tp {8..15}"; "dp, 2048 ranks". Returns `buffer`. */
enum { GROUP_TEXT_BYTES = 96 };
const char *group_text(const Mesh *m, RankList group, char buffer[GROUP_TEXT_BYTES]);
/* Local. "dp x tp": the axes with more than one rank, or the first. Returns `buffer`. */
const char *axes_text(const Mesh *m, unsigned axes, char buffer[GROUP_TEXT_BYTES]);

/* Local. Draws the schedule into an SVG file. */
Err explain_svg(const Facts *f, const char *path, Arena *temp);
/* Local. Writes the schedule as a file for parallel.schedule. */
Err explain_schedule_file(const Facts *f, const char *path, Arena *temp);

#endif
