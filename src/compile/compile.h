/* compile.h -- the compiler: from the graph of a unit to its program, pass by pass.
 *
 *   differentiate -> quantize -> place -> balance -> route -> weights -> context
 *                 -> quantize (blocks) -> quantize_experts -> fuse -> quantize (delayed) -> chunk
 *                 -> slice or session -> recompute -> epilogues -> phases -> lower -> prepack
 *
 * Each pass up to phases is a file that rewrites the graph, followed by graph_check. `lower` orders
 * the nodes of each phase (order.c) and makes the program; `prepack` adds the prepacked weights to
 * it. Afterwards a program is immutable; every unit of a kind shares it. */
#ifndef COMPILE_COMPILE_H
#define COMPILE_COMPILE_H

#include "compile/context/plan.h"
#include "compile/strategy.h"
#include "ir/program.h"

/* The forward values that are saved for the backward phases; the others are recomputed. */
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_NAMED } Recompute;

/* Scales of the GEMMs in FP8. */
typedef enum { SCALING_TENSOR, SCALING_BLOCK, SCALING_DELAYED } Scaling;

/* GEMMs in FP8: those whose weight has a name that a pattern matches. */
typedef struct {
    const char *names;       /* patterns, separated by commas; NULL: none */
    DType compute, gradient; /* of operands; of an operand that is a gradient */
    Scaling scaling;
    bool experts;    /* grouped GEMMs of experts too */
    bool spare_ends; /* of 3 or more layers the first and the last have none: job/units.c */
    /* Weights that these GEMMs alone read are coded (ir/unit.h): quantized once, in their homes,
     * and gathered so. false: each program quantizes the weights that it reads. */
    bool code_weights;
    uint64_t coded; /* of a unit: bit p: parameter p of its kind is coded */
} Fp8Options;

/* Placements of units, which compilations with one memo share (place_memo.c). */
typedef struct PlaceMemo PlaceMemo;

typedef struct {
    Recompute recompute;
    const char *recompute_names; /* NAMED: patterns of value names, separated by commas; or
                                  * "full,-name,...": all but these */
    const char *offload_names;   /* saved values that are offloaded to host memory; NULL: none */
    int64_t slice_rows;          /* rows of a micro-batch that a program runs at a time; 0: all */
    /* Slices of tokens that cp shards: the rows of the micro-batch over cp, and its first row that
     * the program runs. The program is for this slice alone. NULL: for all of this length. */
    const SpanMap *slice_tokens;
    int64_t slice_at;
    int64_t session_rows;   /* the rank's rows of the KV cache, which lives from call to call; 0: no
                           * session */
    int64_t chunk_elements; /* most elements of logits that exist at once; 0: by a rule */
    bool device_memory;     /* the device has its own memory: the rule is COMPILE_CHUNK_DEVICE */
    bool backward;          /* false: the loss alone */
    const Strategy *strategy;
    const Layout *x; /* the layout in which the unit before writes the stream; NULL: as the strategy
                      * pins x */
    const Mesh *mesh;
    int rank;           /* of the program */
    bool keep_gathered; /* values gathered in F are kept for the backward phases, not regathered */
    bool in_order;      /* a transfer is waited for where it begins */
    /* Every op is a kernel of its own, as in eager frameworks; GEMMs that read one x are still one,
     * since their models pack q, k and v, and gate and up. */
    bool unfused;
    Fp8Options fp8;
    ContextChoice context; /* attention over cp by this plan */
    double expert_rows;    /* rows that a rank of experts has room for, as a factor of its
                                   * even share of those that all ranks send; 0: as many as there
                                   * can be */
    bool rounds;           /* rows without room take further rounds; else they are an error */
    bool balance_global;   /* routers' balance losses count the tokens of all dp ranks */
    /* Of one thread; it outlives the programs. NULL: each compilation searches its placements. */
    PlaceMemo *places;
    const DevicePrepack *prepack; /* weights are prepacked for GEMMs of this device; NULL: no */
} CompileOptions;

/* The number of rows of logits that exist at once: as many as make `elements`; more, up to
 * `wanted_rows`, while they make no more than `max_elements`; and at least `min_rows`. All chunks
 * of a micro-batch have about one size, a multiple of the GEMM tile. */
typedef struct {
    int64_t elements, wanted_rows, max_elements, min_rows;
} ChunkRule;

/* The default rule. A chunk of R rows takes three GEMMs of 2 R V D flops, and a fixed overhead
 * for each of the V D elements of w: w is read and packed for two of the GEMMs, and the sum of dw
 * is read and written, 32 bytes in f32 and 20 in bf16. At 5 flops of f32, or 10 of bf16, in the
 * time of a byte, the overhead is 27 / R or 33 / R of the GEMMs: 1,024 rows keep it at 3%. That
 * is 200 MiB of f32 for 50,000 words; for larger vocabularies 256 MiB, or the 256 rows that a
 * GEMM needs. */
