/* inspect.h -- the kinds of files that `sheaf inspect` knows, one file of code for those that belong
 * together. Each kind: is it one? then say it. */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H

#include "data/map.h"

enum { INSPECT_PATH_BYTES = 1024 };

typedef struct {
    bool (*is)(const char *path, Bytes data);
    Err (*describe)(const char *path, Bytes data, Arena *a);
} InspectKind;

/* Ended by a row of NULL. */
extern const InspectKind inspect_jobs[];    /* run files, config.json, schedules, token files */
extern const InspectKind inspect_results[]; /* metrics.jsonl, recorder.json */
extern const InspectKind inspect_state[];   /* .safetensors, manifest.json, latest */

/* Local. A folder of one checkpoint, or of checkpoints; *known false: it is neither. `check`: all
 * data is read and compared with its hashes. */
Err inspect_state_folder(const char *path, bool check, Arena *a, bool *known);

bool inspect_ends_in(const char *path, const char *end);
/* Local. Among the first bytes. */
bool inspect_head_holds(Bytes data, const char *word);

#endif
