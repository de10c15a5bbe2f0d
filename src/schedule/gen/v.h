/* v.h -- writer for schedules on a V: appends the next micro-batch of a phase in the stage's first
 * chunk, on the leg down, or in its second chunk, on the leg up. */
#ifndef SCHEDULE_GEN_V_H
#define SCHEDULE_GEN_V_H

#include "schedule/gen/generate.h"

enum { V_DOWN, V_UP };

typedef struct {
    int chunk[2];
    int next[N_PHASES][2]; /* the next micro-batch; B counts as an I and a W */
    Action *out;
    int n;
} VStage;

static inline VStage v_stage(const Pipeline *p, int stage, Action *out)
{
    return (VStage){.chunk = {stage, 2 * p->stages - 1 - stage}, .out = out};
}

static inline void v_run(VStage *l, Phase phase, int leg)
{
    const Phase counts = phase == PHASE_B ? PHASE_I : phase;
    l->out[l->n++] = action_run(phase, l->chunk[leg], l->next[counts][leg]++, 0);
    if (phase == PHASE_B) l->next[PHASE_W][leg]++;
}

static inline void v_run_backward(VStage *l, int leg) /* as I and W */
{
    v_run(l, PHASE_I, leg);
    v_run(l, PHASE_W, leg);
}

#endif
