/* generate.h -- schedules by name.
 *
 * A generator writes the RUNs of one stage, over chunks; it sees the pipeline and nothing else, and
 * a row of the table in generate.c makes it known. schedule_expand does the rest.
 *
 *     loop    chunk  0 1 2 3 4 5      V    chunk  0 1 2 3 4 5
 *             stage   0 1 2 0 1 2           stage   0 1 2 2 1 0
 *
 * P stages, v chunks on each, m micro-batches, k slices of each, as the head comments say it; F, I
 * and W are times of one chunk and one slice, and B = I + W. */
#ifndef SCHEDULE_GEN_GENERATE_H
#define SCHEDULE_GEN_GENERATE_H

#include "schedule/action.h"

typedef struct {
    int stages, micros;
    int chunks; /* on each stage */
    int slices; /* of each micro-batch */
    int group;  /* the most micro-batches that go through a chunk before the next chunk's turn */
} Pipeline;     /* chunks, slices, group: 0 is what the schedule likes */

typedef enum { CHUNKS_LOOP, CHUNKS_V } ChunkOrder;

/* Writes the stage's actions to `out` and returns how many. There is room for F, I and W of every
 * (chunk, micro, slice) that the stage holds. */
typedef int Generator(const Pipeline *p, int stage, Action *out);
Generator gen_gpipe, gen_1f1b, gen_interleaved, gen_bfs, gen_zbh1, gen_zbh2, gen_izb, gen_zbv,
    gen_dualpipev, gen_seq1f1b, gen_terapipe;

typedef struct {
    const char *name, *about;
    Generator *generate;
    ChunkOrder order;
    int chunks, min_chunks, max_chunks; /* the default; most 0: any number */
    int slices;                         /* the default; 0: whole micro-batches only */
    bool groups;                        /* does it take micro-batches in groups? */
    int micros_per_stage, micros_more;  /* written for at least so many micro-batches; those
                                              that are not there are deleted */
} GeneratorRow;

const GeneratorRow *schedule_generators(int *n);

/* Local. The row, or ERR_CONFIG, which says the nearest. */
Err schedule_generator(const char *name, Arena *temp, const GeneratorRow **out);
/* Local. `p` with no zeros left, or ERR_CONFIG: the key, its value, and the nearest that works. */
Err schedule_pipeline(const GeneratorRow *row, Pipeline *p);
/* Local. Chunks have one unit; set first_unit before expanding when they have more. Errors of both
 * above. */
Err schedule_generate(const char *name, const Pipeline *p, Arena *arena, Schedule *out);

/* Is the name that of a file? Names of schedules have no dot and no slash. */
bool schedule_is_file(const char *name);
/* Local. A schedule over chunks in its text form, which must check, with the stages and micros of
 * `p`, and the chunks and slices where these are not 0; else ERR_CONFIG. Its chunks
 * lie where it says. */
Err schedule_load(const char *path, const Pipeline *p, Arena *arena, Schedule *out);

/* The stage of a chunk, and the chunk that comes `turn`-th on a stage. */
int pipeline_stage(ChunkOrder order, int stages, int chunk);
int pipeline_chunk(ChunkOrder order, int stages, int stage, int turn);

#endif
