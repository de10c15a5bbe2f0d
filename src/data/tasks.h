/* tasks.h -- multiple-choice tasks, a JSON object in each line.
 *
 *     {"context": "The sky is", "choices": ["blue", "loud"], "gold": 0}
 *
 * The context may be called query or ctx, the choices endings, the gold label: as tasks of the
 * common harness have them. Gold is an index, as a number or as a text of digits. A space stands
 * between context and choice, unless one of them has white space there, or there is no context. */
#ifndef DATA_TASKS_H
#define DATA_TASKS_H

#include "data/tokens.h"

typedef struct {
    Bytes context;   /* without the white space at its end, which is the choices' */
    Bytes *choice;   /* with the space before it */
    int64_t *length; /* of each choice as it was written, in characters */
    int n, gold;
} ChoiceTask;

typedef struct {
    ChoiceTask *task;
    int64_t n;
    int64_t n_choices; /* of all */
} ChoiceTasks;

/* Local. ERR_CHECK names the file, the line and what is wrong there. */
Err tasks_read(const char *path, Arena *a, ChoiceTasks *out);
Err tasks_parse(const char *path, Bytes data, Arena *a, ChoiceTasks *out);

#endif
