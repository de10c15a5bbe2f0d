/* config_rows.h -- private parts of the model configuration: entries as written, and the rows that
 * interpret them.
 *
 *     entry   {"n_layer", 12, origin "/models/gpt2/config.json", level 0}
 *     row     {"n_layer", gpt2, integer 1 .. 4096, &draft.c.n_layers}
 *
 * Only config*.c and presets.c of this folder include this header. */
#ifndef MODEL_CONFIG_ROWS_H
#define MODEL_CONFIG_ROWS_H

#include "model/config.h"

typedef enum { V_NULL, V_BOOL, V_INT, V_REAL, V_TEXT, V_LIST, V_OBJECT } ValueKind;

typedef struct {
    const char *key;    /* nested keys with a dot */
    const char *text;   /* the value as written; a list: its strings joined by commas */
    const char *origin; /* file, file:line, preset or command line */
    int level;          /* 0: preset or config.json; else ModelField.level */
    ValueKind kind;
    bool truth;
    int64_t whole;
    double real; /* also set for V_INT */
} Entry;

enum { MAX_ENTRIES = 512 };
typedef struct {
    Arena *arena;
    Entry *at;
    int n;
    bool trains; /* false: settings that affect training only, such as dropout, may have any
                  * value */
    IgnoredKeys ignore;
} Entries;

/* Local. Adds all keys of a config.json. */
Err entries_add_json(Entries *e, const char *path);
/* Local. The same from text; `path` is its name in messages. */
Err entries_add_json_text(Entries *e, const char *path, const char *text, size_t length);
/* Local. Adds an entry as it is. */
Err entries_add(Entries *e, const Entry *entry);

/* The target of the rows: the config, and keys of config.json that only determine other fields. */
typedef struct {
    ModelConfig c;
    const char *model_type;
    bool use_window;         /* Qwen's use_sliding_window */
    int64_t window_layers;   /* max_window_layers: layers below it have no window */
    const char *layer_types; /* the list, or NULL */
    const char *rope_type;
} Draft;

typedef enum {
    ROW_INT,
    ROW_FLOAT,
    ROW_BOOL,
    ROW_TEXT,
    ROW_LIST,
    ROW_ONLY, /* a feature with the supported values in `only`; nothing is stored */
} RowKind;

typedef struct {
    const char *key;
    unsigned families; /* bits: families that have the key */
    unsigned required; /* bits: families whose config.json must have it */
    RowKind kind;
    bool null_ok;     /* null keeps the default */
    size_t member;    /* offset in Draft */
    double low, high; /* limits of numbers, both inclusive */
    const char *only;
    const char *meaning;
} Row;

enum { MAX_CONFIG_ROWS = 96, ROW_UNKNOWN = -1, ROW_BOOKKEEPING = -2, ROW_OBJECT = -3 };

int row_count(void);
const Row *row_at(int i);
/* Local. Converts the entries to a config, which is not yet checked. */
Err draft_read(const Entries *e, const char *name, Draft *out);
/* Local. The last step of draft_read: derives fields that depend on other fields. */
Err draft_resolve(Draft *d);

/* Local. Returns the index of the family's row for the key, aliases included. ROW_OBJECT: the
 * object that contains rope's keys; ROW_BOOKKEEPING: a key that changes nothing; else
 * ROW_UNKNOWN. */
int row_find(const char *key, Family family);
/* Local. Returns this family's name for the common key `key` (GPT-2: n_embd for hidden_size). */
const char *row_key(const char *key, Family family);
/* Local. Returns this family's name for a key of another family (num_hidden_layers for n_layer), or
 * NULL. */
const char *row_sibling(const char *key, Family family);
/* Local. Returns the nearest key that one of the families has, or NULL. */
const char *row_nearest(const char *key, unsigned families);

#endif
