/* inspect.h -- the kinds of files that `sheaf inspect` describes. Each kind is a pair of functions:
 * `is` recognizes a file, `describe` prints it. */
#ifndef CLI_INSPECT_INSPECT_H
#define CLI_INSPECT_INSPECT_H

#include "data/map.h"

enum { INSPECT_PATH_BYTES = 1024 };

typedef struct {
    bool (*is)(const char *path, Bytes data);
    Err (*describe)(const char *path, Bytes data, Arena *a);
} InspectKind;

/* Tables, each ended by a row of NULL. */
extern const InspectKind inspect_jobs[];    /* run files, config.json, schedules, token files */
extern const InspectKind inspect_plans[];   /* plan files, cluster files */
extern const InspectKind inspect_results[]; /* metrics.jsonl, recorder.json */
extern const InspectKind inspect_state[];   /* .safetensors, manifest.json, latest */

/* Local. Describes a folder with one checkpoint or several; *known is false if it has none.
 * `check`: reads all data and compares it with its hashes. */
Err inspect_state_folder(const char *path, bool check, Arena *a, bool *known);

bool inspect_ends_in(const char *path, const char *end);
/* Local. True if `word` occurs in the first 4096 bytes. */
bool inspect_head_holds(Bytes data, const char *word);

#endif
