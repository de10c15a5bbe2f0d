/* renamed.h -- names of earlier versions: refused in new requests, understood in saved ones.
 *
 *     run.yaml, argument       parallel.arrange: true    ERR_CONFIG: now parallel.prepack
 *     runs/NAME/config.yaml    parallel.arrange: true    read as parallel.prepack: true
 *
 * A saved configuration was right when it was written, and its run must still resume, evaluate and
 * reshape. A request can be edited, so it has one spelling. */
#ifndef CLI_CONFIG_RENAMED_H
#define CLI_CONFIG_RENAMED_H

#include "cli/config/keys.h"

/* Local. True if `path` is the config.yaml of a run folder: a folder checkpoints/ is next to it. */
bool config_is_saved(const char *path);
/* Local. Replaces old names by their present ones, keys and values. New texts are in the arena. */
Err pairs_rename(KeyValues *pairs, Arena *a);
/* Local. ERR_CONFIG with the new name if the key is an old one, or its value has an old name. */
Err renamed_refuse(const char *section, const char *name, const WrittenValue *value, Arena *a);
/* Local. The present path of a key, "parallel.prepack", from its old path or its old name alone;
 * NULL if it has not been renamed. */
const char *renamed_path(const char *word);

#endif
