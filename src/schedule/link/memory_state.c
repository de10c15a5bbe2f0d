/* memory_state.c -- packs and gradients that live in the work arena for a part of the step.
 *
 *     list       gather.2 F1.0 F2.0 drop.2 ...  B2.0 reduce.2.0 B1.0 reduce.1.0
 *     pack of 2   |------------------->|
 *     gradients of 2, of micro-batch 0           |------------->|
 *
 * A pack lives from GATHER to DROP. Gradients that are reduced several times a step live from the
 * first RUN that writes them to the end of their REDUCE; so do the tied gradients in the other
 * units that hold them. */
#include "schedule/link/link_parts.h"

int64_t max_state_pieces(const Linker *k)
{
    const LinkedProgram *lp = k->lp;
    const int64_t most = 2 * schedule_rows(k->s) * lp->micros + lp->n;
    int64_t n = 0;
    for (int i = 0; i < lp->n; i++) {
        const Action *a = &lp->list[i].action;
        if (a->kind == A_GATHER) n++;
        if (a->kind == A_REDUCE)
            n += schedule_rows(k->s); /* its own, and tied gradients in any unit */
    }
    return n < most ? n : most;
}

static void add_packs(MemoryPlanner *m, int *open)
{
    const LinkedProgram *lp = m->lp;
    const size_t element = dtype_bytes(lp->model->dtype);
    for (int i = 0; i < lp->n; i++) {
        const Action *a = &lp->list[i].action;
        if ((a->kind != A_GATHER && a->kind != A_DROP) || !gathered_per_use(m->k, a->unit))
            continue;
        if (a->kind == A_DROP && open[a->unit] >= 0) {
            m->pieces[open[a->unit]].piece.last = i;
            open[a->unit] = -1;
        }
        if (a->kind == A_DROP) continue;
        const int before = m->n;
        add_piece(m, (MemoryPiece){{i, lp->n - 1, 0, 0}, a->unit, 0, 0, PIECE_PACK, -1, -1},
                  (size_t)lp->unit[a->unit].mine.pack_count * element);
        open[a->unit] = m->n > before ? before : -1;
    }
}

/* The last position of that REDUCE of this unit. */
static int reduced_at(const Linker *k, int unit, int micro)
{
    const int at = *reduce_of(k, unit, micro), end = k->lp->list[at].end;
    return end > at ? end - 1 : at;
}

/* Adds the gradients whose lifetime begins with this RUN: grouped sums that it overwrites. */
static void add_grads(MemoryPlanner *m, int at, bool *seen)
{
    const LinkedProgram *lp = m->lp;
    const LinkedAction *l = &lp->list[at];
    const int unit = l->action.unit;
    const size_t wide = dtype_bytes(dtype_wide(lp->model->dtype));
    for (int i = 0; i < lp->model->unit[unit].n_params; i++) {
        const int owner = param_of(lp, unit, i)->holder[0];
        const int close = *close_of(m->k, owner, l->action.micro);
        if (!(l->fresh >> i & 1) || !m->k->grouped[owner]) continue;
        const bool tied = owner != unit;
        bool *once = &seen[(schedule_row(m->s, unit) * lp->micros + close) * 2 + tied];
        if (*once) continue;
        *once = true;
        const int64_t count = tied ? lp->unit[unit].tied_count : lp->unit[unit].mine.pack_count;
        add_piece(m,
                  (MemoryPiece){{at, reduced_at(m->k, owner, close), 0, 0},
                                unit,
                                close,
                                0,
                                tied ? PIECE_TIED_GRADS : PIECE_GRADS,
                                -1,
                                -1},
                  (size_t)count * wide);
    }
}

Err add_state_pieces(MemoryPlanner *m)
{
    const LinkedProgram *lp = m->lp;
    int *open;
    bool *seen;
    TRY(ARENA_NEW(m->temp, lp->model->n_units, &open));
    TRY(ARENA_NEW(m->temp, schedule_rows(m->s) * lp->micros * 2, &seen));
    for (int u = 0; u < lp->model->n_units; u++) open[u] = -1;
    add_packs(m, open);
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].fresh) add_grads(m, i, seen);
    return OK;
}

