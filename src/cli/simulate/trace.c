/* trace.c -- a simulated step as a file for chrome://tracing or ui.perfetto.dev.
 *
 *     process "rank 0, for 1024 ranks"   thread "actions"     F0.0 | F1.0 | wait: pp | ...
 *                                        thread "compute"     gemm | attention | ...
 *                                        thread "tp: 8 ranks" all-gather | reduce-scatter | ...
 *
 * A process for each rank that was played; a thread for each of its channels. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/new_file.h"
#include "cli/simulate/simulate.h"
#include "schedule/text_form.h"
#include "world/trace.h"

enum { TID_ACTIONS, TID_COMPUTE, TID_CHANNELS, MAX_TRACE_CHANNELS = 64 };

/* The rank that is being written. */
typedef struct {
    int rank;
    Action action; /* the current one, and its span */
    double start_s, end_s;
    int n_channels, channel[MAX_TRACE_CHANNELS]; /* whose threads have names */
} TracedRank;

typedef struct {
    FILE *f;
    const Job *job;
    TracedRank *of_rank; /* [n] */
    int n;
    int64_t events, missed;
} TraceWriter;

static void put_name(TraceWriter *w, int rank, int tid, const char *kind, const char *name)
{
    fprintf(w->f,
            "%s\n{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", \"args\": {\"name\": "
            "\"%s\"}}",
            w->events++ ? "," : "", rank, tid, kind, name);
}

static void put_slice(TraceWriter *w, int rank, int tid, const char *name, const ClockSpan *s)
{
    fprintf(w->f,
            ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"name\": "
            "\"%s\", \"cat\": \"%s\"",
            rank, tid, 1e6 * s->start_s, 1e6 * (s->end_s - s->start_s), name,
            time_kind_name(s->time));
    if (s->kind == SPAN_TRANSFER)
        fprintf(w->f, ", \"args\": {\"bytes\": %.0f, \"ranks\": %d}", s->bytes, s->members);
    fputs("}", w->f);
    w->events++;
}

/* "F layer.3, micro-batch 0" */
static void action_name(const TraceWriter *w, const Action *a, char *out, size_t bytes)
{
    const Model *m = &w->job->model;
    const char *unit = a->unit >= 0 && a->unit < m->n_units ? m->unit[a->unit].name : "";
    if (a->kind == N_ACTION_KINDS)
        snprintf(out, bytes, "end of the step");
    else if (a->kind == A_RUN && w->job->slices.n > 1)
        snprintf(out, bytes, "%s %s, micro-batch %d, slice %d", phase_name((Phase)a->phase), unit,
                 a->micro, a->slice);
    else if (a->kind == A_RUN)
        snprintf(out, bytes, "%s %s, micro-batch %d", phase_name((Phase)a->phase), unit, a->micro);
    else
        snprintf(out, bytes, "%s%s%s", action_kind_name((ActionKind)a->kind),
                 action_is_whole(a) ? "" : " ", action_is_whole(a) ? "" : unit);
}

static bool same_action(const Action *a, const Action *b)
{
    return a->kind == b->kind && a->phase == b->phase && a->unit == b->unit &&
           a->micro == b->micro && a->slice == b->slice && a->peer == b->peer;
}

/* Writes the action that has ended. */
static void end_action(TraceWriter *w, TracedRank *r)
{
    char name[160];
    const ClockSpan s = {.start_s = r->start_s, .end_s = r->end_s, .time = TIME_IDLE};
    if (r->end_s <= r->start_s) return;
    action_name(w, &r->action, name, sizeof name);
    put_slice(w, r->rank, TID_ACTIONS, name, &s);
}

static void follow_action(TraceWriter *w, TracedRank *r, const ClockSpan *s)
{
    if (!same_action(&r->action, &s->action)) {
        end_action(w, r);
        r->action = s->action;
        r->start_s = s->start_s;
    }
    r->end_s = s->end_s;
}

