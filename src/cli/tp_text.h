/* tp_text.h -- layouts of weights along tp, as explain and train print them. */
#ifndef CLI_TP_TEXT_H
#define CLI_TP_TEXT_H

#include "base/text.h"
#include "job/job.h"

struct json_t;

/* Local. A line for each kind of unit that differs from Megatron, after "  tp         ", and the
 * table of parallel.tp_weights=search. Nothing for Megatron's layouts. */
void tp_text(const Job *job, Text *t);
/* Local. The same in one line: "layer: q_proj whole; found by search"; nothing if Megatron's. */
void tp_line_text(const Job *job, Text *t);
/* Local. {"rules", "searched", "rates", "kinds"}; null for Megatron's layouts. */
struct json_t *tp_json(const Job *job);

#endif
