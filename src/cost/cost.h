/* cost.h -- the seconds of an op and of a transfer, from a plain struct of rates.
 *
 * The only place that turns flops and bytes into time. Pure functions: no state, no files, no
 * ranks of a running job. place (compile/) compares shardings with them before a program exists;
 * later passes use the instructions of the lowered program.
 *
 *     op         launch + max(flops / rate of its class and type, bytes / memory rate)
 *     transfer   steps x latency + bytes through a rank's link / link rate
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
    double Bps;       /* of one rank, in one direction, while all ranks of its block use theirs */
} CostLink;

enum { MAX_LEVELS = 6 };

typedef struct {
    double flops_per_s[N_WORK_CLASSES][N_DTYPES]; /* sustained, not peak */
    double memory_Bps;                            /* device memory, read and written */
    double host_Bps;                              /* between device and host memory */
    double launch_s;                              /* of every op that has a kernel */
    int n_levels;
    CostLink level[MAX_LEVELS]; /* from narrow to wide; the last one connects all ranks */
} CostRates;

/* Local. Rates for choices that must not depend on the machine that compiles: about those of H100
 * SXM nodes of 8 (the table in cost.c has the origin of each). */
const CostRates *cost_default_rates(void);

/* ---- ops ---- */

/* The work of an op on one rank. Linear in the extents that are sharded, so a caller may divide it
 * by a number of parts. */
typedef struct {
    OpId op;
    DType dtype;  /* of the unit's activations */
    double heavy; /* flops of the GEMM or the attention itself */
    double light; /* all other flops: epilogues, norms, pointwise ops */
    double bytes; /* read and written */
} CostWork;

/* Local. The work of an op with these extents, from its row of ops.def. Zero flops if the extents
 * do not fit the row. */
CostWork cost_work(OpId op, const OpAttr *attr, DType dtype, int n_in, const Dims *in, int n_out,
                   const Dims *out);
/* Local. The class of an op's heavy flops. */
WorkClass cost_class(OpId op);
/* Local. 0 for views, waits and transfers between ranks. */
double cost_work_seconds(const CostRates *r, const CostWork *w);
/* Local. The same for an instruction of a lowered program, at full extents. */
double cost_instr_seconds(const CostRates *r, const Program *p, const Instr *i);

/* ---- transfers ---- */

/* The position of a group on the machine. */
typedef struct {
    int members;
    int level;  /* the narrowest one that connects all members */
    int inside; /* members in one block of the next narrower level; 1 at level 0 */
} CostGroup;

/* Local. The group of these ranks; and of `members` ranks that are `stride` apart, as the ranks
 * along one axis of a mesh are. */
CostGroup cost_group(const CostRates *r, RankList ranks);
CostGroup cost_group_strided(const CostRates *r, int members, int stride);

/* Local. bytes: the whole value, which is the larger one of a member's two buffers: the input of an
 * all-reduce, a reduce-scatter or an all-to-all, the output of an all-gather, the message of a send
 * or a broadcast. 0 for a group of one. */
double cost_transfer_seconds(const CostRates *r, CommKind kind, CostGroup group, double bytes);

#endif
