/* link_parts.h -- between the files of linking, in the order in which they work.
 *
 *     slices    where they begin                                      link_slices.c
 *     frames    the list, with what it keeps for other stages         link_frames.c
 *     moves     receives are posted early                             link_moves.c
 *     homes     what the rank has of each pack                        link_homes.c
 *     groups    which REDUCE takes what a RUN adds; fresh sums        link.c
 *     plan      the transfers of a unit's REDUCE, without addresses   link_plan.c
 *     ends      where what is begun is waited for                     link_ends.c
 *     static    state and step arenas                                 memory_static.c
 *     arranged  weights in the order of products                      link_arranged.c
 *     work      the work arena: lives, then offsets                   memory.c, memory_state.c,
 *                                                                     memory_micro.c,
 *                                                                     memory_frames.c
 *     steps     transfers with addresses                              link_steps.c */
#ifndef SCHEDULE_LINK_LINK_PARTS_H
#define SCHEDULE_LINK_LINK_PARTS_H

#include "base/packing.h"
#include "schedule/link/link.h"
#include "schedule/packs.h"

/* A transfer of a REDUCE: elements [lo, hi) of the pack, or of the home. */
typedef struct {
    const char *what;
    CommKind kind;
    RankList group;
    int64_t lo, hi;
    int32_t tag;      /* the same on all members; 0: the number of the unit */
    bool home, begun; /* begun: it is the one that others overlap with */
} ReducePart;

typedef struct {
    int n;
    ReducePart *part;
    bool begins; /* one is begun */
} ReducePlan;

typedef struct {
    LinkedProgram *lp;
    const Schedule *s;
    const LinkInput *in;
    Arena *arena;               /* of what the linked program keeps */
    const Action *from;         /* [n_from]: the rank's list, before it is ordered */
    const uint8_t *from_region; /* [n_from]: of frames' moves; NULL: there are none */
    int n_from;
    int32_t *pack_index;    /* [params]: its place among those of the pack */
    bool writes;            /* some RUN adds to gradients */
    bool *grouped;          /* [units]: gradients are reduced several times a step */
    int32_t *close;         /* [units][micros]: whose REDUCE takes what this one adds to the unit's
                            pack; -1: the step's, or none does */
    int32_t *reduce_at;     /* [units][micros + 1]: where the REDUCE of a micro-batch stands; first
                            that of the step; -1: nowhere */
    int32_t *move_at;       /* [cells][2]: where the value that F, or that I or B, of (unit, micro,
                            slice) makes is sent or received; -1: nowhere */
    ReducePlan *plan;       /* [units] */
    const UnitPacks *packs; /* [units] */
    size_t *pack_off;       /* [positions]: of a GATHER into the work arena */
    size_t *grads_off,
        *tied_grads_off; /* [units][micros]: of grouped gradients, by closing micro */
} Linker;

static inline int32_t *close_of(const Linker *k, int unit, int micro)
{
    return &k->close[(int64_t)unit * k->lp->micros + micro];
}

static inline int32_t *reduce_of(const Linker *k, int unit, int micro)
{
    return &k->reduce_at[(int64_t)unit * (k->lp->micros + 1) + micro + 1];
}

static inline bool is_move(const Action *a) { return a->kind == A_SEND || a->kind == A_RECV; }

/* A frame on its way, on the stage whose it is or, as a move of W, on the one that lends room. */
static inline bool is_frame(const Action *a)
{
    return a->kind == A_EVICT || a->kind == A_FETCH || (is_move(a) && a->phase == PHASE_W);
}

/* A value that the neighbour stage reads. */
static inline bool is_stream(const Action *a) { return is_move(a) && a->phase != PHASE_W; }

static inline int32_t *move_of(const Linker *k, int unit, int micro, int slice, int direction)
{
    return &k->move_at[schedule_cell(k->s, unit, micro, slice) * N_DIRECTIONS + direction];
}

/* Is the unit on this stage? */
static inline bool on_stage(const Linker *k, int unit)
{
    return schedule_stage_of(k->s, unit) == k->lp->stage;
}

static inline const Param *param_of(const LinkedProgram *lp, int unit, int k)
{
    return &lp->model->param[lp->model->unit[unit].param[k]];
}

/* The pack that the unit's guests lie in, or -1. */
static inline int tied_owner(const LinkedProgram *lp, int unit)
{
    for (int k = 0; k < lp->model->unit[unit].n_params; k++)
        if (param_of(lp, unit, k)->holder[0] != unit) return param_of(lp, unit, k)->holder[0];
    return -1;
}