Err state_tables(Linker *k)
{
    const LinkedProgram *lp = k->lp;
    const int64_t cells = schedule_rows(k->s) * lp->micros;
    TRY(ARENA_NEW(k->arena, lp->n, &k->pack_off));
    TRY(ARENA_NEW(k->arena, cells, &k->grads_off));
    TRY(ARENA_NEW(k->arena, cells, &k->tied_grads_off));
    for (int i = 0; i < lp->n; i++) k->pack_off[i] = NO_BASE;
    for (int64_t i = 0; i < cells; i++) k->grads_off[i] = k->tied_grads_off[i] = NO_BASE;
    return OK;
}

void record_state(MemoryPlanner *m, const MemoryPiece *o)
{
    Linker *k = m->k;
    LinkedAction *first = &m->lp->list[o->piece.first];
    const int64_t cell = schedule_row(m->s, o->unit) * m->lp->micros + o->micro;
    if (o->kind == PIECE_PACK) k->pack_off[o->piece.first] = o->piece.offset;
    if (o->kind == PIECE_GRADS) k->grads_off[cell] = o->piece.offset;
    if (o->kind == PIECE_TIED_GRADS) k->tied_grads_off[cell] = o->piece.offset;
    if (o->kind == PIECE_GRADS) first->begins |= BEGINS_GRADS;
    if (o->kind == PIECE_TIED_GRADS) first->begins |= BEGINS_TIED_GRADS;
}

static void bind_grads(const Linker *k, LinkedAction *l)
{
    const LinkedProgram *lp = k->lp;
    const int unit = l->action.unit, micro = l->action.micro, owner = tied_owner(lp, unit);
    const int64_t row = schedule_row(k->s, unit) * lp->micros;
    l->grads = (Address){ARENA_STEP, lp->unit[unit].grad_sums};
    l->tied_grads = (Address){ARENA_STEP, lp->unit[unit].tied_grads};
    if (k->grouped[unit])
        l->grads = (Address){ARENA_WORK, k->grads_off[row + *close_of(k, unit, micro)]};
    if (owner >= 0 && k->grouped[owner])
        l->tied_grads = (Address){ARENA_WORK, k->tied_grads_off[row + *close_of(k, owner, micro)]};
}

/* there: [units] the current address of each pack. */
static Err bind_packs(const Linker *k, int at, const Address *there)
{
    const LinkedProgram *lp = k->lp;
    LinkedAction *l = &lp->list[at];
    const PackSet *reads = &k->packs[l->action.unit].reads[l->action.phase];
    PackAddress *pack;
    TRY(ARENA_NEW(k->arena, reads->n, &pack));
    for (int i = 0; i < reads->n; i++) {
        pack[i] = (PackAddress){reads->pack[i], there[reads->pack[i]]};
        if (pack[i].weights.offset == NO_BASE && lp->unit[pack[i].unit].mine.pack_count > 0)
            return err_fail(ERR_CHECK,
                            "position %d reads the parameters of unit %s, which are not gathered "
                            "there: the list has no gather.%d before it",
                            at, lp->model->unit[pack[i].unit].name, pack[i].unit);
    }
    l->pack = pack;
    l->n_packs = reads->n;
    return OK;
}

/* One walk over the list; a sharded pack has an address from its GATHER to its DROP. */
Err bind_state(Linker *k)
{
    const LinkedProgram *lp = k->lp;
    Address *there;
    TRY(ARENA_NEW(k->arena, lp->model->n_units, &there));
    for (int u = 0; u < lp->model->n_units; u++)
        there[u] = (Address){ARENA_STATE, lp->unit[u].home.shard ? NO_BASE : lp->unit[u].pack};
    for (int i = 0; i < lp->n; i++) {
        LinkedAction *l = &lp->list[i];
        const int unit = l->action.unit;
        if (l->action.kind == A_GATHER)
            there[unit] = gathered_per_use(k, unit) ? (Address){ARENA_WORK, k->pack_off[i]}
                                                    : (Address){ARENA_STATE, lp->unit[unit].pack};
        if (l->action.kind == A_DROP && lp->unit[unit].home.shard)
            there[unit] = (Address){gathered_per_use(k, unit) ? ARENA_WORK : ARENA_STATE, NO_BASE};
        if (!l->program) continue;
        bind_grads(k, l);
        TRY(bind_packs(k, i, there));
    }
    return OK;
}
