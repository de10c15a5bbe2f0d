/* memory.c -- the layout of the work arena, and thereby its peak, before anything runs.
 *
 * Each region of each (unit, micro, slice) is a piece with a lifetime, an interval of the list. So
 * are packs and gradients in the work arena (memory_state.c). The pieces are packed by lifetime.
 *
 *     list       F0.0 F1.0 F2.0 B2.0 B1.0 B0.0
 *     y of 0      |---------------->|               x of unit 1, read again by its backward phases
 *     frame of 1       |----------->|
 *     sent y      |------->|                        until the send has ended
 *     received x     |------------->|               from the post of its receive on
 *     scratch     |    |    |    |    |    |        one position each */
#include "schedule/link/link_parts.h"
#include "base/math.h"

static void find_positions(MemoryPlanner *m)
{
    const int64_t n = schedule_cells(m->s) * N_PHASES;
    for (int64_t i = 0; i < n; i++) m->pos[i] = -1;
    for (int i = 0; i < m->lp->n; i++) {
        const Action *a = &m->lp->list[i].action;
        if (a->kind != A_RUN) continue;
        int *pos = pos_of(m, a->unit, a->micro, a->slice);
        pos[a->phase] = i;
        if (a->phase == PHASE_B) pos[PHASE_I] = pos[PHASE_W] = i;
    }
}

/* The last position at which one of these phases of a unit runs, or -1 if the unit is not here. */
static int last_of(const MemoryPlanner *m, int unit, int micro, int slice, unsigned phases)
{
    int last = -1;
    if (unit < 0 || unit >= m->lp->model->n_units) return last;
    const int *pos = pos_of(m, unit, micro, slice);
    for (int p = PHASE_F; p <= PHASE_W; p++)
        if ((phases >> p & 1) && pos[p] > last) last = pos[p];
    return last;
}

void add_piece(MemoryPlanner *m, MemoryPiece o, size_t bytes)
{
    if (!bytes || o.piece.first < 0) return;
    MUST(m->n < m->cap, "%lld pieces", (long long)m->cap);
    o.piece.bytes = bytes;
    o.piece.last = max_int(o.piece.first, o.piece.last);
    m->pieces[m->n++] = o;
}

static void add_region(MemoryPlanner *m, const Action *a, Region r, int first, int last,
                       size_t bytes)
{
    add_piece(m, (MemoryPiece){{first, last, 0, 0}, a->unit, a->micro, a->slice, r, -1, -1}, bytes);
}

/* The position to which a stream must live for its send, or -1. */
static int sent_until(const MemoryPlanner *m, const Action *a, int direction)
{
    const int at = *move_of(m->k, a->unit, a->micro, a->slice, direction);
    if (at < 0) return -1;
    return max_int(at, m->lp->list[at].end - 1);
}

/* Adds a stream from another stage: it lives from the posted receive to its last reader. */
static void add_received(MemoryPlanner *m, int at)
{
    const Action *a = &m->lp->list[at].action;
    const bool forward = a->phase == PHASE_F;
    const int reader = forward ? a->unit + 1 : a->unit - 1;
    const Region region = forward ? REGION_Y : REGION_DX;
    const Program *p = linked_program(m->lp, reader, a->micro, a->slice);
    const int last = last_of(m, reader, a->micro, a->slice, forward ? p->x_read : p->dy_read);
    add_region(m, a, region, at, max_int(last, m->lp->list[at].end),
               linked_program(m->lp, a->unit, a->micro, a->slice)->bytes[region]);
}

