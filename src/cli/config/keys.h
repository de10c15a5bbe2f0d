/* keys.h -- the rows of keys.def as data, for the reader, the checks and `sheaf help`. */
#ifndef CLI_CONFIG_KEYS_H
#define CLI_CONFIG_KEYS_H

#include "cli/config/config.h"

typedef enum { KEY_INT, KEY_FLOAT, KEY_BOOL, KEY_TEXT, KEY_CHOICE, KEY_LIST } KeyType;

typedef struct {
    const char *section, *name;
    const char *path; /* "optim.lr" */
    KeyType type;
    const char *fallback; /* the default, as a user would write it */
    double low, high;     /* inclusive */
    const char *works;    /* supported values, separated by spaces; NULL: all */
    const char *why;      /* reason why the others are not supported */
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
/* Local. The KeyId, or -1. */
int key_find(const char *section, const char *name);
/* Local. The index of the section, or -1. */
int section_find(const char *name);
/* Local. The texts of a CHOICE key, in the order of keys.def; *first is the Option of the first. */
int key_options(const Key *key, const char **text, Option *first);
/* Local. An option as it is written. */
const char *option_text(Option option);

/* Local. ERR_CONFIG with the place, the unknown section or key, and the nearest known one. */
Err key_unknown(const char *origin, const char *section, const char *name);

/* A value before it is converted to the type of its key. */
typedef struct {
    const char *text;
    const char *origin; /* "run.yaml:4" or "command line" */
    bool quoted;        /* in YAML: always a text, even if it looks like a number */
    bool sequence;      /* a YAML list; `text` is TextList.text */
} WrittenValue;

/* Local. Converts and checks a value, then stores it in its member of Config; values for some
 * layers become rules. */
Err key_set(KeyId id, const WrittenValue *value, Arena *a, Config *c);
/* Local. The same for a value without rules. */
Err key_convert(KeyId id, const WrittenValue *value, Arena *a, Config *c);
/* Local. The items of a value, separated by commas. */
Err list_items(const Key *key, const WrittenValue *value, Arena *a, TextList *out);

typedef struct {
    const char *section, *name;
    WrittenValue value;
    int line;
} KeyValue;
typedef struct {
    KeyValue *at;
    int n;
} KeyValues;
enum { MAX_PAIRS = 1024, MAX_YAML_BYTES = 1 << 20 };
/* Local. The section, key and value of every line of a YAML file, in order. Sections are checked,
 * keys and values are not. */
Err pairs_read(const char *path, Arena *a, KeyValues *out);
typedef struct {
    const char *path; /* for messages */
    const char *text; /* a NUL follows its `length` bytes */
    size_t length;
    const char *const *sections; /* [n_sections], at most MAX_SECTIONS; NULL: those of keys.def */
    int n_sections;
} YamlSource;
/* Local. The same for a text with these sections. */
Err pairs_parse(const YamlSource *from, Arena *a, KeyValues *out);

#endif
