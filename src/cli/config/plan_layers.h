/* plan_layers.h -- the section `layers` of plan files: words of ranges of layers, and the keys that
 * they stand for.
 *
 *     embed: [zero 1]
 *     0-15: [zero 3, recompute full]        parallel.zero: 1,3@layers:0-15
 *     16-31: [zero 1, recompute none]       parallel.recompute: none,full@layers:0-15
 *
 * The embedding's words are the values without a range. Equal words of ranges that follow each
 * other become one rule, so a range that was split in two means the same plan. */
#ifndef CLI_CONFIG_PLAN_LAYERS_H
#define CLI_CONFIG_PLAN_LAYERS_H

#include "cli/config/plan_file.h"

/* Local. Adds an entry of the section. ERR_CONFIG if a layer is missing before it or there twice,
 * or if a word or its value is unknown. */
Err plan_layers_read(const KeyValue *entry, Arena *a, PlanFile *p);
/* Local. Adds the keys of the words, once all entries are read. */
Err plan_layers_keys(PlanFile *p, Arena *a);
/* Local. Writes the section: ranges of layers with equal words. */
Err plan_layers_text(const Config *c, int64_t n_layers, Arena *temp, Text *out);

#endif
