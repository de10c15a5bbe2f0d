/* link.h -- the linked program of a rank: its action list, bound to programs and addresses.
 *
 *     action        program   bound to it
 *     gather.2                all-gather over dp, state+512 -> work+20480; waited for at F2.0
 *     F2.0          layer     scratch work+0, frame-w work+4096, x work+1024, y work+8192;
 *                             weights at work+20480
 *     send.F2.0>1             y of F2.0, work+8192, to stage 1; waited for at the next send
 *     recv.B3.0<1             dx of B3.0 into work+12288; waited for at B2.0
 *     B2.0          layer     scratch work+0, frame-w work+4096, dy work+12288, dx work+16384;
 *                             gradients at step+0 (overwrite)
 *     reduce.2                reduce-scatter over dp, step+0; waited for at the norm
 *
 * F2.0 is phase F of unit 2 for micro-batch 0; >1 and <1 name the other stage. arena+n is an offset
 * in bytes. frame-w is the part of the frame that W reads last (ir/program.h).
 *
 * The memory report, simulator, checker, explain and the executor read only this list. Single-rank
 * runs use the same format. In a pipeline the list is that of the rank's stage: units of other
 * stages have no memory here, except for the values that they send.
 *
 *     arena    contents                                                  layout
 *     state    the homes: weights, master weights, moments; packs that   back to back
 *              stay gathered, with the home inside
 *     step     gradient sums, prepacked weights, scales of coded         back to back
 *              weights, optimizer lists of a device, inputs of all
 *              micro-batches, losses, scalars
 *     work     frames, streams, scratch; packs gathered per use,         packed by lifetime
 *              gradients that are reduced several times a step
 *     host     offloaded tensors and evicted frames                      packed by lifetime
 *     session  keys and values of a session, kept from call to call      back to back
 *     kernels  scratch of the kernels of a device, which run in order    one block
 *
 * Sizes are those of the rank: its part of each parameter in the use layout (layout/home.h). */
#ifndef SCHEDULE_LINK_LINK_H
#define SCHEDULE_LINK_LINK_H

#include "base/packing.h"
#include "comm/comm.h"
#include "device/workspace.h"
#include "ir/program.h"
#include "ir/unit.h"
#include "layout/home.h"
#include "schedule/action.h"
#include "schedule/programs.h"
#include "schedule/switches.h"

typedef enum {
    ARENA_STATE,
    ARENA_STEP,
    ARENA_WORK,
    ARENA_HOST,
    ARENA_SESSION,
    ARENA_KERNELS,
    N_ARENAS
} ArenaId;

#define NO_BASE SIZE_MAX

typedef struct {
    ArenaId arena;
    size_t offset; /* NO_BASE: no memory */
} Address;

/* The purpose of a transfer (Transfer.purpose). Transfers of different purposes of one group are
 * matched independently, like one NCCL communicator per purpose. */
enum {
    PURPOSE_PROGRAM,  /* collectives of programs: tensor, sequence and context parallelism */
    PURPOSE_GATHER,   /* GATHERs of packs */
    PURPOSE_REDUCE,   /* REDUCEs of gradients */
    PURPOSE_SCALAR,   /* losses, live tokens and norms at the end of a step */
    PURPOSE_FORWARD,  /* y to the next stage */
    PURPOSE_BACKWARD, /* dx to the stage before */
    PURPOSE_FRAME,    /* evicted and fetched frames */
    PURPOSE_STATE     /* checkpoints: state/load.c */
};

/* The pinned buffer for copies between steps: pageable memory would pass through the driver's own,
 * which is slower. */
enum { STAGING_BYTES = 16 << 20 };

/* Maximum number of transfers of GATHERs and REDUCEs in flight; linking waits for older ones
 * earlier. Transfers between stages are not limited. */
enum { MAX_IN_FLIGHT = 16 };

