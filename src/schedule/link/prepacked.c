/* prepacked.c -- prepacked weights: which exist, their addresses, and the RUNs that write them.
 *
 *     list          F0.0  F1.0  F1.1  F0.1 ..          unit 1, its w for x W^T:
 *     writes it           ^                            before the step's first RUN that reads it
 *     reads it            F1.0  F1.1  ..               as all others do
 *
 * A weight that is read less than MIN_READS times a step is not worth its memory. Nor is one of a
 * pack that is gathered per use and dropped: its ranks shard weights to save memory. The GEMM packs
 * those weights itself. */
#include "schedule/link/link_parts.h"

/* Prepacking to memory takes 2.5 times as long as packing panel by panel in the last-level cache
 * inside the GEMM (gpt2-124m in bf16 on a Zen 4: 51 ms a step, against 20 in each micro-batch). */
enum { MIN_READS = 3 };

/* True if two programs number their prepacked weights alike: programs of slices share them. */
static bool same_prepacked(const Program *p, const Program *q)
{
    bool same = p->n_prepacked == q->n_prepacked;
    for (int i = 0; same && p != q && i < p->n_prepacked; i++) {
        const PrepackedWeight *a = &p->prepacked[i], *b = &q->prepacked[i];
        const ProgTensor *x = &p->tensor[a->tensor], *y = &q->tensor[b->tensor];
        same = a->tb == b->tb && a->bytes == b->bytes && x->index == y->index &&
               x->at[SPLIT].offset == y->at[SPLIT].offset;
    }
    return same;
}

/* Counts the reads of each prepacked weight in the step. O(actions) for each unit that has some. */
static Err count_reads(const Linker *k, int unit, int *reads)
{
    const LinkedProgram *lp = k->lp;
    const Program *longest = programs_of_unit(&lp->programs, unit);
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        const Program *p = l->program;
        if (!p || l->action.unit != unit) continue;
        if (!same_prepacked(p, longest))
            return err_fail(ERR_CHECK,
                            "unit %s: slice %d has other prepacked weights than the longest slice; "
                            "set parallel.prepack=false",
                            lp->model->unit[unit].name, l->action.slice);
        for (int j = p->first[l->action.phase]; j < p->first[l->action.phase + 1]; j++)
            if (p->instr[j].prepacked) reads[p->instr[j].prepacked - 1]++;
    }
    return OK;
}

/* True if the parameter is gathered for the whole step. */
static bool resident_all_step(const Linker *k, int unit, const Program *p, const PrepackedWeight *a)
{
    return !gathered_per_use(k, param_of(k->lp, unit, p->tensor[a->tensor].index)->pack);
}

Err place_prepacked(Linker *k, int unit, size_t *at)
{
    const LinkedProgram *lp = k->lp;
    const Program *p = programs_of_unit(&lp->programs, unit);
    size_t *place;
    int reads[MAX_PREPACKED] = {0};
    if (p->n_prepacked == 0) return OK;
    TRY(ARENA_NEW(k->arena, p->n_prepacked, &place));
    TRY(count_reads(k, unit, reads));
    for (int i = 0; i < p->n_prepacked; i++) {
        const PrepackedWeight *a = &p->prepacked[i];
        place[i] = NO_BASE;
        if (reads[i] < MIN_READS || !resident_all_step(k, unit, p, a)) continue;
        place[i] = *at;
        *at = align_up(*at + a->bytes);
    }
    lp->unit[unit].prepacked = place;
    return OK;
}

Err bind_prepacked(Linker *k)
{
    const LinkedProgram *lp = k->lp;
    uint64_t *made;
    TRY(ARENA_NEW(k->arena, lp->model->n_units, &made));
    for (int i = 0; i < lp->n; i++) {
        LinkedAction *l = &lp->list[i];
        const Program *p = l->program;
        const int unit = l->action.unit;
        if (!p || p->n_prepacked == 0) continue;
        for (int j = p->first[l->action.phase]; j < p->first[l->action.phase + 1]; j++) {
            const int which = p->instr[j].prepacked - 1;
            if (which >= 0 && lp->unit[unit].prepacked[which] != NO_BASE)
                l->prepacks |= (uint64_t)1 << which;
        }
        l->prepacks &= ~made[unit];
        made[unit] |= l->prepacks;
    }
    return OK;
}

size_t linked_prepacked_bytes(const LinkedProgram *lp)
{
    size_t bytes = 0;
    for (int u = 0; u < lp->model->n_units; u++) {
        const Program *p = programs_of_unit(&lp->programs, u);
        for (int i = 0; i < p->n_prepacked; i++)
            if (lp->unit[u].prepacked[i] != NO_BASE) bytes += align_up(p->prepacked[i].bytes);
    }
    return bytes;
}
