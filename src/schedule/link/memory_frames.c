/* memory_frames.c -- pieces of frames that are evicted and fetched.
 *
 *     list       F0.3 evict.0.3 B0.0 ... fetch.0.3 F0.6 B0.3
 *     here        |-------->|             |------------>|       until it is sent; from the fetch on
 *     host               |------------------>|                 or on another stage
 *
 * Each residency is a piece of its own and may have another address than the one before. */
#include "schedule/link/link_parts.h"
#include "base/math.h"

static int *open_of(const MemoryPlanner *m, const Action *a, int region)
{
    return &m->open[schedule_cell(m->s, a->unit, a->micro, a->slice) * 2 +
                    (region == REGION_FRAME_W)];
}

/* The last position at which the region is used, if it is not evicted before. */
static int last_need(const MemoryPlanner *m, const Action *a, int region)
{
    return pos_of(m, a->unit, a->micro, a->slice)[region == REGION_FRAME_I ? PHASE_I : PHASE_W];
}

void add_frame(MemoryPlanner *m, int at, int region)
{
    const LinkedAction *l = &m->lp->list[at];
    const Action *a = &l->action;
    const Program *p = linked_program(m->lp, a->unit, a->micro, a->slice);
    int *open = open_of(m, a, region);
    const int before = m->n;
    const bool stored = a->kind == A_RECV;
    add_piece(m,
              (MemoryPiece){.piece = {at, stored ? l->end : last_need(m, a, region), 0, 0},
                            .unit = a->unit,
                            .micro = a->micro,
                            .slice = a->slice,
                            .kind = region,
                            .in = a->kind == A_RUN ? -1 : at,
                            .out = -1},
              p->bytes[region]);
    *open = m->n > before ? before : -1;
}

/* Ends the piece of an evicted frame at the end of its send. */
static void close_frame(MemoryPlanner *m, int at)
{
    const LinkedAction *l = &m->lp->list[at];
    const int open = *open_of(m, &l->action, l->region);
    MUST(open >= 0, "position %d: a frame is evicted that is not here", at);
    MemoryPiece *o = &m->pieces[open];
    o->piece.last = max_int(at, l->end - 1);
    o->out = at;
}

/* Adds the residency on the host. */
static void add_evicted(MemoryPlanner *m, int at)
{
    const LinkedAction *l = &m->lp->list[at];
    const Action *a = &l->action;
    const Program *p = linked_program(m->lp, a->unit, a->micro, a->slice);
    int *open = open_of(m, a, l->region);
    *open = m->n;
    add_piece(m,
              (MemoryPiece){.piece = {at, m->lp->n - 1, 0, 0},
                            .unit = a->unit,
                            .micro = a->micro,
                            .slice = a->slice,
                            .kind = PIECE_EVICTED,
                            .in = at,
                            .out = -1},
              p->bytes[l->region]);
}

static void end_evicted(MemoryPlanner *m, int at)
{
    const LinkedAction *l = &m->lp->list[at];
    MemoryPiece *o = &m->pieces[*open_of(m, &l->action, l->region)];
    o->piece.last = at;
    o->out = at;
}

/* Ends and begins pieces at a move. RUNs earlier in the list have added theirs. */
void add_frame_moves(MemoryPlanner *m, int at)
{
    const LinkedAction *l = &m->lp->list[at];
    const Action *a = &l->action;
    if (a->kind == A_EVICT || a->kind == A_SEND) close_frame(m, at);
    if (a->kind == A_EVICT && a->peer < 0) add_evicted(m, at);
    if (a->kind == A_FETCH && a->peer < 0) end_evicted(m, at);
    if (a->kind == A_FETCH || a->kind == A_RECV) add_frame(m, at, l->region);
}

void bind_frame(MemoryPlanner *m, const MemoryPiece *o)
{
    const Region as = o->kind == PIECE_EVICTED ? REGION_HOST : (Region)o->kind;
    if (o->in >= 0) m->lp->list[o->in].base[as] = o->piece.offset;
    if (o->out >= 0) m->lp->list[o->out].base[as] = o->piece.offset;
}
