/* link.h -- the linked program of a rank: its list of actions, bound to programs and addresses.
 *
 *     action      program   bound to it
 *     gather.2              all-gather over dp, state 512 -> work 20480; its wait is at F2.0
 *     F2.0        layer     scratch 0, frame-w 4096, y 8192, x 1024; weights at work 20480
 *     send.F2.0>1           y of F2.0, work 8192, to the next stage; its wait is at the next send
 *     recv.B3.0<1           into work 8192; its wait is at B2.0
 *     B2.0        layer     scratch 0, frame-w 4096, dx 1024, dy 8192; overwrites gradients, step 0
 *     reduce.2              reduce-scatter over dp, step 0; its wait is at the norm
 *
 * Peak, simulation, checks, explain and run/ walk this list and nothing else. One rank walks the
 * same kind of list as many. In a pipeline the list is that of the rank's stage: units of other
 * stages have no memory here, except for the values that they send.
 *
 *     arena    contents                                                  layout
 *     state    the homes: weights, master weights, moments; packs that   back to back
 *              stay gathered, with the home inside
 *     step     gradient sums, prepacked weights, inputs of all           back to back
 *              micro-batches, losses, scalars
 *     work     frames, streams, scratch; packs gathered per use,         packed by lifetime
 *              gradients that are reduced several times a step
 *     session  keys and values of a session, kept from call to call      back to back
 *     host     offloaded tensors and evicted frames                      packed by lifetime
 *
 * Sizes are those of the rank: its part of each parameter in the use layout (layout/home.h). */
#ifndef SCHEDULE_LINK_LINK_H
#define SCHEDULE_LINK_LINK_H

#include "comm/comm.h"
#include "ir/program.h"
#include "ir/unit.h"
#include "layout/home.h"
#include "schedule/action.h"
#include "schedule/switches.h"

typedef enum { ARENA_STATE, ARENA_STEP, ARENA_WORK, ARENA_HOST, ARENA_SESSION, N_ARENAS } ArenaId;

#define NO_BASE SIZE_MAX

typedef struct {
    ArenaId arena;
    size_t offset; /* NO_BASE: no memory */
} Address;

/* The purpose of a transfer. Transfers of one group with different purposes do not wait for each
 * other. */
enum {
    PURPOSE_PROGRAM,
    PURPOSE_GATHER,
    PURPOSE_REDUCE,
    PURPOSE_SCALAR,
    PURPOSE_FORWARD,
    PURPOSE_BACKWARD,
    PURPOSE_FRAME,
    PURPOSE_STATE /* of checkpoints: state/load.c */
};

/* Limit of transfers of GATHERs and REDUCEs in flight. */
enum { MAX_IN_FLIGHT = 16 };

/* A step of a GATHER, a REDUCE, a SEND, a RECV, an EVICT or a FETCH: a transfer, or an addition or
 * a copy of `t.from` to `t.to` on this rank alone. */
typedef enum { STEP_TRANSFER, STEP_ADD, STEP_COPY } StepKind;

typedef struct {
    StepKind kind;
    Transfer t; /* arenas are of ArenaId */
    /* "gather", "tied", "stages", "copies", "model", "scatter", "data", "sum", "forward",
     * "backward", "frame" */
    const char *what;
} LinkedStep;

/* Memory whose lifetime has ended. */
typedef struct {
    ArenaId arena;
    size_t offset, bytes;
} FreedRange;

typedef struct {
    int unit;
    Address weights; /* of element 0 of that unit's whole pack */
} PackAddress;

/* Bits of Linked.begins in addition to those of own regions: the lifetime of gradients in the work
 * arena begins. */
#define BEGINS_GRADS (1u << REGION_DPARAM)
#define BEGINS_TIED_GRADS (1u << REGION_PARAM)

typedef struct {
    Action action;
    const Program *program; /* of a RUN, otherwise NULL */
    uint64_t fresh;         /* bit p: overwrites the gradient sum of parameter p of the unit */
    /* Offsets of own regions, x and dy in the work arena (host: in the host arena); NO_BASE if the
     * phase has none. A SEND or a RECV has y or dx, the one that it moves. */
    size_t base[REGION_DY + 1];
    /* The frame's region, one of two, that an EVICT, a FETCH, or a SEND or RECV of phase W
     * moves. */
    uint8_t region;
    uint32_t begins;         /* bit r: the lifetime of own region r begins here */
    const PackAddress *pack; /* of a RUN: the packs of its parameters */
    int n_packs;
    Address grads;      /* of a RUN: gradients of parameters in its own pack */
    Address tied_grads; /* of a RUN: gradients of parameters in another unit's pack, in order */
    uint64_t prepacks;  /* bit i: writes prepacked weight i of the program before it runs */
    /* Steps of all actions but RUNs, the norm and updates. Steps [0, begun) are done here. Step
     * `begun` starts here and overlaps. Its wait and the remaining steps run at position `end`,
     * before the action there. */
    const LinkedStep *step;
    int n_steps, begun, end;
    const int32_t *wait; /* positions whose steps end here, before anything else */
    int n_waits;
    const FreedRange *freed; /* dead after these waits; only with LinkInput.note_freed */
    int n_freed;
} Linked;

/* The rank's part of one unit's parameters, and its addresses; offsets are those of element 0. For
 * a unit of another stage `mine` is empty, and home and counts are those of the ranks there.
 *
 * A parameter in another unit's pack (tied weights) has its own gradient sum in this unit, in
 * tied_grads, in the order of the unit's parameters. The gradient of each unit is therefore its own
 * fold over micro-batches in every schedule. REDUCE adds the sums of the holders. */