#define COMPILE_CHUNK_RULE                                                                         \
    ((ChunkRule){.elements = (int64_t)1 << 22,                                                     \
                 .wanted_rows = 1024,                                                              \
                 .max_elements = (int64_t)1 << 26,                                                 \
                 .min_rows = 256})
/* The rule for devices with a higher ratio of flops to bytes: 4,096 rows keep the sum of dw at 6%
 * of the GEMMs, which overlap most of it. More rows would raise the peak memory of a step above
 * that of its backward part. */
#define COMPILE_CHUNK_DEVICE                                                                       \
    ((ChunkRule){.elements = (int64_t)1 << 22,                                                     \
                 .wanted_rows = 4096,                                                              \
                 .max_elements = (int64_t)1 << 30,                                                 \
                 .min_rows = 256})

/* Local. Runs all passes. `unit` is not changed; the program lives in `arena`. `watch`, unless
 * NULL, is called with the graph that the passes start from ("build"), then with the graph after
 * each pass up to phases. It is not called for lower and prepack, which write the program. */
typedef Err (*CompileWatch)(void *context, const char *pass, const Graph *g);
Err compile_unit(const Graph *unit, const CompileOptions *options, CompileWatch watch,
                 void *context, Arena *arena, Program *out);

/* ---- the passes ---- */

/* Adds the backward part: dx and the gradients of parameters, from dy or from the loss. */
Err differentiate(Graph *g);
/* Makes the GEMMs that the options choose read operands of 8 bits. */
Err quantize(Graph *g, const CompileOptions *options);
/* Makes the grouped GEMMs that the options choose read operands of 8 bits. */
Err quantize_experts(Graph *g, const CompileOptions *options);
/* Local. The parameters that such GEMMs alone read: bit p for parameter p. */
uint64_t quantize_coded(const Graph *g, const Fp8Options *options);
/* Local. Of coded parameters those that share a scale with the one before: with delayed scaling,
 * GEMMs of one x over adjacent weights, which `fuse` may make one. */
uint64_t quantize_joined(const Graph *g, const Fp8Options *options, uint64_t coded);
/* Local. ERR_CONFIG if a pattern matches no weight of a GEMM that may run in FP8; names those. */
Err quantize_check(const char *key, const Fp8Options *options, const Graph *kind, int n_kinds,
                   Arena *temp);
/* Places values on the mesh, forward and backward together, inserts transfers, and gives the graph
 * the shapes of one rank. */
Err place(Graph *g, const CompileOptions *options);
/* Local. Opens a memo of `bytes` of the arena. A full memo keeps its entries and takes no more. */
Err place_memo_open(Arena *arena, size_t bytes, PlaceMemo **out);
/* Enough for the units of one job. */
#define PLACE_MEMO_OF_JOB ((size_t)1 << 22)
/* Sums the loads that balance losses read over dp. */
Err balance_loads(Graph *g, const CompileOptions *options);
/* Replaces the gathers of keys over cp by the moves of an attention plan. */
Err context(Graph *g, const CompileOptions *options);
/* The same for attention along one of several token dims: a ring. */
Err context_along(Graph *g, const CompileOptions *options);
/* Replaces GEMMs with weights that are sharded over cp by GEMMs with shards that travel. */
Err stream_weights(Graph *g, const CompileOptions *options);
/* Sends the rows of experts to the ranks that have them, and back. */
Err route_rows(Graph *g, const CompileOptions *options);
/* Rewrites the matches of a table of patterns. */
Err fuse(Graph *g);
/* Those of eager frameworks alone: GEMMs that read one x. */
Err fuse_packed(Graph *g);
/* Repeats the nodes of each chunk number, some rows at a time. */
Err chunk(Graph *g, const ChunkRule *rule);
/* Reduces the row extents of values to those of a slice; *all is the old extent. */
Err slice_rows(Graph *g, int64_t rows, int64_t *all);
/* Adds the values that live across the slices of a micro-batch of `all` rows. has_keys: the pass
 * context has added those of attention. */
Err slice(Graph *g, int64_t all, bool has_keys);
/* Adds the values that live across the calls of a session: this rank's rows of keys and values. */
Err session(Graph *g, const CompileOptions *options);
/* Saves, recomputes or offloads the forward values that backward nodes read. */
Err recompute(Graph *g, const CompileOptions *options);
/* Fuses pointwise ops into the epilogues of adjacent GEMMs, by a second table of patterns. Runs
 * after recompute, which decides the values that are kept. */
Err epilogues(Graph *g);
/* Sets the phase of every node: F, I or W. */
Err phases(Graph *g);
/* The order of the nodes of a phase: list[0 .. *n). B is I and W together. */
Err order(const Graph *g, Phase phase, Arena *arena, int **list, int *n);
/* Assigns tensors, regions and offsets; emits instructions. */
Err lower(const Graph *g, Arena *arena, Program *out);
/* Lists the weights that GEMMs read, to be packed once a step for all of them. */
Err prepack(const DevicePrepack *device, Arena *arena, Program *p);

#endif
