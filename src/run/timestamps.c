/* timestamps.c -- device times of a step's events; the device runs behind the host.
 *
 *     host     issue a | issue b | ...................... sync: it is now T
 *     device       0 | ---- a ---- 1 | -- b -- 2 |
 *
 * A timestamp follows the work that an event of the trace put into the compute queue. After the
 * step each event gets the time between the previous timestamp and its own. The last one is taken
 * as T. */
#include <stdlib.h>
#include "run/rank_parts.h"

/* Timestamps of one step: its start, and one per action, or per instruction of a RUN. */
static int max_timestamps(const LinkedProgram *lp)
{
    int n = 1;
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        const int phase = l->action.phase;
        n += l->program ? l->program->first[phase + 1] - l->program->first[phase] : 1;
    }
    return n;
}

Err timestamps_open(Rank *r)
{
    if (!r->settings.trace || !r->runtime) return OK;
    RankTimestamps *t = &r->timestamps;
    t->cap = max_timestamps(r->settings.program);
    t->seconds = calloc((size_t)t->cap, sizeof *t->seconds);
    t->trace_index = calloc((size_t)t->cap, sizeof *t->trace_index);
    if (!t->seconds || !t->trace_index)
        return err_fail(ERR_NOMEM, "no memory for %d timestamps", t->cap);
    return r->runtime->timestamps_open(r->context, t->cap, &t->device);
}

void timestamps_close(Rank *r)
{
    if (r->timestamps.device) r->runtime->timestamps_close(r->timestamps.device);
    free(r->timestamps.seconds);
    free(r->timestamps.trace_index);
}

Err timestamps_put(Rank *r, int64_t event)
{
    RankTimestamps *t = &r->timestamps;
    if (!t->device) return OK;
    if (event < 0) t->n = 0; /* a step begins */
    MUST(t->n < t->cap, "more than %d timestamps in a step", t->cap);
    t->trace_index[t->n] = event;
    return r->runtime->timestamp(r->queue, t->device, t->n++);
}

Err timestamps_settle(Rank *r, double now_s)
{
    RankTimestamps *t = &r->timestamps;
    if (!t->device || t->n == 0) return OK;
    TRY(r->runtime->timestamps_read(t->device, t->n, t->seconds));
    const double start_s = now_s - t->seconds[t->n - 1];
    for (int i = 1; i < t->n; i++) {
        TraceEvent *e = &r->settings.trace->at[t->trace_index[i]];
        e->begin_s = start_s + t->seconds[i - 1];
        e->end_s = start_s + t->seconds[i];
    }
    t->n = 0;
    return OK;
}