/* A step of one action, not a training step. GATHER, REDUCE, SEND, RECV, EVICT and FETCH consist of
 * steps: a transfer, or, on this rank alone, to += from or to = from, with `t.from` and `t.to`. */
typedef enum { STEP_TRANSFER, STEP_ADD, STEP_COPY } StepKind;

typedef struct {
    StepKind kind;
    Transfer t; /* arenas are of ArenaId */
    /* "scales"    QUANTIZE: all-reduce of largest magnitudes of coded weights
     * "gather"    GATHER: all-gather of a pack
     * "tied"      REDUCE: adds the gradient of a tied parameter in another unit
     * "stages"    REDUCE: all-reduce of a tied parameter's gradient over the stages that hold it
     * "copies"    REDUCE: all-reduce over the ranks with copies of a shard (replicated kv heads)
     * "model"     REDUCE: all-reduce of a gradient that is partial over tp
     * "scatter"   REDUCE: reduce-scatter of the pack's gradient to the homes
     * "data"      REDUCE: all-reduce of the home's gradient over the other data axes
     * "sum"       REDUCE: adds the home's gradient to that of earlier REDUCEs; the first copies
     * "forward"   SEND, RECV: y of a unit
     * "backward"  SEND, RECV: dx of a unit
     * "frame"     EVICT, FETCH, and their other ends: a region of a frame */
    const char *what;
} LinkedStep;

/* Memory whose lifetime has ended. */
typedef struct {
    ArenaId arena;
    size_t offset, bytes;
} FreedRange;

/* The whole pack in use: its weights, or its gradients. */
typedef struct {
    int pack;
    bool begins; /* gradients in the work arena whose lifetime begins here */
    Address at;  /* of element 0 */
} PackAddress;

/* Bit of LinkedAction.begins for tied gradients in the work arena: the number of a region that is
 * not an own region. Own regions are those below N_OWN_REGIONS: scratch, frame, carry, host, y, dx,
 * which belong to one (unit, micro, slice), and micro, dmicro, of one (unit, micro). */
#define BEGINS_TIED_GRADS (1u << REGION_PARAM) /* LinkedAction.tied_grads */

typedef struct {
    Action action;
    const Program *program; /* of a RUN, otherwise NULL */
    uint64_t fresh;         /* bit p: overwrites the gradient sum of parameter p of the unit */
    /* By region: offset in the work arena of own regions, x and dy; of REGION_HOST: offset in the
     * host arena. NO_BASE if the phase does not use the region. A SEND or a RECV has y or dx, the
     * one that it moves. */
    size_t base[REGION_DY + 1];
    /* REGION_FRAME_I or REGION_FRAME_W: the part of the frame that this EVICT or FETCH moves, or
     * this SEND or RECV of phase W, which is its other end. */
    uint8_t region;
    uint32_t begins;          /* bit r: the lifetime of own region r begins here; and BEGINS_* */
    const PackAddress *pack;  /* of a RUN: weights of the packs that it reads */
    const PackAddress *grads; /* of a RUN: gradients of the unit's own packs */
    int n_packs, n_grads;
    Address tied_grads; /* of a RUN: gradients of parameters in another unit's pack, in order */
    uint64_t prepacks;  /* bit i: writes prepacked weight i of the program before it runs */
    /* Steps [0, begun) run here. Step `begun` is the asynchronous one: it starts here and overlaps
     * with the actions up to position `end`. Its wait and the remaining steps run at `end`, before
     * the action there. begun == n_steps: no step is asynchronous, all run here. */
    const LinkedStep *step;
    int n_steps, begun, end;
    const int32_t *wait; /* positions whose `end` is here; they end before anything else */
    int n_waits;
    const FreedRange *freed; /* dead after these waits; only with LinkInput.note_freed */
    int n_freed;
} LinkedAction;

