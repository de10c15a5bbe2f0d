/* json.h -- shared by the files that write an explanation as JSON. */
#ifndef CLI_EXPLAIN_JSON_H
#define CLI_EXPLAIN_JSON_H

#include <jansson.h>
#include "cli/explain/explain.h"

/* json_object_set_new takes ownership of the value even if it fails; it fails for a NULL value. */
static inline void set(json_t *o, const char *key, json_t *value)
{
    json_object_set_new(o, key, value);
}
static inline void set_text(json_t *o, const char *key, const char *s)
{
    set(o, key, json_string(s));
}
static inline void set_count(json_t *o, const char *key, int64_t n)
{
    set(o, key, json_integer(n));
}
static inline void set_bytes(json_t *o, const char *key, size_t n)
{
    set(o, key, json_integer((json_int_t)n));
}
static inline void set_flops(json_t *o, const char *key, double n)
{
    set(o, key, json_integer((json_int_t)n));
}

/* Local. Each returns a new value. */
json_t *memory_json(const Facts *f);
json_t *experts_json(const Job *job); /* {"pp", "edp", "ep", "etp", "rows"} */
json_t *transfers_json(const Facts *f);
json_t *actions_json(const Facts *f);
json_t *pipeline_json(const Facts *f);
json_t *program_json(const Facts *f, int class); /* the program of one class of units */
json_t *span_json(Span s);                       /* [lo, hi] */
/* {"kind", "axes", "group", "ranks", "sent_bytes"} */
json_t *transfer_json(const Facts *f, const Transfer *t);
json_t *group_json(const Mesh *m, RankList group); /* {"axes", "group", "ranks"} */

#endif
