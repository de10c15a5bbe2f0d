/* names.c -- patterns against the names of values. A pattern that matches nothing is a mistake of
 * the one who wrote it, and is said to be one before anything runs. */
#include "compile/names.h"

#include <string.h>
#include "base/text.h"

enum { MAX_PATTERN = 128, MAX_NAMES = 64 };

/* The pattern that starts at *rest, in `one`; *rest moves behind it. False past the last. */
static bool next_pattern(const char **rest, char one[MAX_PATTERN])
{
    if (!*rest || !**rest) return false;
    const size_t length = strcspn(*rest, ",");
    const size_t kept = length < MAX_PATTERN - 1 ? length : MAX_PATTERN - 1;
    memcpy(one, *rest, kept);
    one[kept] = '\0';
    *rest += length + ((*rest)[length] == ',');
    return true;
}

bool names_listed(const char *patterns, const char *name)
{
    char one[MAX_PATTERN];
    for (const char *rest = patterns; *name && next_pattern(&rest, one);)
        if (text_glob(one, name)) return true;
    return false;
}

/* Names that a pattern may mean. A head has no backward phases and keeps nothing. */
static int collect(const Graph *kind, int n_kinds, const char *name[MAX_NAMES])
{
    int n = 0;
    for (int k = 0; k < n_kinds; k++) {
        if (graph_find(&kind[k], ROLE_Y) == NO_VALUE) continue;
        for (Value v = 0; v < kind[k].n_values && n < MAX_NAMES; v++)
            if (kind[k].value[v].role == ROLE_LOCAL && *kind[k].value[v].name)
                name[n++] = kind[k].value[v].name;
    }
    return n;
}

static Err no_match(const char *key, const char *pattern, const char *const *name, int n,
                    Arena *temp)
{
    const char *list, *near = text_nearest(pattern, name, n);
    Text t = text_in(temp);
    for (int i = 0; i < n; i++) text_add(&t, "%s%s", i ? ", " : "", name[i]);
    TRY(text_done(&t, &list));
    return err_fail(ERR_CONFIG, "%s=%s: matches no value of any unit%s%s%s; there are %s", key,
                    pattern, near ? "; did you mean " : "", near ? near : "", near ? "?" : "",
                    list);
}

Err names_check(const char *key, const char *patterns, const Graph *kind, int n_kinds, Arena *temp)
{
    const char *name[MAX_NAMES];
    char one[MAX_PATTERN];
    const int n = collect(kind, n_kinds, name);
    for (const char *rest = patterns; next_pattern(&rest, one);) {
        bool found = false;
        for (int i = 0; i < n; i++) found = found || text_glob(one, name[i]);
        if (!found) return no_match(key, one, name, n, temp);
    }
    return OK;
}
