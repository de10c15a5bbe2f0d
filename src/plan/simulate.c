/* simulate.c -- counts of one rank, and their sums over all ranks. */
#include "plan/simulate.h"

#include <stdlib.h>

static void count_flops(const LinkedProgram *lp, RankCount *c)
{
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        if (!l->program) continue;
        const Program *p = l->program;
        for (int k = p->first[l->action.phase]; k < p->first[l->action.phase + 1]; k++) {
            const double flops = linked_flops(lp, l, p, &p->instr[k]);
            *(p->instr[k].recomputed ? &c->flops_recomputed : &c->flops) += flops;
        }
    }
}

Err count_rank(const LinkedProgram *lp, RankCount *out)
{
    RankCount c = {.peak_packs = lp->peak_packs, .peak_grads = lp->peak_grads};
    for (int i = 0; i < N_ARENAS; i++) {
        c.bytes[i] = lp->bytes[i];
        c.total_bytes += lp->bytes[i];
    }
    c.pinned_bytes = lp->pinned_bytes;
    c.total_bytes += c.pinned_bytes;
    for (int r = 0; r < N_OWN_REGIONS; r++) c.peak_region[r] = lp->peak_region[r];
    count_flops(lp, &c);
    TRY(linked_traffic(lp, &c.traffic));
    c.round = linked_rounds(lp);
    *out = c;
    return OK;
}

static int by_first(const void *a, const void *b)
{
    const int x = ((const RankClass *)a)->first, y = ((const RankClass *)b)->first;
    return x < y ? -1 : x > y;
}

static Err add_up(Simulation *s)
{
    int64_t ranks = 0;
    for (int i = 0; i < s->n; i++) {
        const RankClass *k = &s->class[i];
        for (int r = 0; r < k->count.traffic.n; r++)
            TRY(traffic_add(&s->traffic, &k->count.traffic.row[r], k->ranks));
        s->flops += k->count.flops * (double)k->ranks;
        s->flops_recomputed += k->count.flops_recomputed * (double)k->ranks;
        if (k->count.total_bytes > s->class[s->greatest].count.total_bytes) s->greatest = i;
        ranks += k->ranks;
    }
    MUST(ranks == s->mesh->world, "%lld of %d ranks are in classes", (long long)ranks,
         s->mesh->world);
    return OK;
}

/* Classes are sorted by their first ranks: puts their numbers in place of these. */
static void number_classes(Simulation *s)
{
    int n = 0;
    for (int rank = 0; s->class_of && rank < s->mesh->world; rank++) {
        const int first = s->class_of[rank];
        s->class_of[rank] = first == rank ? n++ : s->class_of[first];
    }
}

Err simulate(const SimulateInput *in, Arena *arena, Arena *temp, Simulation *out)
{
    Simulation s = {.mesh = in->mesh};
    TRY(simulate_classes(in, arena, temp, &s));
    qsort(s.class, (size_t)s.n, sizeof *s.class, by_first);
    number_classes(&s);
    TRY(add_up(&s));
    *out = s;
    return OK;
}
