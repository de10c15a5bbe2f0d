/* pipeline.c -- the schedule as simulated: makespan, bubble, frames held per stage, and the cost of
 * the barrier at the end of the step.
 *
 * The simulation takes time 1 for F, I and W of each unit of a chunk, 2 for B, and nothing for
 * transfers. It shows the dependencies of the schedule; real times need measured costs. */
#include "cli/explain/json.h"

/* [chunks][N_PHASES]: the cost of a phase for one unit, times the units of the chunk. */
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

/* Counts evictions. If there are some, compiles and plays the job without them for comparison. */
static Err facts_evict(Facts *f, const PlayCosts *costs, Arena *arena)
{
    PipelineFacts *p = &f->pipeline;
    const Schedule *s = &f->job->chunks;
    JobSettings set = f->job->settings;
    Job *without;
    Play play;
    for (int rank = 0; rank < s->ranks; rank++)
        for (int i = 0; i < s->n[rank]; i++) p->evicted += s->list[rank][i].kind == A_EVICT;
    if (p->evicted == 0 || !set.parallel.evict) return OK;
    set.parallel.evict = false;
    TRY(ARENA_NEW(arena, 1, &without));
    TRY(job_compile(&set, arena, without));
    TRY(schedule_play(&without->chunks, costs, arena, &play));
    p->held = play.peak;
    p->work_without = without->linked.bytes[ARENA_WORK];
    return OK;
}

/* The barrier costs the makespan of one step minus the period of many steps played in a row. Very
 * long schedules are not played that often. */
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

/* "4 3 2 1" */
static void held_text(const int *held, int stages, Text *t)
{
    enum { SHOWN = 16 };
    for (int s = 0; s < stages && s < SHOWN; s++) text_add(t, " %d", held[s]);
    if (stages > SHOWN) text_add(t, " ..");
}

static void barrier_text(const PipelineFacts *p, Text *t)
{
    if (p->barrier < 0) return;
    text_add(t, "  barrier    %.6g", p->barrier);
    if (p->barrier > 0)
        text_add(
            t,
            ", %.1f%% of the makespan: finished stages wait for the global gradient norm before "
            "they start the next step\n",
            100 * p->barrier / p->play.makespan);
    else
        text_add(t, ": no stage could start the next step earlier\n");
}

static void evict_text(const Facts *f, Text *t)
{
    const PipelineFacts *p = &f->pipeline;
    char with[24], without[24];
    if (p->evicted == 0) return;
    text_add(t, "  evict      %d frame%s evicted and fetched", p->evicted,
             p->evicted == 1 ? "" : "s");
    if (p->held) {
        text_add(t, "; without eviction, stages hold");
        held_text(p->held, f->job->chunks.ranks, t);
        text_add(t, ", and the work arena of rank %d takes %s instead of %s", f->job->linked.rank,
                 text_bytes((int64_t)p->work_without, without),
                 text_bytes((int64_t)f->job->linked.bytes[ARENA_WORK], with));
    }
    text_add(t, "\n");
}

void explain_pipeline_text(const Facts *f, Text *t)
{
    const Play *play = &f->pipeline.play;
    const int stages = f->job->chunks.ranks;
    text_add(t, "  simulated with time 1 for F, I and W of a unit of the model, 2 for B, 0 for "
                "transfers:\n");
    text_add(t, "  makespan   %.6g\n", play->makespan);
    text_add(t,
             "  bubble     %.6g: idle time of the busiest stage; all stages together are idle "
             "%.1f%% of the time\n",
             play->bubble, 100 * play->idle);
    text_add(t, "  frames     at most");
    held_text(play->peak, stages, t);
    text_add(t, stages == 1 ? "\n" : " on stages 0 to %d\n", stages - 1);
    barrier_text(&f->pipeline, t);
    evict_text(f, t);
}

json_t *pipeline_json(const Facts *f)
{
    const PipelineFacts *p = &f->pipeline;
    json_t *o = json_object(), *held = json_array();
    for (int stage = 0; stage < f->job->chunks.stages; stage++)
        json_array_append_new(held, json_integer(p->play.peak[stage]));
    set(o, "makespan", json_real(p->play.makespan));
    set(o, "bubble", json_real(p->play.bubble));
    set(o, "idle", json_real(p->play.idle));
    set(o, "barrier", p->barrier < 0 ? json_null() : json_real(p->barrier));
    set(o, "frames", held);
    set_count(o, "evicted", p->evicted);
    if (p->held) set_bytes(o, "work_without_evict", p->work_without);
    return o;
}
