/* watch.c -- writes the position of a rank and its trace. */
#define _POSIX_C_SOURCE 200809L
#include "run/rank_parts.h"
#include "base/clock.h"

static void put(_Atomic int32_t *cell, int32_t x)
{
    atomic_store_explicit(cell, x, memory_order_relaxed);
}

static bool has_unit(const Action *a)
{
    return a->unit >= 0 && !action_is_whole(a) && a->kind != A_BIND;
}

static void write_action(RankWatch *w, const Rank *r, const Action *a)
{
    const LinkedProgram *lp = r->settings.program;
    const char *name = has_unit(a) ? lp->model->unit[linked_unit(lp, a)].name : "";
    put(&w->instr, -1);
    put(&w->op, -1);
    for (int i = 0; i < WATCH_NAME_BYTES; i++) {
        const char c = i < WATCH_NAME_BYTES - 1 ? name[i] : '\0';
        atomic_store_explicit(&w->unit[i], c, memory_order_relaxed);
        if (c == '\0') break;
    }
    put(&w->phase, a->phase);
    put(&w->micro, a->micro);
    put(&w->action, a->kind);
}

Err watch_step(Rank *r, int64_t step)
{
    RankWatch *w = r->settings.watch;
    if (w) {
        put(&w->action, -1);
        atomic_store_explicit(&w->step, step, memory_order_relaxed);
    }
    const bool times = r->timestamps.device && r->settings.comm;
    if (step && times) TRY(comm_times_begin(r->settings.comm));
    if (step) return timestamps_put(r, -1);
    if (r->timestamps.device) TRY(memory_sync(r));
    TRY(timestamps_settle(r, now_s()));
    return times ? comm_times_end(r->settings.comm) : OK;
}

void watch_graph(Rank *r)
{
    if (r->settings.watch) put(&r->settings.watch->action, WATCH_GRAPH);
}

double watch_begin(Rank *r, const LinkedAction *l, int instr)
{
    RankWatch *w = r->settings.watch;
    if (w && instr < 0) write_action(w, r, &l->action);
    if (w && instr >= 0) {
        put(&w->op, l->program->instr[instr].op);
        put(&w->instr, instr);
    }
    return r->settings.trace ? now_s() : 0;
}

Err watch_end(Rank *r, const LinkedAction *l, int instr, double begin_s)
{
    RankTrace *t = r->settings.trace;
    const int unit = has_unit(&l->action) ? linked_unit(r->settings.program, &l->action) : -1;
    if (!t || (instr == TRACE_ACTION && l->program))
        return OK; /* the instructions of a RUN are its events */
    if (t->n == t->cap) {
        t->missed++;
        return OK;
    }
    t->at[t->n++] = (TraceEvent){.begin_s = begin_s,
                                 .end_s = now_s(),
                                 .instr = instr,
                                 .op = instr < 0 ? -1 : (int32_t)l->program->instr[instr].op,
                                 .unit = (int16_t)unit,
                                 .micro = l->action.micro,
                                 .action = l->action.kind,
                                 .phase = l->action.phase};
    return timestamps_put(r, t->n - 1);
}