/* The thread of a channel, by its index among those of the rank. */
static int channel_tid(TraceWriter *w, TracedRank *r, const ClockSpan *s)
{
    static const char *const purpose[] = {"within units", "gathers",  "reductions", "scalars",
                                          "forward",      "backward", "frames"};
    char name[64];
    int i = 0;
    while (i < r->n_channels && r->channel[i] != s->channel) i++;
    if (i < r->n_channels) return TID_CHANNELS + i;
    if (i == MAX_TRACE_CHANNELS) return TID_CHANNELS + i - 1;
    r->channel[r->n_channels++] = s->channel;
    if (s->purpose < (int)(sizeof purpose / sizeof *purpose))
        snprintf(name, sizeof name, "%s: %s, %d ranks", time_kind_name(s->time),
                 purpose[s->purpose], s->members);
    else
        snprintf(name, sizeof name, "copies to or from the host");
    put_name(w, r->rank, TID_CHANNELS + i, "thread_name", name);
    return TID_CHANNELS + i;
}

static Err put_span(void *context, const ClockSpan *s)
{
    TraceWriter *w = context;
    char name[64];
    int i = 0;
    while (w->of_rank[i].rank != s->rank) i++;
    TracedRank *r = &w->of_rank[i];
    if (s->kind != SPAN_TRANSFER) follow_action(w, r, s);
    if (w->events >= MAX_TRACE_EVENTS) {
        w->missed++;
        return OK;
    }
    if (s->kind == SPAN_TRANSFER) {
        const int tid = channel_tid(w, r, s);
        const bool copy = s->members < 2;
        put_slice(w, s->rank, tid, copy ? "copy" : comm_kind_name(s->transfer), s);
        return OK;
    }
    snprintf(name, sizeof name, "wait: %s", time_kind_name(s->time));
    put_slice(w, s->rank, TID_COMPUTE, s->kind == SPAN_WAIT ? name : op_info((OpId)s->op)->name, s);
    return OK;
}

static Err open_ranks(TraceWriter *w, const StepClock *clock, Arena *temp)
{
    w->n = clock_ranks(clock);
    TRY(ARENA_NEW(temp, w->n, &w->of_rank));
    fputs("[", w->f);
    for (int i = 0; i < w->n; i++) {
        TracedRank *r = &w->of_rank[i];
        char name[64];
        int ranks;
        r->rank = clock_rank(clock, i, &ranks);
        r->action.kind = N_ACTION_KINDS;
        snprintf(name, sizeof name, ranks > 1 ? "rank %d, for %d ranks" : "rank %d", r->rank,
                 ranks);
        put_name(w, r->rank, 0, "process_name", name);
        put_name(w, r->rank, TID_ACTIONS, "thread_name", "actions");
        put_name(w, r->rank, TID_COMPUTE, "thread_name", "compute");
    }
    return OK;
}

Err simulate_trace(const SimulationReport *s, StepClock *clock, const char *path, Arena *temp)
{
    const size_t mark = arena_mark(temp);
    TraceWriter w = {.f = fopen(path, "w"), .job = s->all.shared};
    const ClockWatch watch = {put_span, &w};
    StepTime time;
    if (!w.f) return err_fail(ERR_IO, "--trace %s: cannot be written: %s", path, strerror(errno));
    Err err = open_ranks(&w, clock, temp);
    clock_watch(clock, &watch);
    if (err == OK) err = clock_play(clock, s->cluster, &time);
    clock_watch(clock, NULL);
    for (int i = 0; err == OK && i < w.n; i++) end_action(&w, &w.of_rank[i]);
    fputs("\n]\n", w.f);
    const bool bad = ferror(w.f) != 0;
    if ((fclose(w.f) != 0 || bad) && err == OK)
        err = err_fail(ERR_IO, "--trace %s: cannot be written: %s", path, strerror(errno));
    if (err != OK) new_file_remove(path);
    if (err == OK && w.missed > 0)
        fprintf(stderr, "%s: %lld of the step's events did not fit; actions are complete\n", path,
                (long long)w.missed);
    arena_rewind(temp, mark);
    return err;
}
