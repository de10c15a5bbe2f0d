/* cost.h -- the seconds of an op and of a transfer, from a plain struct of rates.
 *
 * The only place that turns flops and bytes into time. Pure functions: no state, no files, no
 * ranks of a running job. place (compile/) compares shardings with them before a program exists;
 * later passes use the instructions of the lowered program.
 *
 *     op         launch + max(flops / rate of its class and type, bytes / memory rate)
 *     GEMM       its flops count whole tiles in whole waves over the device's units; its rate is
 *                interpolated in a grid of measured shapes, if the device has one
 *     attention  a rate, a curve by flops, or curves by the keys that a query sees
 *     transfer   steps x latency + bytes through a rank's link / link rate, or a table by size
 *
 * Levels of the machine nest: level 0 are the ranks with the fastest link (a node), the last level
 * is the world. Ranks are numbered along the machine, so a block of level i is `ranks` consecutive
 * ranks. */
#ifndef COST_COST_H
#define COST_COST_H

#include "ir/program.h"

/* Classes of work with a rate of their own. */
typedef enum { WORK_GEMM, WORK_ATTENTION, WORK_POINTWISE, N_WORK_CLASSES } WorkClass;

/* The links between blocks of one level and the next narrower one. */
typedef struct {
    int ranks;        /* consecutive ranks that the level connects; 0: all */
    double latency_s; /* of one message */
    double Bps;       /* of one link, in one direction */
    int shared_by;    /* consecutive ranks that share one link; 0: 1 */
    /* Of a message between two ranks, while all ranks of their blocks send; 0: as above. */
    double pair_latency_s, pair_Bps;
    const char *name; /* "node"; NULL: it has none */
} CostLink;

/* The devices of a node that differ from those of the fastest one. */
typedef struct {
    double speed;        /* work takes its seconds / speed: in (0, 1] */
    double memory_bytes; /* of one device; 0: as of the cluster */
} CostDevice;

/* Nodes of a machine that are not all alike and their order. Nodes are blocks of level 0. */
enum { MAX_CLUSTER_NODES = 256 };
typedef struct {
    int n, n_links;       /* n: nodes that a link names; those after them have the levels' links */
    const CostLink *link; /* [n_links]: no faster than the level that connects their nodes */
    const uint8_t
        *between;  /* [n][n]: 1 + index of the link between two nodes; 0: that of the level */
    int n_devices; /* nodes after these have speed 1 */
    const CostDevice *device; /* [n_devices]: of one node each */
    int n_at;
    const int *at; /* [n_at]: the node on which the i-th block of ranks is; NULL: the i-th */
} CostNodes;

/* Messages between single ranks, measured while every rank has one partner. Ranks beyond n have
 * those of their level. */
enum { MAX_CLUSTER_PAIRS = 256 };
typedef struct {
    int n;                        /* ranks 0 .. n - 1 of the machine */
    const float *latency_s, *Bps; /* [n (n - 1) / 2]: 0-1, 0-2, .., 1-2, .. */
} CostPairs;

/* Measured rates of GEMMs: rate[i][j][l] is that of m[i] x n[j] x k[l], in flops per second. Rates
 * between the points are interpolated in log space; beyond them they are those of the border. */
enum { MAX_GRID = 16 };
typedef struct {
    int n_m, n_n, n_k;
    double m[MAX_GRID], n[MAX_GRID], k[MAX_GRID]; /* rising */
    const double *rate;                           /* [n_m][n_n][n_k] */
} CostGrid;

/* y at rising x, interpolated in log space; beyond the ends y is that of the end. */
enum { MAX_CURVE = 32 };
typedef struct {
    int n; /* 0: no curve */
    double x[MAX_CURVE], y[MAX_CURVE];
} CostCurve;

/* Measured rates of attention and of its gradient, in flops per second, by the mean number of keys
 * that a query sees: a kernel with tiles of queries and keys of its own loses less at the diagonal
 * of a long sequence. Heads of other widths have the rates of the nearest width. */
enum { MAX_HEAD_WIDTHS = 4 };
typedef struct {
    int n;                         /* widths of heads */
    double width[MAX_HEAD_WIDTHS]; /* rising */
    CostCurve forward[MAX_HEAD_WIDTHS], backward[MAX_HEAD_WIDTHS];
} CostAttention;

/* Kernels that move bytes at a part of the memory's rate of their own. */
typedef enum {
    REACH_NORM,  /* norms, their gradients, sums of rows */
    REACH_LOSS,  /* the loss and its gradient */
    REACH_STATE, /* norm and update of the optimizer's state */
    N_REACHES
} MemoryReach;

/* Measured seconds of a collective by size: x is bytes as in cost_transfer_seconds, y seconds. */
typedef struct {
    CommKind kind;
    int members, level, inside; /* as in CostGroup */
    CostCurve seconds;
} CostTable;

/* Tiles of GEMMs: outputs are computed in tiles, one on each unit at a time. */
typedef struct {
    int units;     /* that work on tiles at the same time: streaming multiprocessors; 0: any size */
    int m, n;      /* the largest tile; halves and quarters of it are used too */
    double fill_k; /* steps of k that the start and end of a tile take */
    /* The clock of a device with few tiles, over the clock at which its power limit holds a GEMM
     * that fills all units, whose rate flops_per_s is; 0: 1. */
    double boost;
} CostTiles;

enum { MAX_LEVELS = 6 };

