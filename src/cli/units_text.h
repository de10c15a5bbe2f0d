/* units_text.h -- the options of units that differ, and the GEMMs in FP8, as text and as JSON. */
#ifndef CLI_UNITS_TEXT_H
#define CLI_UNITS_TEXT_H

#include "base/text.h"
#include "job/job.h"

/* Local. One line for each run of units with the same options: "layer.0-7: zero 3, recompute full,
 * ...". Nothing if the job has no rules for layers. */
void units_text(const Job *job, Text *t);
/* Local. The same as a list of objects: first, last, zero, recompute, offload, ... */
struct json_t *units_options_json(const Job *job);
/* Local. "bf16"; "fp8" if GEMMs run in it. */
const char *precision_word(DType dtype, const Fp8Options *fp8);
/* Local. A line on the GEMMs in FP8; nothing if there are none. */
void fp8_text(const JobSettings *s, Text *t);

#endif