/* Adds the regions that begin with a unit's F, and those that begin with its backward phases. */
static void add_regions(MemoryPlanner *m, const Action *a)
{
    const Program *p = linked_program(m->lp, a->unit, a->micro, a->slice);
    const int u = a->unit, i = a->micro, q = a->slice;
    const int *pos = pos_of(m, u, i, q);
    const int f = pos[PHASE_F];
    const bool split = pos[PHASE_I] != pos[PHASE_W];
    add_frame(m, f, REGION_FRAME_I);
    add_frame(m, f, REGION_FRAME_W);
    add_region(m, a, REGION_HOST, f, max_int(pos[PHASE_I], pos[PHASE_W]), p->bytes[REGION_HOST]);
    if (split) add_region(m, a, REGION_CARRY, pos[PHASE_I], pos[PHASE_W], p->bytes[REGION_CARRY]);

    int last = last_of(m, u, i, q, p->y_read);
    if (u + 1 < m->lp->model->n_units)
        last = max_int(last, last_of(m, u + 1, i, q, linked_program(m->lp, u + 1, i, q)->x_read));
    last = max_int(last, sent_until(m, a, DIRECTION_FORWARD));
    add_region(m, a, REGION_Y, f, last, p->bytes[REGION_Y]);

    if (p->dx_made == N_PHASES) return;
    last = last_of(m, u, i, q, p->dx_read);
    if (u > 0)
        last = max_int(last, last_of(m, u - 1, i, q, linked_program(m->lp, u - 1, i, q)->dy_read));
    last = max_int(last, sent_until(m, a, DIRECTION_BACKWARD));
    add_region(m, a, REGION_DX, pos[p->dx_made], last, p->bytes[REGION_DX]);
}

static void add_all_regions(MemoryPlanner *m)
{
    for (int i = 0; i < m->lp->n; i++) {
        const LinkedAction *l = &m->lp->list[i];
        if (l->action.kind == A_RECV && is_stream(&l->action)) add_received(m, i);
        if (is_frame(&l->action)) add_frame_moves(m, i);
        if (l->action.kind != A_RUN) continue;
        add_region(m, &l->action, REGION_SCRATCH, i, i, l->program->scratch_bytes[l->action.phase]);
        if (l->action.phase == PHASE_F) add_regions(m, &l->action);
    }
}

/* Packs the pieces of the device, or those of the host. */
static Err pack_arena(MemoryPlanner *m, ArenaId arena)
{
    Piece *piece;
    int *who, n = 0;
    PackResult packed;
    if (m->k->in->sizes_only) return OK;
    TRY(ARENA_NEW(m->temp, m->n + 1, &piece));
    TRY(ARENA_NEW(m->temp, m->n + 1, &who));
    for (int i = 0; i < m->n; i++) {
        if (on_host(&m->pieces[i]) != (arena == ARENA_HOST)) continue;
        who[n] = i;
        piece[n++] = m->pieces[i].piece;
    }
    TRY(pack_with(m->k->in->packings, piece, n, m->temp, &packed));
    for (int i = 0; i < n; i++) m->pieces[who[i]].piece.offset = piece[i].offset;
    m->lp->bytes[arena] = packed.peak_bytes;
    m->lp->live[arena] = packed.live_bytes;
    return OK;
}

/* Binds the RUNs of a unit that fall into a piece's lifetime to its offset, as their region r. */
static void bind_unit(MemoryPlanner *m, const MemoryPiece *o, int unit, Region r)
{
    if (unit < 0 || unit >= m->lp->model->n_units) return;
    const int *pos = pos_of(m, unit, o->micro, o->slice);
    for (int p = 0; p < N_PHASES; p++)
        if (pos[p] >= o->piece.first && pos[p] <= o->piece.last)
            m->lp->list[pos[p]].base[r] = o->piece.offset;
}

/* Binds the SEND or the RECV of a stream. */
static void bind_move(MemoryPlanner *m, const MemoryPiece *o, int direction)
{
    const int at = *move_of(m->k, o->unit, o->micro, o->slice, direction);
    if (at >= 0) m->lp->list[at].base[o->kind] = o->piece.offset;
}

/* Binds a piece to the RUNs that use it: those of its own unit; for a stream also those of the unit
 * that reads it. */
static void bind_piece(MemoryPlanner *m, const MemoryPiece *o)
{
    if (o->kind == PIECE_EVICTED || o->kind == REGION_FRAME_I || o->kind == REGION_FRAME_W)
        bind_frame(m, o);
    if (o->kind >= N_OWN_REGIONS) {
        record_state(m, o);
        return;
    }
    if (o->kind == REGION_MICRO || o->kind == REGION_DMICRO) {
        bind_micro(m, o);
        return;
    }
    bind_unit(m, o, o->unit, (Region)o->kind);
    if (o->kind == REGION_Y) bind_unit(m, o, o->unit + 1, REGION_X);
    if (o->kind == REGION_DX) bind_unit(m, o, o->unit - 1, REGION_DY);
    if (o->kind == REGION_Y) bind_move(m, o, DIRECTION_FORWARD);
    if (o->kind == REGION_DX) bind_move(m, o, DIRECTION_BACKWARD);
    m->lp->list[o->piece.first].begins |= 1u << o->kind;
}

