/* pipeline.c -- plays the schedule: makespan, bubble, frames held, cost of the norm barrier.
 *
 * Costs are 1 unit of time for F, I and W of each unit of a chunk and 2 for B; transfers are free.
 * The play shows which stage waits for which, not seconds. */
#include "plan/facts/facts.h"

/* [chunks][N_PHASES]: in proportion to the units of the chunk. */
static Err unit_costs(const Schedule *s, Arena *temp, double **out)
{
    static const double one[N_PHASES] = {
        [PHASE_F] = 1, [PHASE_I] = 1, [PHASE_W] = 1, [PHASE_B] = 2};
    TRY(ARENA_NEW(temp, s->chunks * N_PHASES, out));
    for (int c = 0; c < s->chunks; c++)
        for (int p = 0; p < N_PHASES; p++)
            (*out)[c * N_PHASES + p] = one[p] * (s->first_unit[c + 1] - s->first_unit[c]);
    return OK;
}

/* Counts evictions; compiles the job without them for comparison. */
static Err facts_evict(Facts *f, const PlayCosts *costs, Arena *arena)
{
    PipelineFacts *p = &f->pipeline;
    const Schedule *s = &f->job->chunks;
    JobSettings set = f->job->settings;
    Job *without;
    Play play;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->n[stage]; i++) p->evicted += s->list[stage][i].kind == A_EVICT;
    if (p->evicted == 0 || !set.parallel.evict) return OK;
    set.parallel.evict = false;
    TRY(ARENA_NEW(arena, 1, &without));
    TRY(job_compile(&set, arena, without));
    TRY(schedule_play(&without->chunks, costs, arena, &play));
    p->held = play.peak;
    p->work_without = without->linked.bytes[ARENA_WORK];
    return OK;
}

Err facts_pipeline(Facts *f, Arena *arena)
{
    PipelineFacts *p = &f->pipeline;
    const Schedule *s = &f->job->chunks;
    double *cost, period = 0;
    TRY(unit_costs(s, arena, &cost));
    const PlayCosts costs = {.cost = cost};
    TRY(schedule_play(s, &costs, arena, &p->play));
    p->barrier = -1;
    if (s->micros <= MAX_SCHEDULE / 4) {
        TRY(play_period(s, &costs, arena, &period));
        p->barrier = p->play.makespan - period;
    }
    return facts_evict(f, &costs, arena);
}