/* Is it gathered to the work arena, from GATHER to DROP? */
static inline bool gathered_per_use(const Linker *k, int unit)
{
    const UnitSwitches *row = k->in->switches;
    return row && row[unit].sharded && row[unit].gather == GATHER_USE;
}

static inline int64_t home_count(const UnitPlace *p) { return p->mine.shard.hi - p->mine.shard.lo; }

static inline bool phase_covers(Phase run, Phase part)
{
    return run == part || (run == PHASE_B && part != PHASE_F);
}

/* Does this RUN add to the gradient of parameter k of its unit? */
static inline bool writes_param(const Linked *l, int k)
{
    for (int i = 0; i < l->program->n_out; i++) {
        const PortOut *port = &l->program->out[i];
        if (k >= port->param && k < port->param + port->span &&
            phase_covers((Phase)l->action.phase, (Phase)port->phase))
            return true;
    }
    return false;
}

/* Local, all of them. */
Err link_slices(Linker *k);
Err link_frames(Linker *k);
Err link_list(Linker *k);
Err link_homes(Linker *k);
Err link_plan(Linker *k);
Err link_ends(Linker *k);
Err link_static(Linker *k);
Err link_memory(Linker *k, Arena *temp);
Err link_steps(Linker *k);

/* Local. Places of the unit's weights in the order of products, in the step arena; then RUNs are told which
 * of them they make. */
Err place_prepacked(Linker *k, int unit, size_t *at);
Err bind_prepacked(Linker *k);

/* Local. The model's number of parameter i of a unit's pack. */
int pack_param(const Linker *k, int unit, int i);
/* Local. The steps of a SEND or a RECV, once it is known where its bytes lie. */
void move_step(const Linker *k, int at, LinkedStep *out);
void frame_step(const Linker *k, int at, LinkedStep *out);

/* ---- memory.c, memory_state.c and memory_micro.c ---- */

/* Beside own regions: packs gathered for a while, gradients, and frames on the host. */
enum { PIECE_PACK = N_OWN_REGIONS, PIECE_GRADS, PIECE_TIED_GRADS, PIECE_EVICTED, N_PIECE_KINDS };

typedef struct {
    Piece piece;
    int unit, micro, slice; /* micro: of gradients, the one that closes the group */
    int kind;               /* a Region of its own, or of those above */
    int in, out;            /* of frames: positions at which it comes, and goes; -1: with a RUN */
} MemoryPiece;

static inline bool on_host(const MemoryPiece *o)
{
    return o->kind == REGION_HOST || o->kind == PIECE_EVICTED;
}

typedef struct {
    LinkedProgram *lp;
    Linker *k;
    const Schedule *s;
    Arena *temp;
    MemoryPiece *pieces;
    int n;
    int64_t cap;
    int *open; /* [cells][2]: the piece in which a region of the frame is now */
    int *pos;  /* [unit][micro][slice][N_PHASES]: where F, I, W run; B: all of I and W */
} MemoryPlanner;

/* Local. A piece; none where there are no bytes. */
void add_piece(MemoryPlanner *m, MemoryPiece o, size_t bytes);
/* Local. Where the phases of (unit, micro, slice) run: [N_PHASES], -1 where they do not. */
static inline int *pos_of(const MemoryPlanner *m, int unit, int micro, int slice)
{
    return &m->pos[schedule_cell(m->s, unit, micro, slice) * N_PHASES];
}
/* Local. Pieces of what lives across the slices of a micro-batch: how many at most; they themselves;
 * RUNs are told where one was packed. */
int64_t max_micro_pieces(const MemoryPlanner *m);
void add_micro_pieces(MemoryPlanner *m);
void bind_micro(MemoryPlanner *m, const MemoryPiece *o);
/* Local. A stay of a region of a frame that begins at a position; what a move of one ends and
 * begins; moves are told where it lay. */
void add_frame(MemoryPlanner *m, int at, int region);
void add_frame_moves(MemoryPlanner *m, int at);
void bind_frame(MemoryPlanner *m, const MemoryPiece *o);
/* Local. Pieces of gathered packs and of gradients: how many at most; they themselves; where one
 * was packed. */
int64_t max_state_pieces(const LinkedProgram *lp);
Err add_state_pieces(MemoryPlanner *m);
void record_state(MemoryPlanner *m, const MemoryPiece *o);
/* Local. Room for what is noted; then RUNs are told where their weights lie and their gradients go. */
Err state_tables(Linker *k);
Err bind_state(Linker *k);

#endif