/* Coded parameters that programs read as one: they are next to each other, and share scales. */
typedef struct {
    int param, span; /* of the pack */
    /* Of the rank's use shards, one above the other; of experts there is a matrix for each. */
    int64_t matrices, rows, columns;
    int32_t block; /* rows, and columns, of a cell; 0: a matrix is one */
    int64_t at;    /* its first cell */
} CodedWeight;

/* Local. The cells of a coded weight. */
static inline int64_t coded_cells(const CodedWeight *w)
{
    const int64_t size = w->block;
    const int64_t each = size ? (w->rows + size - 1) / size * ((w->columns + size - 1) / size) : 1;
    return w->matrices * each;
}

/* Kinds of cells of coded weights: of what is on the rank in use, or of whole weights. Those of a
 * view and a kind are exchanged among the ranks that have parts of them. */
enum { CELLS_OF_PARTS, CELLS_OF_WHOLES, N_CELL_KINDS, MAX_SCALES = MAX_VIEWS * N_CELL_KINDS };

/* Such cells. */
typedef struct {
    int64_t first, n;
    RankList group;
} ScaleCells;

/* The memory of a pack on this rank. Offsets are those of element 0, in the arena that the comment
 * names. For a pack of another stage `mine` is empty, and home and counts are those of the ranks
 * there. */
typedef struct {
    int stage;             /* the pipeline stage of its unit */
    Home home;             /* of its parameters */
    HomeRank mine;         /* the rank's part */
    RankList group;        /* the ranks over which the pack is sharded */
    int me;                /* the rank's index in the group */
    const int64_t *counts; /* [group.n] elements of each member's home */
    const Span *owned;     /* the parts of the home that the rank counts in the norm */
    int n_owned;
    const int64_t *cell; /* [group.n] first cell of each member's sums of squares, from BLOCKS on */
    const CodedWeight *coded; /* [n_coded]; of a coded pack of this stage */
    int n_coded;
    size_t weights;    /* state: the home shard's weights, as programs read them */
    size_t master;     /* state: the home shard's master weights; `weights` if there are none */
    size_t moments[2]; /* state: the home shard's moments */
    size_t whole;      /* state: the whole pack; NO_BASE: it is gathered to the work arena */
    /* step: sums of the whole pack over micro-batches, before REDUCE; NO_BASE: in the work arena */
    size_t grad_sums;
    /* step: the home shard's gradient of the step, after REDUCE: the home's part of grad_sums, or,
     * if those are in the work arena, memory of its own */
    size_t reduced_grads;
} PackMemory;

/* The memory of a unit on this rank, besides its packs.
 *
 * A tied parameter is in a pack of another unit of this stage. This unit's gradient of it has a
 * sum of its own, in tied_grads, in the order of the unit's parameters. So each unit's gradient is
 * summed over micro-batches by itself, in the same order in every schedule; REDUCE then adds the
 * sums of all units that hold the parameter. */
typedef struct {
    int stage;          /* the pipeline stage of the unit */
    int64_t tied_count; /* elements of tied_grads */
    size_t tied_grads;  /* step: sums of tied parameters; NO_BASE: in the work arena, or none */
    size_t session;     /* session: keys and values of the unit */
    size_t stats;       /* step: statistics, [micros] x linked_stat_bytes; NO_BASE: none here */
    int stat_row;       /* the row of STATS that has their sum; -1: the unit has none */
    /* step: [n_prepacked of its program]; NO_BASE: the GEMM packs the weight itself */
    const size_t *prepacked;
} UnitMemory;

/* Scalars that ranks exchange at the end of a step: f64 cells in the step arena, gathered from all
 * members of a group and folded by each.
 *
 *     scalar    group                    cells                               order of the fold
 *     TOTALS    dp, pp, and the axes     per member: live tokens, its part   members
 *               over which the loss      of the loss
 *               is partial
 *     BLOCKS    shard axes and pp        per block of the member's homes:    packs, then members,
 *                                        the sum of squares                  then blocks
 *     SQUARES   the model axes: all      per member: its fold of BLOCKS      members
 *               but data axes and pp
 *
 *     STATS     dp, pp, and the axes     per unit with statistics: their     none: an all-reduce
 *               over which they are      sums over micro-batches
 *               partial
 *
 * BLOCKS and SQUARES are one each for the packs of a view, over axes of that view: experts are on
 * other ranks than the dense parameters of a stage. Views are added in order.
 *
 * The fold by packs makes the norm independent of the stages. A pack that is not sharded is equal
 * on all members of its stage; the first one counts it. */
