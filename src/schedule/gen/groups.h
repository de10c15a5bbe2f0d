/* groups.h -- the order of interleaved schedules: groups of micro-batches, chunk by chunk.
 *
 *     forwards of 5 micro-batches in groups of at most 3, two chunks (0 and 1):
 *
 *     F0.0 F0.1 F0.2  F1.0 F1.1 F1.2    F0.3 F0.4  F1.3 F1.4
 *
 * Backwards start at the last chunk. Groups are as equal as possible, the larger ones first. */
#ifndef SCHEDULE_GEN_GROUPS_H
#define SCHEDULE_GEN_GROUPS_H

#include "schedule/gen/generate.h"

typedef struct {
    int group, turn, index; /* the group; the chunk's turn in it; the micro-batch's index in it */
    int first;              /* first micro-batch of the group */
    int n;                  /* RUNs so far */
} GroupWalk;

static inline int group_size(const Pipeline *p, int group)
{
    const int rounds = (p->micros + p->group - 1) / p->group;
    return p->micros / rounds + (group < p->micros % rounds);
}

static inline Action group_next(GroupWalk *w, const Pipeline *p, int stage, Phase phase)
{
    const int turn = phase == PHASE_F ? w->turn : p->chunks - 1 - w->turn;
    const Action a = action_run(phase, turn * p->stages + stage, w->first + w->index, 0);
    const int size = group_size(p, w->group);
    w->n++;
    if (++w->index < size) return a;
    w->index = 0;
    if (++w->turn < p->chunks) return a;
    w->turn = 0;
    w->first += size;
    w->group++;
    return a;
}

#endif
