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
    const int64_t most = (k->pack_rows + schedule_rows(k->s)) * lp->micros + lp->n;
    int64_t n = 0;
    for (int i = 0; i < lp->n; i++) {
        const Action *a = &lp->list[i].action;
        if (a->kind == A_GATHER) n++;
        if (a->kind == A_REDUCE)
            n += 1 + schedule_rows(k->s); /* its own, and tied gradients in any unit */
    }
    return n < most ? n : most;
}

static void add_packs(MemoryPlanner *m, int *open)
{
    const LinkedProgram *lp = m->lp;
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
                  (size_t)lp->pack[a->unit].mine.pack_count *
                      dtype_bytes(lp->model->pack[a->unit].type.use));
        open[a->unit] = m->n > before ? before : -1;
    }
}

/* The last position of that REDUCE of the pack. */
static int reduced_at(const Linker *k, int pack, int micro)
{
    const int at = *reduce_of(k, pack, micro), end = k->lp->list[at].end;
    return end > at ? end - 1 : at;
}

/* Adds the gradients whose lifetime begins with this RUN: grouped sums that it overwrites. */
static void add_grads(MemoryPlanner *m, int at, bool *seen)
{
    const LinkedProgram *lp = m->lp;
    const LinkedAction *l = &lp->list[at];
    const int unit = l->action.unit;
    for (int i = 0; i < lp->model->unit[unit].n_params; i++) {
        const Param *p = param_of(lp, unit, i);
        const int close = *close_of(m->k, p->pack, l->action.micro);
        if (!(l->fresh >> i & 1) || !m->k->grouped[p->pack]) continue;
        const bool tied = p->holder[0] != unit;
        /* Rows of packs, then, for tied gradients, of units. */
        const int64_t row =
            tied ? m->k->pack_rows + schedule_row(m->s, unit) : m->k->pack_row[p->pack];
        bool *once = &seen[row * lp->micros + close];
        if (*once) continue;
        *once = true;
        const int64_t count = tied ? lp->unit[unit].tied_count : lp->pack[p->pack].mine.pack_count;
        const size_t wide = dtype_bytes(lp->model->pack[p->pack].type.wide);
        add_piece(m,
                  (MemoryPiece){{at, reduced_at(m->k, p->pack, close), 0, 0},
                                tied ? unit : p->pack,
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
    TRY(ARENA_NEW(m->temp, lp->model->n_packs, &open));
    TRY(ARENA_NEW(m->temp, (m->k->pack_rows + schedule_rows(m->s)) * lp->micros, &seen));
    for (int p = 0; p < lp->model->n_packs; p++) open[p] = -1;
    add_packs(m, open);
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].fresh) add_grads(m, i, seen);
    return OK;
}

Err state_tables(Linker *k)
{
    const LinkedProgram *lp = k->lp;
    const int64_t packs = k->pack_rows * lp->micros, units = schedule_rows(k->s) * lp->micros;
    TRY(ARENA_NEW(k->arena, lp->n, &k->pack_off));
    TRY(ARENA_NEW(k->arena, packs, &k->grads_off));
    TRY(ARENA_NEW(k->arena, units, &k->tied_grads_off));
    for (int i = 0; i < lp->n; i++) k->pack_off[i] = NO_BASE;
    for (int64_t i = 0; i < packs; i++) k->grads_off[i] = NO_BASE;
    for (int64_t i = 0; i < units; i++) k->tied_grads_off[i] = NO_BASE;
    return OK;
}

void record_state(MemoryPlanner *m, const MemoryPiece *o)
{
    Linker *k = m->k;
    LinkedAction *first = &m->lp->list[o->piece.first];
    if (o->kind == PIECE_PACK) k->pack_off[o->piece.first] = o->piece.offset;
    if (o->kind == PIECE_GRADS) *grads_of(k, o->unit, o->micro) = o->piece.offset;
    if (o->kind != PIECE_TIED_GRADS) return;
    k->tied_grads_off[schedule_row(m->s, o->unit) * m->lp->micros + o->micro] = o->piece.offset;
    first->begins |= BEGINS_TIED_GRADS;
}

/* True if some parameter of the pack starts a sum in this RUN. */
static bool starts_sum(const LinkedProgram *lp, const LinkedAction *l, int pack)
{
    for (int i = 0; i < lp->model->unit[l->action.unit].n_params; i++)
        if ((l->fresh >> i & 1) && param_of(lp, l->action.unit, i)->pack == pack) return true;
    return false;
}

/* True if the RUN adds to some gradient. */
static bool writes_any(const LinkedAction *l)
{
    for (int i = 0; i < l->program->n_out; i++)
        if (phase_covers((Phase)l->action.phase, (Phase)l->program->out[i].phase)) return true;
    return false;
}

/* Binds a RUN to its gradients. begun: [pack rows][micros], closed groups that have begun. */
static Err bind_grads(const Linker *k, LinkedAction *l, bool *begun)
{
    const LinkedProgram *lp = k->lp;
    const int unit = l->action.unit, micro = l->action.micro, tied = tied_pack(lp, unit);
    const Unit *u = &lp->model->unit[unit];
    PackAddress *list;
    l->tied_grads = (Address){ARENA_STEP, lp->unit[unit].tied_grads};
    if (tied >= 0 && k->grouped[tied])
        l->tied_grads = (Address){
            ARENA_WORK,
            k->tied_grads_off[schedule_row(k->s, unit) * lp->micros + *close_of(k, tied, micro)]};
    if (!k->writes || !writes_any(l)) return OK;
    TRY(ARENA_NEW(k->arena, u->n_packs, &list));
    for (int i = 0; i < u->n_packs; i++) {
        const int pack = u->first_pack + i, close = *close_of(k, pack, micro);
        list[i] = (PackAddress){pack, false, {ARENA_STEP, lp->pack[pack].grad_sums}};
        if (!k->grouped[pack]) continue;
        bool *seen = &begun[(int64_t)k->pack_row[pack] * lp->micros + close];
        list[i].at = (Address){ARENA_WORK, *grads_of(k, pack, close)};
        list[i].begins = !*seen && list[i].at.offset != NO_BASE && starts_sum(lp, l, pack);
        *seen = *seen || list[i].begins;
    }
    l->grads = list;
    l->n_grads = u->n_packs;
    return OK;
}

/* there: [packs] the current address of each pack. */
static Err bind_packs(const Linker *k, int at, const Address *there)
{
    const LinkedProgram *lp = k->lp;
    LinkedAction *l = &lp->list[at];
    const PackSet *reads = &k->packs[l->action.unit].reads[l->action.phase];
    PackAddress *pack;
    TRY(ARENA_NEW(k->arena, reads->n, &pack));
    for (int i = 0; i < reads->n; i++) {
        const int which = reads->pack[i];
        pack[i] = (PackAddress){which, false, there[which]};
        if (there[which].offset == NO_BASE && lp->pack[which].mine.pack_count > 0)
            return err_fail(ERR_CHECK,
                            "position %d reads the parameters of unit %s, which are not gathered "
                            "there: the list has no gather.%d before it",
                            at, lp->model->unit[lp->model->pack[which].unit].name, which);
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
    bool *begun;
    TRY(ARENA_NEW(k->arena, lp->model->n_packs, &there));
    TRY(ARENA_NEW(k->arena, k->pack_rows * lp->micros, &begun));
    for (int p = 0; p < lp->model->n_packs; p++)
        there[p] = (Address){ARENA_STATE, lp->pack[p].home.shard ? NO_BASE : lp->pack[p].whole};
    for (int i = 0; i < lp->n; i++) {
        LinkedAction *l = &lp->list[i];
        const int pack = l->action.unit;
        if (l->action.kind == A_GATHER)
            there[pack] = gathered_per_use(k, pack) ? (Address){ARENA_WORK, k->pack_off[i]}
                                                    : (Address){ARENA_STATE, lp->pack[pack].whole};
        if (l->action.kind == A_DROP && lp->pack[pack].home.shard)
            there[pack] = (Address){gathered_per_use(k, pack) ? ARENA_WORK : ARENA_STATE, NO_BASE};
        if (!l->program) continue;
        TRY(bind_grads(k, l, begun));
        TRY(bind_packs(k, i, there));
    }
    return OK;
}