typedef struct {
    int stage;             /* the pipeline stage of the unit */
    Home home;             /* of the parameters in the unit's pack */
    HomeRank mine;         /* the rank's part */
    RankList group;        /* the ranks that share the pack */
    int me;                /* the rank's index in the group */
    const int64_t *counts; /* [group.n] elements of each member's home */
    const Span *owned;     /* the parts of the home that the rank counts in the norm */
    int n_owned;
    const int64_t *cell; /* [group.n] first cell of each member's sums of squares, see BLOCKS */
    int64_t tied_count;  /* elements of tied_grads */
    size_t weights;      /* state: of the home */
    size_t master;       /* state: of the home; equal to `weights` if the types are equal */
    size_t moments[2];   /* state: of the home */
    size_t pack;         /* state: the whole pack; NO_BASE: it is gathered to the work arena */
    size_t grads;        /* step: sums of the whole pack; NO_BASE: they are in the work arena */
    size_t tied_grads;   /* step: sums of tied parameters; NO_BASE as above, or if there are none */
    size_t session;      /* session: keys and values of the unit */
    size_t sums;         /* step: the step's reduced gradient, of the home */
    /* step: [n_prepacked of its program]; NO_BASE: the GEMM packs the weight itself */
    const size_t *prepacked;
} UnitPlace;

/* Scalars that ranks exchange at the end of a step, all f64 cells of the step arena.
 *
 *     totals    live tokens and loss of each rank that has its own tokens or the loss; folded in
 *               order
 *     blocks    sums of squares of blocks of the packs: those of each member of the shard group on
 *               each stage, by unit. A pack that is not sharded is counted by the first member.
 *               Folded by unit and block, so the result does not depend on the stages
 *     squares   their folds, one per rank of the model axes; folded in order */
enum { TOTALS, BLOCKS, SQUARES, N_SCALARS };

typedef struct {
    size_t at; /* step arena */
    int64_t cells;
    int64_t mine;   /* first cell of the rank's own */
    RankList group; /* one rank: no transfer */
    Transfer t;     /* an all-gather in place */
} ScalarPlace;

typedef struct {
    const Model *model;
    const Program *program;  /* [model->n_kinds]: of the longest slice */
    const Program *by_slice; /* [model->n_kinds][slices] */
    const Mesh *mesh;
    int rank, micros, n_moments;
    int slices;              /* of every micro-batch */
    const int64_t *slice_at; /* [slices + 1]: first row of each slice, and the end of the last */
    int stage;               /* the rank's pipeline stage */
    bool has_loss;           /* the last unit is on this stage */
    int fold; /* groups of micro-batches, each folded by itself, as on `fold` ranks */
    int64_t block;
    int n;
    Linked *list;              /* [n + 1]: the last has no action, only waits */
    UnitPlace *unit;           /* [model->n_units] */
    int64_t *param_at;         /* [model->n_params]: first element in the pack of holder[0] */
    int64_t *param_count;      /* [model->n_params]: elements on this rank */
    size_t input[N_INPUTS];    /* step arena: of micro-batch 0; the next is input_stride later */
    size_t input_stride, loss; /* loss: one cell per micro-batch */
    ScalarPlace scalar[N_SCALARS];
    /* [scalar[TOTALS].group.n]: the member's tokens count; other members have copies of them */
    bool *counts_live;
    int in_flight;   /* maximum of transfers in flight, without those of programs */
    RankList stages; /* the ranks that differ from this one along pp only */
    size_t bytes[N_ARENAS];
    size_t live[N_ARENAS];             /* lower bound of any packing */
    int peak_at;                       /* position at which most bytes of the work arena are live */
    size_t peak_region[N_OWN_REGIONS]; /* live bytes there, by region */
    size_t peak_packs, peak_grads;     /* live bytes there of gathered packs, of gradients */
} LinkedProgram;

typedef struct {
    const Model *model;
    const Program *program;
    int n_moments;                /* adamw 2, sgd 0 */
    const Mesh *mesh;             /* NULL: a single rank, `rank` 0 */
    int rank;                     /* of the mesh */
    const Layout *use;            /* [model->n_params]; NULL: replicate */
    int64_t block;                /* grain of the homes and of sums of squares; 0: 65,536 */
    const UnitSwitches *switches; /* [model->n_units]; NULL: nothing is sharded */
    int fold;                     /* 0: 1 */
    const int64_t *slice_at;      /* [slices + 1]; NULL: micro-batches run whole */
    const Program *by_slice;      /* [model->n_kinds][slices]; NULL: the same, `program` */
    bool in_order;                /* every transfer is waited for where it starts: no overlap */
    bool note_freed;              /* record at each position the memory that is dead; for tests */
} LinkInput;

/* Local. Binds the list of `stage`, the rank's part along pp, of a schedule over units. ERR_CHECK
 * if a gradient would not be reduced, if a pack is read that is not gathered, or if the slices do
 * not make up a micro-batch. The linked list is longer than the stage's if other stages evict
 * frames to it. */
Err schedule_link(const Schedule *s, int stage, const LinkInput *in, Arena *arena,
                  LinkedProgram *out);

/* Local. The program of a unit for a slice. */
static inline const Program *linked_program(const LinkedProgram *lp, int unit, int slice)
{
    return &lp->by_slice[(int64_t)lp->model->unit[unit].kind * lp->slices + slice];
}
/* Local. Flops of an instruction of a RUN: attention reads the rows up to the slice's end. */
double linked_flops(const LinkedProgram *lp, const Linked *l, const Instr *i);

/* Local. The first element of parameter k of a unit in its tied_grads. */
int64_t linked_tied_grad(const LinkedProgram *lp, int unit, int k);

/* Local. Bytes of the step arena that hold prepacked weights. */
size_t linked_prepacked(const LinkedProgram *lp);

#endif
