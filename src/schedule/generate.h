/* generate.h -- schedules by name.
 *
 * A generator writes the RUNs of one rank, over chunks; it sees the shape and nothing else, and a
 * row of the table in generate.c makes it known. schedule_expand does the rest. */
#ifndef SCHEDULE_GENERATE_H
#define SCHEDULE_GENERATE_H

#include "schedule/action.h"

/* Writes the rank's actions to `out` and returns how many. There is room for F, I and W of every
 * (chunk, micro, slice) that the rank holds. */
typedef int Generator(const Schedule *shape, int rank, Action *out);
Generator gen_gpipe, gen_1f1b;

typedef struct {
    const char *name, *about;
    Generator *generate;
    bool slices; /* may micro-batches be cut into slices? */
} GeneratorRow;

const GeneratorRow *schedule_generators(int *n);

/* Local. Chunk c is on rank c and has one unit; set first_unit before expanding when it has more.
 * ERR_CONFIG for a name that is not in the table (says the nearest) and sizes out of range. */
Err schedule_generate(const char *name, int ranks, int micros, int slices, Arena *arena,
                      Schedule *out);

#endif
