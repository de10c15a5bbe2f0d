/* keys.h -- the rows of keys.def as data, for the reader, the checks and help. */
#ifndef CLI_CONFIG_KEYS_H
#define CLI_CONFIG_KEYS_H

#include "cli/config/config.h"

typedef enum { KEY_INT, KEY_FLOAT, KEY_BOOL, KEY_TEXT, KEY_CHOICE, KEY_LIST } KeyType;

typedef struct {
    const char *section, *name;
    const char *path; /* "optim.lr" */
    KeyType type;
    const char *fallback; /* the default, as a user would write it */
    double low, high;
    const char *works; /* values honoured today, spaces between them; NULL: all */
    const char *why;   /* the others are not */
    const char *meaning;
    size_t member; /* offset in Config */
} Key;

typedef struct {
    const char *name, *meaning;
} Section;

enum { MAX_SECTIONS = 16 };

const Key *key_at(KeyId id);
int section_count(void);
const Section *section_at(int i);
/* Local. The key of a section, or -1. */
int key_find(const char *section, const char *name);
/* Local. The section, or -1. */
int section_find(const char *name);
/* Local. The texts of a CHOICE key, in the order of keys.def; *first is the Option of the first. */
int key_options(const Key *key, const char **text, Option *first);
/* Local. An option as it is written. */
const char *option_text(Option option);

/* Local. ERR_CONFIG that names the place, what is unknown, and the nearest that is known. */
Err key_unknown(const char *origin, const char *section, const char *name);

/* A value as it was written. */
typedef struct {
    const char *text;
    const char *origin; /* "run.yaml:4" or "command line" */
    bool quoted;        /* in YAML: a text, whatever it looks like */
    bool sequence;      /* a YAML list, joined by commas */
} WrittenValue;

/* Local. Reads, checks and stores one value into its member. */
Err key_set(KeyId id, const WrittenValue *value, Arena *a, Config *c);

/* Local. The pairs of a YAML file, in order. */
typedef struct {
    const char *section, *name;
    WrittenValue value;
    int line;
} Pair;
typedef struct {
    Pair *at;
    int n;
} Pairs;
enum { MAX_PAIRS = 1024, MAX_YAML_BYTES = 1 << 20 };
Err pairs_read(const char *path, Arena *a, Pairs *out);

#endif
