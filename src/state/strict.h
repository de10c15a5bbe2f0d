/* strict.h -- parses JSON that may be damaged or malicious, with jansson and further limits.
 *
 * jansson refuses repeated keys, NULs, invalid UTF-8 and numbers that do not fit. Here the depth is
 * limited too, so that a file of brackets costs no memory. */
#ifndef STATE_STRICT_H
#define STATE_STRICT_H

#include <jansson.h>
#include "base/text.h"

/* Local. Parses an object with at most `depth` nested brackets; the caller frees it with
 * json_decref. ERR_CHECK names the path and the position. */
Err strict_parse(const char *path, const char *text, size_t bytes, int depth, json_t **out);
/* Local. True if it is an integer from lo to hi. */
bool strict_int(const json_t *x, int64_t lo, int64_t hi, int64_t *out);
/* Local. ERR_CHECK unless the object has exactly these members; `what` is its name in messages. */
Err strict_members(const char *path, const char *what, const json_t *o, const char *const *name,
                   size_t n);
/* Local. Appends the text as a JSON string; invalid UTF-8 is an error of `t`. */
void strict_quote(Text *t, const char *text);

#endif
