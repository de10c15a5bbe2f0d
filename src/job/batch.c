/* batch.c -- distribution of a batch over ranks. */
#include "job/batch.h"

int64_t batch_micros(int64_t global, int64_t each, int64_t dp, int64_t fold)
{
    const int64_t ranks = dp * fold, all = (global + each - 1) / each;
    return (all + ranks - 1) / ranks * fold;
}

BatchSplit batch_split(const Job *job)
{
    const JobSettings *set = &job->settings;
    const unsigned axes = mesh_axes(&job->mesh, VIEW_DENSE, "dp");
    return (BatchSplit){.each = set->batch.sequences,
                        .dp = mesh_parts(&job->mesh, VIEW_DENSE, axes),
                        .part = mesh_part(&job->mesh, VIEW_DENSE, axes, set->parallel.rank),
                        .fold = set->parallel.fold > 1 ? set->parallel.fold : 1,
                        .micros = set->micros};
}

BatchPart batch_part(const BatchSplit *s, int64_t global, int micro)
{
    const int rounds = s->micros / s->fold;
    const int64_t rank = (int64_t)s->part * s->fold + micro / rounds, round = micro % rounds;
    const int64_t first = (round * s->dp * s->fold + rank) * s->each, left = global - first;
    return (BatchPart){first, left < 0 ? 0 : left < s->each ? left : s->each};
}

int64_t batch_room(const BatchSplit *s) { return s->each * s->micros * s->dp; }
