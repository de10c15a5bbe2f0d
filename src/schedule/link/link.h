/* link.h -- a rank's program: its list of actions, bound to the programs of its units.
 *
 *     action      program   what is bound
 *     gather.2              all-gather over dp, state 512 -> work 20480; waited for before F2.0
 *     F2.0        layer     scratch 0, frame-w 4096, y 8192, x 1024; weights at work 20480
 *     send.F2.0>1           y of F2.0, work 8192, to the next stage; waited for before the next send
 *     recv.B3.0<1           into work 8192; waited for before B2.0
 *     B2.0        layer     scratch 0, frame-w 4096, dx 1024, dy 8192; gradients to step 0, anew
 *     reduce.2              reduce-scatter over dp, step 0; waited for before the norm
 *
 * Offsets, peak, simulation, checks and explain walk this list and nothing else; so does run/. One
 * rank walks the same kind of list as many. On a stage of a pipeline it is that stage's: units of
 * other stages have no memory here, but for values that come from them.
 *
 *     arena    holds                                                     laid out
 *     state    the homes: weights, master weights, moments; packs that   back to back
 *              stay gathered, with the home in its place
 *     step     gradient sums, weights in the order of products, inputs   back to back
 *              of all micro-batches, losses
 *     work     frames, streams, scratch; packs gathered for a while,     packed by when each lives
 *              gradients that wait to be added to the sums
 *     session  keys and values of a session, which stay from call to call   back to back
 *     host     what is offloaded                                         likewise
 *
 * Sizes are the rank's own: what `use` leaves it of each parameter (layout/home.h). */
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
    size_t offset; /* NO_BASE: nowhere */
} Address;

/* Transfers of one group with different purposes do not wait for each other. */
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

/* Transfers of GATHERs and REDUCEs that are in flight at once, at most. */
enum { MAX_IN_FLIGHT = 16 };

/* A step of what a GATHER, a REDUCE, a SEND or a RECV does: a transfer, or an addition or a copy on
 * this rank alone, of `t.from` to `t.to`. */
typedef enum { STEP_TRANSFER, STEP_ADD, STEP_COPY } StepKind;

typedef struct {
    StepKind kind;
    Transfer t;       /* arenas are of ArenaId */
    const char *what; /* "gather", "tied", "stages", "copies", "model", "scatter", "data", "sum",
                         "forward", "backward", "frame" */
} LinkedStep;

/* Memory whose life is over. */
typedef struct {
    ArenaId arena;
    size_t offset, bytes;
} FreedRange;

typedef struct {
    int unit;
    Address weights; /* of element 0 of that unit's pack, whole */
} PackAddress;

/* Beside the bits of own regions: gradients in the work arena begin to live. */
#define BEGINS_GRADS (1u << REGION_DPARAM)
#define BEGINS_TIED_GRADS (1u << REGION_PARAM)

typedef struct {
    Action action;
    const Program *program;     /* of a RUN, else NULL */
    uint64_t fresh;             /* bit p: the sum of parameter p of the unit starts anew here */
    size_t base[REGION_DY + 1]; /* own regions, x and dy; NO_BASE where the phase has none. Of a
                                   SEND or a RECV: y or dx, whichever it moves */
    uint8_t region; /* of an EVICT or a FETCH, or a SEND or a RECV of W: which of the frame's two */
    uint32_t begins;         /* bit r: own region r begins to live here */
    const PackAddress *pack; /* of a RUN: the packs that its parameters lie in */
    int n_packs;
    Address grads,
        tied_grads; /* of a RUN: where gradients go, of its own pack; of others', in order */
    uint64_t
        prepacks; /* bit i: weight i of the program's `arranged` is made here, before it runs */
    /* Of all but RUNs, the norm and updates: steps [0, begun) are done here, step `begun` is begun
     * here, and is waited for, and the rest done, before position `end`. */
    const LinkedStep *step;
    int n_steps, begun, end;
    const int32_t *wait; /* positions of transfers that are ended before anything else here */
    int n_waits;
    const FreedRange *freed; /* after these waits nothing reads it any more; where that is noted */
    int n_freed;
} Linked;

/* What the rank has of one unit's parameters, and where; offsets are those of element 0. Of a unit
 * of another stage it has nothing: `mine` is empty; home and counts are those of its ranks there. A
 * parameter that lies in another unit's pack (tied weights) has a sum of its own here, among the
 * guests, in the order in which the unit names them: so each unit's gradient is its own fold over
 * micro-batches, whatever the schedule. REDUCE adds the sums of the holders. */
