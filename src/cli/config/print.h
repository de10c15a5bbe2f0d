/* print.h -- a configuration written as YAML with every key settled: a run file that repeats the
 * run. */
#ifndef CLI_CONFIG_PRINT_H
#define CLI_CONFIG_PRINT_H

#include "base/text.h"
#include "cli/config/config.h"

/* Local. Prints run.fresh as false: it is a request for the first start only, and a run file that
 * starts over does not repeat the run. */
void config_print(const Config *config, Text *out);
/* Local. The value of one key, as config_print writes it. */
void config_print_value(const Config *c, KeyId key, Text *out);
/* Local. Writes dir/config.yaml; a file that is already there is replaced atomically. */
Err config_write(const Config *c, const char *dir);
/* Local. Points to the value of a key in text that config_print wrote; the value ends at the end of
 * the line. NULL: the key is missing. */
const char *config_yaml_value(const char *yaml, const char *section, const char *key);
/* Local. Copies such a value into the arena, without its quotes; NULL: the key is missing. */
Err config_yaml_text(const char *yaml, const char *section, const char *key, Arena *a,
                     const char **out);

#endif
