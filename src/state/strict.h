/* strict.h -- JSON that may be damaged, or made to harm: what jansson takes, with less than it
 * allows. It refuses keys that stand twice, NULs, text that is not UTF-8 and numbers that do not
 * fit; here also depth is limited, so that a file of brackets costs no memory. */
#ifndef STATE_STRICT_H
#define STATE_STRICT_H

#include <jansson.h>
#include "base/text.h"

/* Local. An object, with at most `depth` brackets open at once; json_decref it. ERR_CHECK names the
 * path and the place. */
Err strict_parse(const char *path, const char *text, size_t bytes, int depth, json_t **out);
/* Local. Is it an integer from lo to hi? */
bool strict_int(const json_t *x, int64_t lo, int64_t hi, int64_t *out);
/* Local. ERR_CHECK unless the object has these members and no other; `what` is its name in the
 * message. */
Err strict_members(const char *path, const char *what, const json_t *o, const char *const *name,
                   size_t n);
/* Local. Adds the text as a JSON string; what is not UTF-8 is an error of `t`. */
void strict_quote(Text *t, const char *text);

#endif