enum {
    TOTALS,
    BLOCKS, /* + view */
    SQUARES = BLOCKS + MAX_VIEWS,
    STATS = SQUARES + MAX_VIEWS,
    N_SCALARS
};

typedef struct {
    size_t at;      /* offset in the step arena */
    int64_t cells;  /* of all members */
    int64_t mine;   /* the rank's first cell */
    RankList group; /* one rank: no transfer */
    Transfer t;     /* an all-gather in place; of STATS an all-reduce */
} ScalarCells;

typedef struct {
    const Model *model;
    ProgramTable programs;
    const Mesh *mesh;
    int rank, micros, n_moments;
    bool no_master;          /* as LinkInput.no_master */
    int slices;              /* per micro-batch */
    const int64_t *slice_at; /* [slices + 1]: first row of each slice, and the end of the last */
    int stage;               /* the rank's pipeline stage */
    bool has_loss;           /* the last unit is on this stage */
    int fold;      /* micro-batches are summed in this many groups: the bits of `fold` dp ranks */
    int64_t block; /* grain of the homes; elements per sum of squares */
    int n;
    LinkedAction *list;            /* [n + 1]: the last has no action, only waits */
    UnitMemory *unit;              /* [model->n_units] */
    PackMemory *pack;              /* [model->n_packs] */
    int64_t *param_at;             /* [model->n_params]: first element in its pack */
    int64_t *param_count;          /* [model->n_params]: elements on this rank */
    ScaleCells scales[MAX_SCALES]; /* by view, then by kind */
    int64_t *scale_at; /* [model->n_params]: cell of the scales that are read with this parameter */
    int64_t scale_cells;
    /* step: largest magnitudes of all cells, in f32, and their scales */
    size_t amax_at, scales_at;
    size_t input[N_INPUTS]; /* step arena: of micro-batch 0; the next is input_stride later */
    /* Rows of the micro-batch that the rank holds of each input, in order: they ascend. */
    HeldSpans input_rows[N_INPUTS];
    size_t input_stride, loss; /* loss: one cell per micro-batch */
    size_t lists;              /* step arena: the optimizer lists of a device, list_bytes */
    size_t list_bytes;
    size_t device_scalars; /* step arena, its last line: scalars of a step on a device; NO_BASE:
                                * the rank adds the line (LinkInput.workspace) */
    int64_t stats;         /* of a unit that has some; 0: no unit has */
    ScalarCells scalar[N_SCALARS];
    /* [scalar[TOTALS].group.n]: the member's live tokens are summed; the others have the tokens of
     * such a member */
    bool *tokens_are_own;
    int in_flight;     /* maximum number of transfers of actions and scalars in flight */
    RankList pp_group; /* the ranks that differ from this one along pp only, by stage */
    /* Pinned host memory of a rank on a device, beside the arena `host`: the mailbox
     * (run/mailbox.c) and the staging buffer. 0: the device is the host. */
    size_t pinned_bytes;
    size_t bytes[N_ARENAS];
    size_t live[N_ARENAS];             /* lower bound of any packing */
    int peak_at;                       /* position at which most bytes of the work arena are live */
    size_t peak_region[N_OWN_REGIONS]; /* live bytes there, by region */
    size_t peak_packs, peak_grads;     /* live bytes there of gathered packs, of gradients */
} LinkedProgram;

