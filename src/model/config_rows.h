/* config_rows.h -- inside of model config: entries as they were written, rows that understand them.
 *
 *     entry   {"n_layer", 12, origin "/models/gpt2/config.json", level 0}
 *     row     {"n_layer", gpt2, integer 1 .. 4096, &draft.c.n_layers}
 *
 * Only the files config*.c and presets.c of this folder include this. */
#ifndef MODEL_CONFIG_ROWS_H
#define MODEL_CONFIG_ROWS_H

#include "model/config.h"

typedef enum { V_NULL, V_BOOL, V_INT, V_REAL, V_TEXT, V_LIST, V_OBJECT } ValueKind;

typedef struct {
    const char *key;    /* nested ones with a dot */
    const char *text;   /* the value as written; of a list, its texts joined by commas */
    const char *origin; /* file, file:line, preset or command line */
    int level;          /* 0: preset or config.json; else ModelField.level */
    ValueKind kind;
    bool truth;
    int64_t whole;
    double real; /* of V_INT too */
} Entry;

enum { MAX_ENTRIES = 512 };
typedef struct {
    Arena *arena;
    Entry *at;
    int n;
    bool trains; /* false: what is of training alone, as dropout is, may be anything */
} Entries;

/* Local. One more, its value read from text: null, true, false, a number, else a text. */
Err entries_add_text(Entries *e, const ModelField *field);
/* Local. All keys of a config.json. */
Err entries_add_json(Entries *e, const char *path);
/* Local. The same of a text; `path` is its name, for messages. */
Err entries_add_json_text(Entries *e, const char *path, const char *text, size_t length);
/* Local. One more, as it is. */
Err entries_add(Entries *e, const Entry *entry);

/* What the rows fill: the config, and what only config.json says. */
typedef struct {
    ModelConfig c;
    const char *model_type;
    bool use_window;         /* use_sliding_window of Qwen */
    int64_t window_layers;   /* max_window_layers: the layers below it see everything */
    const char *layer_types; /* the list, or NULL */
    const char *rope_type;
} Draft;

typedef enum {
    ROW_INT,
    ROW_FLOAT,
    ROW_BOOL,
    ROW_TEXT,
    ROW_LIST,
    ROW_ONLY, /* a feature of which we honour the values in `only`; nothing to store */
} RowKind;

typedef struct {
    const char *key;
    unsigned families; /* bits: who knows it */
    unsigned required; /* bits: whose config.json must say it */
    RowKind kind;
    bool null_ok;     /* null leaves the default */
    size_t member;    /* offset in Draft */
    double low, high; /* numbers: limits, both legal */
    const char *only;
    const char *meaning;
} Row;

enum { N_ROWS_MAX = 64, ROW_UNKNOWN = -1, ROW_BOOKKEEPING = -2, ROW_OBJECT = -3 };

int row_count(void);
const Row *row_at(int i);
/* Local. What the entries say, as a config; not yet checked. */
Err draft_read(const Entries *e, const char *name, Draft *out);
/* Local. The second half of it: what follows from other fields. */
Err draft_settle(Draft *d);

/* Local. The row that a family reads the key by (aliases too), ROW_OBJECT for the
 * object that holds rope's, ROW_BOOKKEEPING for keys that change nothing, ROW_UNKNOWN else. */
int row_find(const char *key, Family family);
/* Local. The key that this family uses where the others say `key` (n_embd for hidden_size). */
const char *row_key(const char *key, Family family);
/* Local. What this family says for another family's key (num_hidden_layers for n_layer), or NULL.
 */
const char *row_sibling(const char *key, Family family);
/* Local. The nearest key that one of the families knows, or NULL. */
const char *row_nearest(const char *key, unsigned families);

#endif
