/* keys.c -- keys.def as tables, and lookups in them. */
#include "cli/config/keys.h"

#include <string.h>

#define SECTION(section, meaning)
#define OPTION(section, name, id, text)

#define KEY(section, name, type, fallback, low, high, works, why, meaning)                         \
    {#section,                                                                                     \
     #name,                                                                                        \
     #section "." #name,                                                                           \
     KEY_##type,                                                                                   \
     fallback,                                                                                     \
     low,                                                                                          \
     high,                                                                                         \
     works,                                                                                        \
     why,                                                                                          \
     meaning,                                                                                      \
     offsetof(Config, section##_##name)},
static const Key keys[N_KEYS] = {
#include "cli/config/keys.def"
};
#undef KEY
#define KEY(section, name, type, fallback, low, high, works, why, meaning)

#undef SECTION
#define SECTION(section, meaning) {#section, meaning},
static const Section sections[] = {
#include "cli/config/keys.def"
};
#undef SECTION
#define SECTION(section, meaning)

#undef OPTION
#define OPTION(section, name, id, text) {#section "." #name, text},
static const struct {
    const char *path, *text;
} options[N_OPTIONS] = {
#include "cli/config/keys.def"
};
#undef OPTION
#undef KEY
#undef SECTION

enum { N_SECTIONS = sizeof sections / sizeof *sections };
_Static_assert((int)N_SECTIONS <= (int)MAX_SECTIONS, "a larger MAX_SECTIONS");

const Key *key_at(KeyId id) { return &keys[id]; }

int section_count(void) { return N_SECTIONS; }

const Section *section_at(int i) { return &sections[i]; }

int key_find(const char *section, const char *name)
{
    for (int i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0) return i;
    return -1;
}

int section_find(const char *name)
{
    for (int i = 0; i < N_SECTIONS; i++)
        if (strcmp(sections[i].name, name) == 0) return i;
    return -1;
}

int key_options(const Key *key, const char **text, Option *first)
{
    int n = 0;
    for (int i = 0; i < N_OPTIONS; i++) {
        if (strcmp(options[i].path, key->path) != 0) continue;
        if (n == 0) *first = (Option)i;
        text[n++] = options[i].text;
    }
    return n;
}

const char *option_text(Option option) { return options[option].text; }

static Err unknown_section(const char *origin, const char *section)
{
    const char *names[N_SECTIONS];
    for (int i = 0; i < N_SECTIONS; i++) names[i] = sections[i].name;
    const char *nearest = text_nearest(section, names, N_SECTIONS);
    if (nearest)
        return err_fail(ERR_CONFIG, "%s: %.80s: unknown section; did you mean %s?", origin, section,
                        nearest);
    return err_fail(ERR_CONFIG,
                    "%s: %.80s: unknown section; the sections are model, data, batch, optim, mesh, "
                    "parallel, precision, numerics, run (`sheaf help` describes them)",
                    origin, section);
}

/* Suggestions in this order: the same name in another section, then the nearest name in this one. A
 * name in the wrong section is the more common mistake. */
Err key_unknown(const char *origin, const char *section, const char *name)
{
    const char *names[N_KEYS];
    int n = 0;
    if (section_find(section) < 0) return unknown_section(origin, section);
    for (int i = 0; i < N_KEYS; i++) /* the name exists, but in another section */
        if (strcmp(keys[i].name, name) == 0)
            return err_fail(ERR_CONFIG, "%s: %s.%.80s: unknown key; did you mean %s?", origin,
                            section, name, keys[i].path);
    for (int i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].section, section) == 0) names[n++] = keys[i].name;
    const char *nearest = text_nearest(name, names, n);
    if (nearest)
        return err_fail(ERR_CONFIG, "%s: %s.%.80s: unknown key; did you mean %s.%s?", origin,
                        section, name, section, nearest);
    return err_fail(ERR_CONFIG,
                    "%s: %s.%.80s: unknown key; `sheaf help %s` lists the keys of the section",
                    origin, section, name, section);
}
