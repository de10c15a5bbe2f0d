/* link_parts.h -- shared by the files of the linker, in the order in which they work.
 *
 *     slices     rows of each slice                                   slices.c
 *     frames     the list, with the frames stored for other stages    frames.c
 *     list       the list with receives posted early                  moves.c
 *     homes      the rank's part of each pack                         homes.c
 *     groups     the REDUCE that takes a RUN's gradients; fresh sums  link.c
 *     plan       the transfers of a pack's REDUCE, without addresses  plan.c
 *     ends       the position at which each transfer is waited for    ends.c
 *     static     state, step and session arenas                       memory_static.c
 *     prepacked  prepacked weights                                    prepacked.c
 *     codes      scales of coded weights                              coded.c
 *     workspace  scratch and optimizer lists of a device              workspace.c
 *     memory     the work arena: lifetimes, then offsets              memory.c, memory_state.c,
 *                                                                     memory_micro.c,
 *                                                                     memory_frames.c
 *     steps      transfers with addresses                             steps.c */
#ifndef SCHEDULE_LINK_LINK_PARTS_H
#define SCHEDULE_LINK_LINK_PARTS_H

#include "base/fp8.h"
#include "base/packing.h"
#include "schedule/link/link.h"
#include "schedule/packs.h"

/* A transfer of a REDUCE: elements [lo, hi) of the pack, or of the home. */
typedef struct {
    const char *what;
    CommKind kind;
    RankList group;
    int64_t lo, hi;
    int32_t tag;      /* the same on all members; 0: the number of the pack */
    bool home, begun; /* begun: the transfer that overlaps with later actions */
} ReducePart;

typedef struct {
    int n;
    ReducePart *part;
    bool begins; /* one of the transfers overlaps */
} ReducePlan;

/* The state of linking one rank's list. Rows are those of schedule_row: the units of the stage, if
 * the schedule has its list only. */
typedef struct {
    LinkedProgram *lp;
    const Schedule *s;
    const LinkInput *in;
    Arena *arena;               /* owns the tables of the linked program */
    const Action *from;         /* [n_from]: the stage's list, before receives move */
    const uint8_t *from_region; /* [n_from]: region of a frame's move; NULL: no frames move */
    int n_from;
    /* [packs]: row of tables over packs and micro-batches: those of the stage are numbered, all
     * others share the last */
    int32_t *pack_row;
    int64_t pack_rows;
    int64_t **cell; /* [packs][group.n]: PackMemory.cell, while it is written */
    bool writes;    /* some RUN adds to gradients */
    bool *grouped;  /* [packs]: gradients are reduced several times a step */
    /* [pack rows][micros]: the micro-batch whose REDUCE takes the gradients that this one adds to
     * the pack; -1: the step's REDUCE, or none */
    int32_t *close;
    /* [pack rows][micros + 1]: position of the step's REDUCE, then of each micro-batch's; or -1 */
    int32_t *reduce_at;
    /* [cells][N_DIRECTIONS]: position at which the value of F, or of I or B, is sent or received;
     * -1: nowhere */
    int32_t *move_at;
    ReducePlan *plan;       /* [packs] */
    const UnitPacks *packs; /* [units] */
    size_t *pack_off;       /* [positions]: offset of a GATHER into the work arena */
    size_t *grads_off; /* [pack rows][micros]: offsets of grouped gradients, by closing micro */
    size_t *tied_grads_off; /* [rows][micros]: the same for tied gradients, by unit */
} Linker;

static inline int32_t *close_of(const Linker *k, int pack, int micro)
{
    return &k->close[(int64_t)k->pack_row[pack] * k->lp->micros + micro];
}

static inline int32_t *reduce_of(const Linker *k, int pack, int micro)
{
    return &k->reduce_at[(int64_t)k->pack_row[pack] * (k->lp->micros + 1) + micro + 1];
}

/* The offset of the pack's grouped gradients that the REDUCE of `close` takes. */
static inline size_t *grads_of(const Linker *k, int pack, int close)
{
    return &k->grads_off[(int64_t)k->pack_row[pack] * k->lp->micros + close];
}

static inline bool is_move(const Action *a) { return a->kind == A_SEND || a->kind == A_RECV; }

/* True for a transfer of a frame: on the stage that owns it, or, as a move of W, on the stage that
 * stores it. */
static inline bool is_frame(const Action *a)
{
    return a->kind == A_EVICT || a->kind == A_FETCH || (is_move(a) && a->phase == PHASE_W);
}

/* True for a transfer of a value that the neighboring stage reads. */
static inline bool is_stream(const Action *a) { return is_move(a) && a->phase != PHASE_W; }

static inline int32_t *move_of(const Linker *k, int unit, int micro, int slice, int direction)
{
    return &k->move_at[schedule_cell(k->s, unit, micro, slice) * N_DIRECTIONS + direction];
}

/* True if the unit is on this stage. */
static inline bool on_stage(const Linker *k, int unit)
{
    return schedule_stage_of(k->s, unit) == k->lp->stage;
}

static inline const Param *param_of(const LinkedProgram *lp, int unit, int k)
{
    return &lp->model->param[lp->model->unit[unit].param[k]];
}

/* The pack of another unit that holds this unit's tied parameters, or -1. */
static inline int tied_pack(const LinkedProgram *lp, int unit)
{
    for (int k = 0; k < lp->model->unit[unit].n_params; k++)
        if (param_of(lp, unit, k)->holder[0] != unit) return param_of(lp, unit, k)->pack;
    return -1;
}

/* True if the pack is on this stage. */
static inline bool pack_on_stage(const Linker *k, int pack)
{
    return k->lp->pack[pack].stage == k->lp->stage;
}

