/* compile.h -- from the graph of a unit to its program, pass by pass.
 *
 *   differentiate -> place -> fuse -> chunk -> slice or session -> recompute -> epilogues -> phases
 *                 -> order -> lower -> arrange
 *
 * Each pass is a file, a walk over data, and is followed by graph_check. After them a program is
 * immutable; every unit of a kind shares it. */
#ifndef COMPILE_COMPILE_H
#define COMPILE_COMPILE_H

#include "compile/strategy.h"
#include "ir/program.h"

/* What is kept from F for the backward phases. */
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_NAMED } Recompute;

typedef struct {
    Recompute recompute;
    const char *recompute_names; /* NAMED: patterns of value names, separated by commas */
    const char *offload_names;   /* saved values that wait in the host's memory; NULL: none */
    int64_t slice_rows;   /* programs run so many rows of a micro-batch at a time; 0: all of them */
    int64_t session_rows; /* keys and values stay from call to call, so many rows of them; 0: no */
    int64_t chunk_elements; /* of logits that exist at once; 0: by a rule */
    bool device_memory; /* for a device with memory of its own: the rule is COMPILE_CHUNK_DEVICE */
    bool backward;      /* false: the loss alone */
    const Strategy *strategy;
    const Mesh *mesh;
    int rank;           /* whose program it is */
    bool keep_gathered; /* what F gathers is kept for the backward phases, not gathered again */
    bool in_order;      /* a transfer is waited for where it is begun */
    const DevicePrepack
        *prepack; /* weights are kept as products of this device read them; NULL: no */
} CompileOptions;

/* How many rows of logits exist at once: as many as make `elements`; more, up to `wanted_rows`, while
 * they make no more than `most_elements`; and never fewer than `least_rows`. All chunks of a micro-batch
 * are of about one size, and of whole tiles of products. */
typedef struct {
    int64_t elements, wanted_rows, max_elements, min_rows;
} ChunkRule;

/* Where the options say nothing. A chunk of R rows takes three products of 2 R V D flops, and a fixed
 * toll for each of the V D elements of w: w is read and packed for two of the products, and the sum of
 * dw is read and written, 32 bytes in f32 and 20 in bf16. At 5 flops of f32, or 10 of bf16, in the time
 * of a byte, the toll is 27 / R or 33 / R of the products: 1,024 rows keep it at 3%. That is 200 MiB of
 * f32 for 50,000 words; of larger vocabularies 256 MiB, or the 256 rows that a product wants. */
#define COMPILE_CHUNK_RULE                                                                         \
    ((ChunkRule){.elements = (int64_t)1 << 22,                                                     \
                 .wanted_rows = 1024,                                                              \
                 .max_elements = (int64_t)1 << 26,                                                 \
                 .min_rows = 256})
/* Where flops are cheaper still beside bytes: 4,096 rows keep the sum of dw at 6% of the products, most
 * of which it hides behind; more would make the peak of a step higher than its backward part does. */
#define COMPILE_CHUNK_DEVICE                                                                       \
    ((ChunkRule){.elements = (int64_t)1 << 22,                                                     \
                 .wanted_rows = 4096,                                                              \
                 .max_elements = (int64_t)1 << 30,                                                 \
                 .min_rows = 256})

/* Local. The whole way. `unit` is left as it was; the program lives in `arena`. When `watch` is not
 * NULL it is called with the graph after each pass. */
typedef Err (*CompileWatch)(void *context, const char *pass, const Graph *g);
Err compile_unit(const Graph *unit, const CompileOptions *options, CompileWatch watch,
                 void *context, Arena *arena, Program *out);

/* ---- the passes ---- */

/* Adds the backward part: dx and the gradients of parameters, from dy or from the loss. */
Err differentiate(Graph *g);
/* Lays values out over the mesh, forward and backward together, inserts transfers, and gives the
 * graph the shapes of one rank. */
Err place(Graph *g, const CompileOptions *options);
/* Rewrites what a table of patterns finds. */
Err fuse(Graph *g);
/* Repeats the nodes of each chunk number, some rows at a time. */
Err chunk(Graph *g, const ChunkRule *rule);
/* Rows of values become those of a slice; *all is what they were. */
Err slice_rows(Graph *g, int64_t rows, int64_t *all);
/* What lives across the slices of a micro-batch of `all` rows. */
Err slice(Graph *g, int64_t all);
/* What lives across the calls of a session: `rows` of keys and values. */
Err session(Graph *g, int64_t rows);
/* Saves, recomputes or offloads what backward nodes read of the forward part. */
Err recompute(Graph *g, const CompileOptions *options);
/* Puts pointwise ops into the products beside them, once it is known what is kept and what runs
 * again: by a second table of patterns. */
Err epilogues(Graph *g);
/* F, I or W for every node. */
Err phases(Graph *g);
/* The order of the nodes of a phase: list[0 .. *n). B is I and W together. */
Err order(const Graph *g, Phase phase, Arena *arena, int **list, int *n);
/* Tensors, regions and offsets; instructions. */
Err lower(const Graph *g, Arena *arena, Program *out);
/* Names weights that products read, to be rearranged once a step for all of them. */
Err prepack(const DevicePrepack *device, Arena *arena, Program *p);

#endif