typedef struct {
    int stage;             /* the stage that the unit is on */
    Home home;             /* of the parameters in the unit's pack */
    HomeRank mine;         /* the rank's part */
    RankList group;        /* that shares the pack */
    int me;                /* the rank's place in it */
    const int64_t *counts; /* [group.n] elements of their homes */
    const Span *owned;     /* of the home, what the rank counts in the norm */
    int n_owned;
    const int64_t *cell;    /* [group.n] where their blocks' sums of squares begin, see Scalars */
    int64_t tied_count;     /* elements */
    size_t weights, master; /* state: of the home; one where their types are */
    size_t moments[2];      /* state: of the home */
    size_t pack;            /* state: the whole pack; NO_BASE: it is gathered to the work arena */
    size_t grads,
        tied_grads; /* step: sums of the whole pack; NO_BASE: they are in the work arena */
    size_t session; /* session: what the unit keeps from call to call */
    size_t sums;    /* step: the step's gradient, of the home, once it is reduced */
    const size_t
        *prepacked; /* step: [n_prepacked of its program]; NO_BASE: products do it themselves */
} UnitPlace;

/* What ranks tell each other at the end of a step, all f64 cells of the step arena.
 *
 *     tally     live tokens and loss, of each rank that has tokens of its own or the loss; folded in
 *               order
 *     blocks    sums of squares of blocks of the packs: those of each member of the shard group on
 *               each stage, by unit; packs that are not cut are the first member's. Folded by unit
 *               and block, so stages do not show in the result
 *     squares   their folds, of each rank of the model axes; folded in order */
enum { TOTALS, BLOCKS, SQUARES, N_SCALARS };

typedef struct {
    size_t at; /* step arena */
    int64_t cells;
    int64_t mine;   /* cell at which the rank's own begin */
    RankList group; /* one rank: there is nothing to send */
    Transfer t;     /* in place */
} ScalarPlace;

typedef struct {
    const Model *model;
    const Program *program;  /* [model->n_kinds]: of the longest slice */
    const Program *by_slice; /* [model->n_kinds][slices] */
    const Mesh *mesh;
    int rank, micros, n_moments;
    int slices;              /* of every micro-batch */
    const int64_t *slice_at; /* [slices + 1]: where each begins, and the end of the last; rows */
    int stage;               /* the rank's stage of the pipeline */
    bool has_loss;           /* the last unit is here */
    int fold; /* micro-batches are so many groups, each folded by itself, as by so many ranks */
    int64_t block;
    int n;
    Linked *list;      /* [n + 1]: the last has no action, only what it waits for */
    UnitPlace *unit;   /* [model->n_units] */
    int64_t *param_at; /* [model->n_params]: element in the rank's pack of holder[0] */
    int64_t *param_count;
    size_t input[N_INPUTS]; /* step arena: of micro-batch 0; the next follow input_stride later */
    size_t input_stride, loss; /* loss: one cell a micro-batch */
    ScalarPlace scalar[N_SCALARS];
    bool *counts_live; /* [scalar[TOTALS].group.n]: do its tokens count? Others have the same */
    int in_flight;     /* transfers begun and not waited for, at most; without those of programs */
    RankList stages;   /* the ranks that differ from this one along pp alone */
    size_t bytes[N_ARENAS];
    size_t live[N_ARENAS];             /* the least that any packing needs */
    int peak_at;                       /* position in the list where most of the work arena lives */
    size_t peak_region[N_OWN_REGIONS]; /* and what lives there */
    size_t peak_packs, peak_grads;     /* and of gathered packs, of gradients */
} LinkedProgram;

typedef struct {
    const Model *model;
    const Program *program;
    int n_moments;                /* adamw 2, sgd 0 */
    const Mesh *mesh;             /* NULL: one rank, which is `rank` 0 */
    int rank;                     /* of the mesh */
    const Layout *use;            /* [model->n_params]; NULL: replicate */
    int64_t block;                /* grain of the homes, and of sums of squares; 0: 65,536 */
    const UnitSwitches *switches; /* [model->n_units]; NULL: nothing is cut */
    int fold;                     /* 0: 1 */
    const int64_t *slice_at;      /* [slices + 1]; NULL: micro-batches run whole */
    const Program *by_slice;      /* [model->n_kinds][slices]; NULL: the same, `program` */
    bool in_order;                /* every transfer is waited for where it is begun */
    bool note_freed;              /* say at each position whose life is over; for tests */
} LinkInput;

/* Local. Binds the list of `stage`, the rank's part along pp, in a schedule over units. ERR_CHECK when
 * a gradient would stay unsummed, or a pack be read that is not there, or slices do not make a
 * micro-batch. The linked list has more than the stage's: what it keeps for stages that evict. */
Err schedule_link(const Schedule *s, int stage, const LinkInput *in, Arena *arena,
                  LinkedProgram *out);

/* Local. What a unit runs for a slice. */
static inline const Program *linked_program(const LinkedProgram *lp, int unit, int slice)
{
    return &lp->by_slice[(int64_t)lp->model->unit[unit].kind * lp->slices + slice];
}
/* Local. Flops of an instruction of a RUN: attention sees the rows up to the slice's end. */
double linked_flops(const LinkedProgram *lp, const Linked *l, const Instr *i);

/* Local. Where, from the beginning of its guests, a unit keeps its sum of parameter k. */
int64_t linked_tied_grad(const LinkedProgram *lp, int unit, int k);

/* Local. Bytes of a step's memory that hold weights in the order of products. */
size_t linked_prepacked(const LinkedProgram *lp);

#endif
