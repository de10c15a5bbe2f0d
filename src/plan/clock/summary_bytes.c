/* summary_bytes.c -- the bytes of a unit: the most of all ranks, or those of one. */
#include "plan/clock/summary.h"

#include <string.h>

static size_t greater(size_t a, size_t b) { return a > b ? a : b; }

static void add_program(const Program *p, UnitSummary *u)
{
    for (int r = 0; r < N_OWN_REGIONS; r++)
        u->region_bytes[r] = greater(u->region_bytes[r], p->bytes[r]);
    for (int phase = 0; phase < N_PHASES; phase++)
        u->scratch_bytes[phase] = greater(u->scratch_bytes[phase], p->scratch_bytes[phase]);
    u->x_read |= p->x_read;
    u->y_read |= p->y_read;
    u->y_bytes = u->region_bytes[REGION_Y];
    u->dx_bytes = u->region_bytes[REGION_DX];
}

/* Bytes of a pack on a rank, as link/memory_static.c places it. */
static void add_pack_memory(const Job *job, int pack, UnitSummary *u)
{
    const LinkedProgram *lp = &job->linked;
    const PackSwitches *row = &job->switches[pack];
    const PackMemory *m = &lp->pack[pack];
    const PackTypes type = lp->model->pack[pack].type;
    const size_t narrow = dtype_bytes(type.use), wide = dtype_bytes(type.wide);
    const size_t home = (size_t)m->counts[m->me], all = (size_t)m->mine.pack_count;
    const bool per_use = row->sharded && row->gather == GATHER_USE;
    const int copies = lp->n_moments + (wide != narrow && !lp->no_master);
    const size_t state = (per_use ? home : all) * narrow + (size_t)copies * home * wide;
    u->state_bytes += state;
    u->grad_bytes += (m->grad_sums == NO_BASE ? home : all) * wide;
    if (per_use) u->pack_bytes += all * narrow;
    if (m->grad_sums == NO_BASE) u->work_grad_bytes += all * wide;
    const bool expert = lp->model->pack[pack].view == VIEW_EXPERT;
    if (expert) u->expert_bytes += state;
    if (!pack_is_coded(&lp->model->pack[pack])) return;
    if (expert)
        u->coded_expert_bytes += state;
    else
        u->coded_bytes += state;
}

/* The unit's memory besides frames: the greatest of its ranks. */
static void add_memory(const Job *job, int unit, UnitSummary *u)
{
    const LinkedProgram *lp = &job->linked;
    const Unit *of = &lp->model->unit[unit];
    const Program *p = linked_program(lp, unit, 0, 0);
    const size_t wide = dtype_bytes(dtype_wide(lp->model->dtype));
    const bool tied = lp->unit[unit].tied_grads != NO_BASE;
    UnitSummary here = {.grad_bytes = tied ? (size_t)lp->unit[unit].tied_count * wide : 0};
    for (int i = 0; i < p->n_prepacked; i++)
        if (lp->unit[unit].prepacked[i] != NO_BASE)
            here.grad_bytes += align_up(p->prepacked[i].bytes);
    for (int i = of->first_pack; i < of->first_pack + of->n_packs; i++)
        add_pack_memory(job, i, &here);
    u->state_bytes = greater(u->state_bytes, here.state_bytes);
    u->expert_bytes = greater(u->expert_bytes, here.expert_bytes);
    u->coded_bytes = greater(u->coded_bytes, here.coded_bytes);
    u->coded_expert_bytes = greater(u->coded_expert_bytes, here.coded_expert_bytes);
    u->grad_bytes = greater(u->grad_bytes, here.grad_bytes);
    u->pack_bytes = greater(u->pack_bytes, here.pack_bytes);
    u->work_grad_bytes = greater(u->work_grad_bytes, here.work_grad_bytes);
}

void clock_add_bytes(const Job *job, int unit, UnitSummary *u)
{
    const LinkedProgram *lp = &job->linked;
    for (int q = 0; q < lp->slices; q++) add_program(linked_program(lp, unit, 0, q), u);
    add_memory(job, unit, u);
}

static void copy_bytes(const UnitSummary *from, UnitSummary *to)
{
    memcpy(to->region_bytes, from->region_bytes, sizeof to->region_bytes);
    memcpy(to->scratch_bytes, from->scratch_bytes, sizeof to->scratch_bytes);
    to->x_read = from->x_read;
    to->y_read = from->y_read;
    to->y_bytes = from->y_bytes;
    to->dx_bytes = from->dx_bytes;
    to->state_bytes = from->state_bytes;
    to->expert_bytes = from->expert_bytes;
    to->coded_bytes = from->coded_bytes;
    to->coded_expert_bytes = from->coded_expert_bytes;
    to->grad_bytes = from->grad_bytes;
    to->pack_bytes = from->pack_bytes;
    to->work_grad_bytes = from->work_grad_bytes;
}

bool clock_same_bytes(const UnitSummary *a, const UnitSummary *b)
{
    UnitSummary x, y;
    memset(&x, 0, sizeof x);
    memset(&y, 0, sizeof y);
    copy_bytes(a, &x);
    copy_bytes(b, &y);
    return memcmp(&x, &y, sizeof x) == 0;
}

void clock_take_first(UnitSummary *u)
{
    if (u->first) copy_bytes(u->first, u);
    u->first = NULL;
}