typedef struct {
    double flops_per_s[N_WORK_CLASSES][N_DTYPES]; /* sustained, not peak */
    double memory_Bps;                            /* device memory, read and written */
    double host_Bps;                              /* between device and host memory */
    double launch_s;                              /* of every op that has a kernel */
    /* An attention that writes its scores to memory moves this many bytes for each (query, key)
     * pair and head in forward, and twice as many in backward; 0: it keeps them in the caches. */
    double pair_bytes;
    /* A loss in several passes over wide logits moves this many bytes more for each logit; 0: its
     * operands alone. */
    double logit_bytes;
    double reach[N_REACHES]; /* of these kernels, over memory_Bps; 0: 1 */
    /* Operands of a GEMM's epilogue, beyond those of the GEMM, take this part of the time of their
     * bytes in addition; 0: they and the epilogue's flops hide as all bytes do. */
    double epilogue;
    CostTiles tiles;
    const CostGrid *gemm[N_DTYPES];       /* NULL: none, flops_per_s alone */
    const CostCurve *attention[N_DTYPES]; /* flops per second by flops; NULL: none */
    const CostAttention *keyed[N_DTYPES]; /* instead of `attention`; NULL: none */
    const CostCurve *memory;              /* bytes per second by bytes of an op; NULL: none */
    int n_levels;
    CostLink level[MAX_LEVELS]; /* from narrow to wide; the last one connects all ranks */
    const CostNodes *nodes;     /* NULL: the levels have all links */
    const CostPairs *pairs;     /* NULL: messages have the numbers of their level */
    int n_tables;
    const CostTable *table; /* of collectives; those that have none follow the formulas */
} CostRates;

/* Local. Rates for choices that must not depend on the machine that compiles: about those of H100
 * SXM nodes of 8 (the table in cost.c has the origin of each). */
const CostRates *cost_default_rates(void);

/* Local. The same rates without what does not grow with the tokens: latencies, launches, weights
 * that are read, tiles, measured shapes. Seconds are linear in the sequences of a micro-batch.
 * Pointwise work moves about a byte for each flop. */
CostRates cost_linear_rates(const CostRates *r);

/* ---- ops ---- */

/* The work of an op on one rank. Flops and bytes are linear in the extents that are sharded, so a
 * caller may divide them by a number of parts; then m, n and k should be those of a part. */
typedef struct {
    OpId op;
    DType dtype;    /* of the unit's activations */
    double heavy;   /* flops of the GEMM or the attention itself */
    double light;   /* all other flops: epilogues, norms, pointwise ops */
    double bytes;   /* read and written */
    double among;   /* bytes that are touched before these are again; 0: they may be in cache */
    double m, n, k; /* extents of a GEMM; 0: not known, counted as a multiple of its tiles */
    double experts; /* as many such GEMMs in one call: over the rows of all experts; 0: one */
    double c;       /* width of the heads of an attention; 0: not known */
    double queries; /* of all heads of an attention */
} CostWork;

/* Local. The work of an op with these extents, from its row of ops.def. Zero flops if the extents
 * do not fit the row. */
CostWork cost_work(OpId op, const OpAttr *attr, DType dtype, int n_in, const Dims *in, int n_out,
                   const Dims *out);
/* Local. The flops of GEMMs and attention that the model needs in the instruction at full extents:
 * over the rows of experts those of balanced routing, also of rows that take further rounds. The
 * program's attention may have fewer: see linked_flops. */
double cost_model_flops(const Program *p, const Instr *i);
/* Local. The class of an op's heavy flops. */
WorkClass cost_class(OpId op);
/* Local. 0 for views, waits and transfers between ranks. */
double cost_work_seconds(const CostRates *r, const CostWork *w);
/* Local. The work of an instruction of a lowered program, at full extents; and its seconds. */
CostWork cost_instr_work(const Program *p, const Instr *i);
double cost_instr_seconds(const CostRates *r, const Program *p, const Instr *i);
/* Local. A GEMM's flops with whole tiles in whole waves, over its flops: at least 1. */
double cost_tile_waste(const CostTiles *t, double experts, double m, double n, double k);
/* Local. Interpolates in log space. */
double cost_curve_at(const CostCurve *c, double x);
/* Local. The rate of a GEMM's flops with whole tiles. */
double cost_grid_at(const CostGrid *g, const CostTiles *t, double m, double n, double k);
/* Local. The largest of these rates. */
double cost_grid_most(const CostGrid *g, const CostTiles *t);

/* Local. The device of a rank, by the order of the nodes. */
CostDevice cost_device(const CostRates *r, int rank);
/* Local. The sum of the speeds of ranks 0 to ranks - 1. */
double cost_speeds(const CostRates *r, int ranks);

/* ---- transfers ---- */

/* The position of a group on the machine. */
typedef struct {
    int members;
    int level;  /* the narrowest one that connects all members */
    int inside; /* members in one block of the next narrower level; 1 at level 0 */
    /* Of CostRates.nodes: 1 + index of the slowest link between neighbors in the ring of the
     * members, and between any two of them; 0: that of the level. */
    int ring_link, any_link;
    int pair; /* two ranks: 1 + index in CostRates.pairs; 0: not in it */
} CostGroup;

/* Local. The group of these ranks; and of `members` ranks that are `stride` apart, as the ranks
 * along one axis of a mesh are, with the links of the levels. */
CostGroup cost_group(const CostRates *r, RankList ranks);
CostGroup cost_group_strided(const CostRates *r, int members, int stride);

/* Local. bytes: the whole value, which is the larger one of a member's two buffers: the input of an
 * all-reduce, a reduce-scatter or an all-to-all, the output of an all-gather, the message of a send
 * or a broadcast. 0 for a group of one. */
double cost_transfer_seconds(const CostRates *r, CommKind kind, CostGroup group, double bytes);
/* Local. The least that messages of so many bytes in all take one after the other. By a table,
 * several may take less than one: small sums stay in the caches. */
double cost_parts_seconds(const CostRates *r, CommKind kind, CostGroup group, double bytes);

#endif
