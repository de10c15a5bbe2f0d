/* context_text.h -- how attention and tokens are sharded over cp, as explain, simulate and train
 * print it. The job has mesh.cp > 1, except for context_json. */
#ifndef CLI_CONTEXT_TEXT_H
#define CLI_CONTEXT_TEXT_H

#include "base/text.h"
#include "job/job.h"

struct json_t;

/* Local. "ring, chosen by auto". */
void context_text(const Job *job, Text *t);
/* Local. The ways that auto compared: in one line, the choice first, then why others are not
 * possible; and as a table, each line after `before`, nothing if auto was not asked. */
void context_others_text(const Job *job, Text *t);
void context_table_text(const Job *job, const char *before, Text *t);
/* Local. "zigzag, chosen by auto, over cp_ring, 2 ranks". */
void context_tokens_text(const Job *job, Text *t);
/* Local. "64 on each rank of cp": the tokens of a micro-batch that a rank holds. */
void context_share_text(const Job *job, Text *t);
/* Local. Heads of the rank with the most, over the mean of the ranks that share heads. */
double context_heads_balance(const Job *job);
/* Local. {"kind", "chosen_by_auto", "tokens", "tokens_chosen_by_auto", "ms", "excluded"}: the
 * milliseconds of the ways that auto compared, and why others are not possible; null with
 * mesh.cp=1. */
struct json_t *context_json(const Job *job);

#endif
