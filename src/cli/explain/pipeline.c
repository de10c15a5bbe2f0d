/* pipeline.c -- the schedule as simulated: makespan, bubble, frames held per stage, and the cost of
 * the barrier at the end of the step.
 *
 * The simulation takes time 1 for F, I and W of each unit of a chunk, 2 for B, and nothing for
 * transfers. It shows the dependencies of the schedule; real times need measured costs. */
#include "cli/explain/json.h"

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
        held_text(p->held, f->job->chunks.stages, t);
        text_add(t, ", and the work arena of rank %d takes %s instead of %s", f->job->linked.rank,
                 text_bytes((int64_t)p->work_without, without),
                 text_bytes((int64_t)f->job->linked.bytes[ARENA_WORK], with));
    }
    text_add(t, "\n");
}

void explain_pipeline_text(const Facts *f, Text *t)
{
    const Play *play = &f->pipeline.play;
    const int stages = f->job->chunks.stages;
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
