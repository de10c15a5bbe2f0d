/* trial_processes.c -- what ranks that are processes add to a trial: each has the elements it owns,
 * and gets those of the others.
 *
 *     rank 0   weight   1.5 -0 -0     owners  1  0  0     sums   1.5 -2 -0    1  1  0
 *     rank 1            -0  -2 -0             0  1  0     an element without one owner is NaN
 *
 * Others add -0, which changes no number: 0 would make 0 of -0, and bits are compared. */
#include "verify/trial_parts.h"

#include <math.h>
#include "world/scalars.h"

enum { CHUNK = 1 << 15 }; /* elements that are summed at once */

static Err merge_chunk(WorldRank *w, Trial *out, const double *owners, int64_t first, int64_t n)
{
    double *at;
    const size_t mark = arena_mark(w->arena);
    TRY(world_agree(w, ARENA_NEW(w->arena, 3 * n, &at)));
    for (int64_t i = 0; i < n; i++) {
        const bool owned = owners[first + i] > 0;
        at[i] = owned ? out->weight[first + i] : -0.0;
        at[n + i] = owned ? out->gradient[first + i] : -0.0;
        at[2 * n + i] = owners[first + i];
    }
    TRY(comm_register(w->comm, ARENA_NUMBERS, at, 3 * (size_t)n * sizeof *at));
    TRY(world_reduce(w, ARENA_NUMBERS, 3 * n, F64, REDUCE_SUM));
    for (int64_t i = 0; i < n; i++) {
        const bool once = at[2 * n + i] == 1;
        out->weight[first + i] = once ? at[i] : (double)NAN;
        out->gradient[first + i] = once ? at[n + i] : (double)NAN;
    }
    arena_rewind(w->arena, mark);
    return OK;
}

Err trial_merge(WorldRank *w, Trial *out, const double *owners)
{
    for (int64_t i = 0; i < out->count; i += CHUNK)
        TRY(merge_chunk(w, out, owners, i, out->count - i < CHUNK ? out->count - i : CHUNK));
    return OK;
}

Err trial_merge_numbers(WorldRank *w, double *number, int64_t n)
{
    TRY(comm_register(w->comm, ARENA_NUMBERS, number, (size_t)n * sizeof *number));
    return world_reduce(w, ARENA_NUMBERS, n, F64, REDUCE_SUM);
}

bool trial_by_all(const TrialSettings *s, int ranks)
{
    return s->processes && s->processes->ranks == ranks && ranks > 1;
}
