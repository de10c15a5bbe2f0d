/* tasks.h -- multiple-choice tasks, one JSON object per line.
 *
 *     {"context": "The sky is", "choices": ["blue", "loud"], "gold": 0}
 *
 * Other names are accepted, as in tasks of the common evaluation harness: query or ctx for context,
 * endings for choices, label for gold. Gold is an index, as a number or a string of digits. A space
 * is inserted between context and choice, unless one of them has white space there or the context
 * is empty. */
#ifndef DATA_TASKS_H
#define DATA_TASKS_H

#include "data/tokens.h"

typedef struct {
    Bytes context;   /* without trailing white space, which belongs to the choices */
    Bytes *choice;   /* with the space before it */
    int64_t *length; /* characters of each choice as written */
    int n, gold;
} ChoiceTask;

typedef struct {
    ChoiceTask *task;
    int64_t n;
    int64_t n_choices; /* total over all tasks */
} ChoiceTasks;

/* Local. ERR_CHECK names the file, the line and the problem. */
Err tasks_read(const char *path, Arena *a, ChoiceTasks *out);
Err tasks_parse(const char *path, Bytes data, Arena *a, ChoiceTasks *out);

#endif
