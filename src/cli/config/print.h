/* print.h -- a configuration written out again, every key settled: a run file that repeats
 * the run. */
#ifndef CLI_CONFIG_PRINT_H
#define CLI_CONFIG_PRINT_H

#include "base/text.h"
#include "cli/config/config.h"

/* Local. */
void config_print(const Config *c, Text *out);
/* Local. As dir/config.yaml. */
Err config_write(const Config *c, const char *dir);
/* Local. The value of a key in what config_print wrote; it ends with the line. NULL: none. */
const char *config_yaml_value(const char *yaml, const char *section, const char *key);
/* Local. Likewise, a text without its quotes, in the arena; NULL: it is not there. */
Err config_yaml_text(const char *yaml, const char *section, const char *key, Arena *a,
                     const char **out);

#endif
