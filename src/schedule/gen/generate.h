/* generate.h -- schedules by name.
 *
 * A generator writes the RUNs of one stage, over chunks. It depends on the pipeline's counts only,
 * and a row of the table in generate.c registers it. schedule_expand adds everything else.
 *
 *     loop    chunk  0 1 2 3 4 5      V    chunk  0 1 2 3 4 5
 *             stage  0 1 2 0 1 2           stage  0 1 2 2 1 0
 *
 * In the head comments P is the number of stages, v the chunks per stage, m the micro-batches, k
 * the slices of each. F, I and W are the times of one chunk and one slice, and B = I + W. */
#ifndef SCHEDULE_GEN_GENERATE_H
#define SCHEDULE_GEN_GENERATE_H

#include "schedule/action.h"

typedef struct {
    int stages, micros;
    int chunks; /* per stage */
    int slices; /* of each micro-batch */
    int group;  /* most micro-batches that run through a chunk before the next chunk */
} Pipeline;     /* chunks, slices, group: 0 is the schedule's default */

typedef enum { CHUNKS_LOOP, CHUNKS_V } ChunkOrder;

/* Writes the stage's actions to `out` and returns their number. There is room for F, I and W of
 * every (chunk, micro, slice) that the stage holds. */
typedef int Generator(const Pipeline *p, int stage, Action *out);
Generator gen_gpipe, gen_1f1b, gen_interleaved, gen_bfs, gen_zbh1, gen_zbh2, gen_izb, gen_zbv,
    gen_dualpipev, gen_seq1f1b, gen_terapipe;

typedef struct {
    const char *name, *about;
    Generator *generate;
    ChunkOrder order;
    int chunks, min_chunks, max_chunks; /* chunks: the default; max 0: no limit */
    int slices;                         /* the default; 0: whole micro-batches only */
    bool groups;                        /* runs micro-batches in groups */
    int micros_per_stage, micros_more;  /* the list is written for at least micros_per_stage * P +
                                          micros_more micro-batches; surplus RUNs are deleted */
} GeneratorRow;

const GeneratorRow *schedule_generators(int *n);

/* Local. Returns the row, or ERR_CONFIG with the nearest name. */
Err schedule_generator(const char *name, Arena *temp, const GeneratorRow **out);
/* Local. Replaces the zeros of `p` by defaults. ERR_CONFIG names the key, its value and the nearest
 * value that works. */
Err schedule_pipeline(const GeneratorRow *row, Pipeline *p);
/* Local. Chunks have one unit; set first_unit before expanding if they have more. Errors as of the
 * two functions above. */
Err schedule_generate(const char *name, const Pipeline *p, Arena *arena, Schedule *out);

/* True if the name is that of a file. Names of schedules have no dot and no slash. */
bool schedule_is_file(const char *name);
/* Local. Reads a schedule over chunks in its text form. ERR_CONFIG unless it passes the check and
 * has the stages and micros of `p`, and its chunks and slices where these are not 0. The file
 * assigns chunks to stages. */
Err schedule_load(const char *path, const Pipeline *p, Arena *arena, Schedule *out);

/* The stage of a chunk, and the `turn`-th chunk of a stage; only tests call the second. */
int pipeline_stage(ChunkOrder order, int stages, int chunk);
int pipeline_chunk(ChunkOrder order, int stages, int stage, int turn);

#endif