typedef struct {
    const Model *model;
    const Program *program;       /* [model->n_kinds], if `programs` is NULL */
    const ProgramTable *programs; /* NULL: one program per kind, and no slices */
    int n_moments;                /* adamw 2, sgd 0 */
    bool no_master;               /* weights are not updated: they have the type of programs only */
    const Mesh *mesh;             /* NULL: a single rank, `rank` 0 */
    int rank;                     /* of the mesh */
    const Layout *use;            /* [model->n_params]; NULL: replicate */
    int64_t block;                /* as LinkedProgram.block; 0 means 65,536 */
    const PackSwitches *switches; /* [model->n_packs]; NULL: nothing is sharded */
    int fold;                     /* as LinkedProgram.fold; 0 means 1 */
    const int64_t *slice_at;      /* [slices + 1]; NULL: micro-batches run whole */
    bool part_scales; /* scales of coded weights are those of the rank's use shards, not those of
                       * whole weights */
    bool in_order;    /* every transfer is waited for where it starts: no overlap */
    bool note_freed;  /* record at each position the memory that is dead; for tests */
    /* Of the device: fills ARENA_KERNELS and makes room for its lists and scalars. NULL: the device
     * is the host, or allocates them itself. */
    const DeviceWorkspace *workspace;
    PackMemo *packings; /* shared by the links of one thread; NULL: none */
    bool sizes_only;    /* pieces of the arenas have no offsets: for programs that never run */
} LinkInput;

/* Local. Links one stage's action list of a schedule over units. `stage` is the rank's pp
 * coordinate. ERR_CHECK if a gradient would not be reduced, if a pack is read that is not gathered,
 * or if the slices do not make up a micro-batch. The linked program has more actions than the
 * stage's list if other stages evict frames to this one. */
Err schedule_link(const Schedule *s, int stage, const LinkInput *in, Arena *arena,
                  LinkedProgram *out);

/* A part of a rank's home of a pack that it counts in the norm: elements of the home, of one block.
 * Parts of the same block follow each other; `round` counts them from 0. */
typedef struct {
    int span, round;
    int64_t lo, hi, block;
} OwnedPart;
#define OWNED_FIRST ((OwnedPart){.span = 0, .hi = -1, .block = -1})
/* Local. Goes to the next part, from OWNED_FIRST on; false: there is none. */
bool linked_owned_next(const LinkedProgram *lp, int pack, OwnedPart *p);

/* Local. The program that runs a unit's phases for a slice of a micro-batch. */
static inline const Program *linked_program(const LinkedProgram *lp, int unit, int micro, int slice)
{
    return programs_at(&lp->programs, unit, micro, slice);
}
/* Local. Flops of an instruction of a RUN, whose program is p: attention has the pairs of the
 * slice's rows. */
double linked_flops(const LinkedProgram *lp, const LinkedAction *l, const Program *p,
                    const Instr *i);

/* Local. The unit that an action is about: of a pack, its owner. */
static inline int linked_unit(const LinkedProgram *lp, const Action *a)
{
    return action_names_pack(a) ? lp->model->pack[a->unit].unit : a->unit;
}

/* Local. The address of the pack in one of the lists of a RUN; NULL: it is not there. */
static inline const PackAddress *pack_address(const PackAddress *list, int n, int pack)
{
    for (int i = 0; i < n; i++)
        if (list[i].pack == pack) return &list[i];
    return NULL;
}

/* Local. Bytes of a unit's statistics of one micro-batch. */
static inline size_t linked_stat_bytes(const LinkedProgram *lp)
{
    const size_t bytes = (size_t)lp->stats * dtype_bytes(dtype_wide(lp->model->dtype));
    return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

/* Local. The first element of parameter k of a unit in its tied_grads. */
int64_t linked_tied_grad(const LinkedProgram *lp, int unit, int k);

/* Local. Bytes of the step arena that hold prepacked weights. */
size_t linked_prepacked_bytes(const LinkedProgram *lp);

#endif
