/* layer_rules.h -- values of a key that hold for some layers only.
 *
 *     parallel.zero: [3@layers:0-15, 1]          layers 0 to 15; 1: all other units
 *     parallel.recompute: [full@layers:0-7, mlp.act+attn.in@layers:8-31]
 *
 * Items without @layers: are the value of the key, for all units without a rule. + joins patterns
 * for one range. @embed and @head are the other two units. */
#ifndef CLI_CONFIG_LAYER_RULES_H
#define CLI_CONFIG_LAYER_RULES_H

#include "cli/config/keys.h"
#include "job/job.h"

/* Local. Moves the items with layers from a written value to the rules of `c`, where they replace
 * the key's earlier ones; *rest is the value without them. ERR_CONFIG for a rule that is no range,
 * or whose value the key does not take. Keys that take no rules are passed on. */
Err layer_rules_take(KeyId id, const WrittenValue *value, Arena *a, Config *c, WrittenValue *rest);
/* Local. The first rule of the key as it is written, or NULL. */
const char *layer_rules_first(const Config *c, KeyId id);
/* Local. Sets settings->parallel.units, if there are rules, in the arena of the config. ERR_CONFIG
 * if a rule matches no layer of the model, or if two rules of a key name one layer. */
Err layer_rules_apply(const Config *c, const ModelConfig *model, JobSettings *settings);
/* Local. Prints the rules of a key as items of a YAML list, each followed by a comma. */
void layer_rules_print(const Config *c, KeyId id, Text *out);

#endif