/* True if the pack is gathered to the work arena, from GATHER to DROP. */
static inline bool gathered_per_use(const Linker *k, int pack)
{
    const PackSwitches *row = k->in->switches;
    return row && row[pack].sharded && row[pack].gather == GATHER_USE;
}

static inline int64_t home_count(const PackMemory *p)
{
    return p->mine.shard.hi - p->mine.shard.lo;
}

static inline bool phase_covers(Phase run, Phase part)
{
    return run == part || (run == PHASE_B && part != PHASE_F);
}

/* Reserves bytes at the end of an arena without lifetimes; returns their offset. */
static inline size_t link_take(size_t *at, size_t bytes)
{
    const size_t start = *at;
    *at = align_up(start + bytes);
    return start;
}

/* True if this RUN adds to the gradient of parameter k of its unit. */
static inline bool writes_param(const LinkedAction *l, int k)
{
    for (int i = 0; i < l->program->n_out; i++) {
        const PortOut *port = &l->program->out[i];
        if (k >= port->param && k < port->param + port->span &&
            phase_covers((Phase)l->action.phase, (Phase)port->phase))
            return true;
    }
    return false;
}

/* Local, all of them. One per row of the table above. */
Err link_slices(Linker *k);
Err link_frames(Linker *k);
Err link_list(Linker *k);
Err link_homes(Linker *k);
Err link_plan(Linker *k);
Err link_ends(Linker *k);
Err link_static(Linker *k);
Err link_memory(Linker *k, Arena *temp);
Err link_steps(Linker *k);

/* Local. Finds the rows of each input that the rank holds, and places the inputs and losses of all
 * micro-batches in the step arena. */
Err place_inputs(LinkedProgram *lp, Arena *arena, size_t *at);
/* Local. The axes over which an input is sharded. */
unsigned input_axes(const LinkedProgram *lp, Input which);
/* Local. Places the unit's prepacked weights in the step arena; then marks the RUNs that write
 * them. */
Err place_prepacked(Linker *k, int unit, size_t *at);
/* workspace.c. The optimizer lists of a device. */
void place_lists(Linker *k, size_t *at);
/* The arena of kernels. */
Err link_workspace(Linker *k, Arena *temp);
Err bind_prepacked(Linker *k);

/* Local. Finds the scales of coded weights, and places them in the step arena. ERR_CHECK if a
 * program does not read them. */
Err place_codes(Linker *k, size_t *at);
/* Local. Writes the steps of a QUANTIZE, at most MAX_SCALES; returns how many. */
int codes_steps(const Linker *k, int at, LinkedStep *out);

/* Local. Writes the step of a SEND or a RECV, or of a frame's move, once its address is known. */
void move_step(const Linker *k, int at, LinkedStep *out);
void frame_step(const Linker *k, int at, LinkedStep *out);

/* ---- memory.c, memory_state.c, memory_micro.c and memory_frames.c ---- */

/* Kinds of pieces in addition to own regions: gathered packs, gradients, frames on the host. */
enum { PIECE_PACK = N_OWN_REGIONS, PIECE_GRADS, PIECE_TIED_GRADS, PIECE_EVICTED, N_PIECE_KINDS };

/* A piece of the work arena or the host arena, and its owner. */
typedef struct {
    Piece piece;
    int unit, micro, slice; /* unit: the pack, of gathered packs and of gradients, except tied ones;
                             * micro: for gradients, the one that closes the group */
    int kind;               /* an own Region, or one of the kinds above */
    int in, out;            /* of frames: positions of the moves in and out; -1: a RUN */
} MemoryPiece;

static inline bool on_host(const MemoryPiece *o)
{
    return o->kind == REGION_HOST || o->kind == PIECE_EVICTED;
}

/* The state of laying out the work arena and the host arena. */
typedef struct {
    LinkedProgram *lp;
    Linker *k;
    const Schedule *s;
    Arena *temp;
    MemoryPiece *pieces;
    int n;
    int64_t cap;
    int *open; /* [cells][2]: the current piece of each of the frame's regions */
    int *pos;  /* [unit][micro][slice][N_PHASES]: positions of F, I, W; B sets I and W */
} MemoryPlanner;

/* Local. Adds a piece; ignores it if it has no bytes. */
void add_piece(MemoryPlanner *m, MemoryPiece o, size_t bytes);
/* Local. Positions of the phases of (unit, micro, slice): [N_PHASES], -1 if absent. */
static inline int *pos_of(const MemoryPlanner *m, int unit, int micro, int slice)
{
    return &m->pos[schedule_cell(m->s, unit, micro, slice) * N_PHASES];
}
/* Local. Pieces that live across the slices of a micro-batch: their maximum number; adds them;
 * binds the RUNs to the offset of one. */
int64_t max_micro_pieces(const MemoryPlanner *m);
void add_micro_pieces(MemoryPlanner *m);
void bind_micro(MemoryPlanner *m, const MemoryPiece *o);
/* Local. Pieces of a frame's regions: adds one that begins at a position; ends and begins pieces at
 * a move; binds the moves to the offset of one. */
void add_frame(MemoryPlanner *m, int at, int region);
void add_frame_moves(MemoryPlanner *m, int at);
void bind_frame(MemoryPlanner *m, const MemoryPiece *o);
/* Local. Pieces of gathered packs and of gradients: their maximum number; adds them; records the
 * offset of one. */
int64_t max_state_pieces(const Linker *k);
Err add_state_pieces(MemoryPlanner *m);
void record_state(MemoryPlanner *m, const MemoryPiece *o);
/* Local. Allocates the tables of these offsets; then binds RUNs to their weights and gradients. */
Err state_tables(Linker *k);
Err bind_state(Linker *k);

#endif