typedef struct {
    int64_t
        by[N_PIECE_KINDS]; /* bytes that become live at a position, minus those that have died */
} LiveChange;

/* Finds the position with the most live bytes, in one walk over the list. */
static Err find_peak(MemoryPlanner *m)
{
    LinkedProgram *lp = m->lp;
    LiveChange *change, live = {{0}};
    int64_t most = 0;
    TRY(ARENA_NEW(m->temp, lp->n + 1, &change));
    for (int k = 0; k < m->n; k++) {
        const MemoryPiece *o = &m->pieces[k];
        const int64_t bytes = (int64_t)align_up(o->piece.bytes);
        change[o->piece.first].by[o->kind] += bytes;
        change[o->piece.last + 1].by[o->kind] -= bytes;
    }
    for (int i = 0; i < lp->n; i++) {
        int64_t all = 0;
        for (int r = 0; r < N_PIECE_KINDS; r++) {
            live.by[r] += change[i].by[r];
            if (r != REGION_HOST && r != PIECE_EVICTED) all += live.by[r];
        }
        if (all <= most) continue;
        most = all;
        lp->peak_at = i;
        for (int r = 0; r < N_OWN_REGIONS; r++)
            lp->peak_region[r] = r == REGION_HOST ? 0 : (size_t)live.by[r];
        lp->peak_packs = (size_t)live.by[PIECE_PACK];
        lp->peak_grads = (size_t)(live.by[PIECE_GRADS] + live.by[PIECE_TIED_GRADS]);
    }
    return OK;
}

/* Records the dead memory at each position: pieces that lived to the position before. */
static void note_freed(MemoryPlanner *m, FreedRange *freed)
{
    LinkedProgram *lp = m->lp;
    for (int k = 0; k < m->n; k++) lp->list[m->pieces[k].piece.last + 1].n_freed++;
    for (int i = 0; i <= lp->n; i++) {
        lp->list[i].freed = freed;
        freed += lp->list[i].n_freed;
        lp->list[i].n_freed = 0;
    }
    for (int k = 0; k < m->n; k++) {
        const MemoryPiece *o = &m->pieces[k];
        LinkedAction *l = &lp->list[o->piece.last + 1];
        ((FreedRange *)l->freed)[l->n_freed++] =
            (FreedRange){on_host(o) ? ARENA_HOST : ARENA_WORK, o->piece.offset, o->piece.bytes};
    }
}

/* Each RUN has scratch; an F, or its moves, have at most one piece of each other region. */
static int64_t max_pieces(const LinkedProgram *lp)
{
    int64_t n = 0;
    for (int i = 0; i < lp->n; i++) {
        const Action *a = &lp->list[i].action;
        if (a->kind == A_RUN) n += a->phase == PHASE_F ? N_OWN_REGIONS : 1;
        if (a->kind == A_RECV || is_frame(a)) n++;
    }
    return n;
}

/* O(actions), apart from the packing. */
Err link_memory(Linker *k, Arena *temp)
{
    LinkedProgram *lp = k->lp;
    MemoryPlanner m = {.lp = lp, .k = k, .s = k->s, .temp = temp};
    m.cap = max_pieces(lp) + max_state_pieces(k) + max_micro_pieces(&m);
    FreedRange *freed;
    TRY(state_tables(k));
    TRY(ARENA_NEW(k->arena, k->in->note_freed ? m.cap : 0, &freed));
    const size_t mark = arena_mark(temp);
    TRY(ARENA_NEW(temp, m.cap, &m.pieces));
    TRY(ARENA_NEW(temp, schedule_cells(k->s) * N_PHASES, &m.pos));
    TRY(ARENA_NEW(temp, schedule_cells(k->s) * 2, &m.open));
    find_positions(&m);
    add_all_regions(&m);
    add_micro_pieces(&m);
    TRY(add_state_pieces(&m));
    TRY(pack_arena(&m, ARENA_WORK));
    TRY(pack_arena(&m, ARENA_HOST));
    for (int i = 0; i < m.n; i++) bind_piece(&m, &m.pieces[i]);
    TRY(find_peak(&m));
    if (k->in->note_freed) note_freed(&m, freed);
    arena_rewind(temp, mark);
    return bind_state(k);
}
