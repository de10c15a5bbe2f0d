/* timestamps.c -- when the work of a step was done by a device that runs behind the host.
 *
 *     host     issue a | issue b | ...................... sync: it is now T
 *     device       0 | ---- a ---- 1 | -- b -- 2 |
 *
 * A mark is put behind all that an event of the trace put into the queue of computing. After the
 * step each event gets the time between the mark before it and its own; the last mark passed at T. */
#include <stdlib.h>
#include "run/rank_parts.h"

/* Of one step: an action, or each of the instructions that it runs, and the start. */
static int max_timestamps(const LinkedProgram *lp)
{
    int n = 1;
    for (int i = 0; i < lp->n; i++) {
        const Linked *l = &lp->list[i];
        const int phase = l->action.phase;
        n += l->program ? l->program->first[phase + 1] - l->program->first[phase] : 1;
    }
    return n;
}

Err timestamps_open(Rank *r)
{
    if (!r->settings.trace || !r->runtime) return OK;
    RankTimestamps *m = &r->marks;
    m->most = max_timestamps(r->settings.program);
    m->seconds = calloc((size_t)m->most, sizeof *m->seconds);
    m->event = calloc((size_t)m->most, sizeof *m->event);
    if (!m->seconds || !m->event) return err_fail(ERR_NOMEM, "no memory for %d marks", m->most);
    return r->runtime->timestamps_open(r->context, m->most, &m->marks);
}

void timestamps_close(Rank *r)
{
    if (r->marks.marks) r->runtime->timestamps_close(r->marks.marks);
    free(r->marks.seconds);
    free(r->marks.event);
}

Err timestamps_put(Rank *r, int64_t event)
{
    RankTimestamps *m = &r->marks;
    if (!m->marks) return OK;
    if (event < 0) m->n = 0; /* a step begins */
    MUST(m->n < m->most, "more than %d marks in a step", m->most);
    m->event[m->n] = event;
    return r->runtime->timestamp(r->queue, m->marks, m->n++);
}

Err timestamps_settle(Rank *r, double now_s)
{
    RankTimestamps *m = &r->marks;
    if (!m->marks || m->n == 0) return OK;
    TRY(r->runtime->timestamps_read(m->marks, m->n, m->seconds));
    const double start_s = now_s - m->seconds[m->n - 1];
    for (int i = 1; i < m->n; i++) {
        TraceEvent *e = &r->settings.trace->at[m->event[i]];
        e->begin_s = start_s + m->seconds[i - 1];
        e->end_s = start_s + m->seconds[i];
    }
    m->n = 0;
    return OK;
}
