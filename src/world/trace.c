/* trace.c -- the JSON array format of Chrome trace events: "X" is a slice on a thread, "b" and "e"
 * are the ends of a slice that may overlap others; a transfer that NCCL moved is shown while it ran
 * on the device, others from their post on. "M" names a process or a thread. Times are
 * microseconds since the first event. */
#include "world/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "ir/ops.h"
#include "schedule/action.h"

Err trace_open(Trace *t, int rank, int ranks_here, Arena *a)
{
    const int64_t share = MAX_TRACE_EVENTS / ranks_here, transfers = share / 4;
    *t = (Trace){.rank = rank, .cap_transfers = transfers, .events.cap = share - transfers};
    TRY(arena_push(a, sizeof *t->events.at * (size_t)t->events.cap, (void *)&t->events.at));
    return arena_push(a, sizeof *t->transfer * (size_t)transfers, (void *)&t->transfer);
}

void trace_take(Trace *t, const Recorder *r)
{
    const int64_t oldest = r->total > r->cap ? r->total - r->cap : 0;
    if (t->seen < oldest) t->missed += oldest - t->seen, t->seen = oldest;
    t->opened_s = r->opened_s;
    for (; t->seen < r->total; t->seen++) {
        if (t->n_transfers < t->cap_transfers)
            t->transfer[t->n_transfers++] = *recorder_at(r, t->seen);
        else
            t->missed++;
    }
}

int64_t trace_missed(const Trace *t) { return t->missed + t->events.missed; }

/* Time of the first event of all ranks, on the monotonic clock that they share; 0: there is
 * none. */
static double first_s(const Trace *const *trace, int n)
{
    double first = 0;
    for (int i = 0; i < n; i++) {
        const Trace *t = trace[i];
        const double event = t->events.n ? t->events.at[0].begin_s : 0;
        const double posted = t->n_transfers ? t->opened_s + t->transfer[0].posted_s : 0;
        if (event > 0 && (first == 0 || event < first)) first = event;
        if (posted > 0 && (first == 0 || posted < first)) first = posted;
    }
    return first;
}

static void put_event(FILE *f, int rank, const TraceEvent *e, const Model *m, double first)
{
    const char *unit = e->unit >= 0 && e->unit < m->n_units ? m->unit[e->unit].name : "";
    fprintf(f, ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": 0, \"ts\": %.3f, \"dur\": %.3f, ", rank,
            1e6 * (e->begin_s - first), 1e6 * (e->end_s - e->begin_s));
    const char *kind =
        e->instr == TRACE_PREPACK ? "prepack" : action_kind_name((ActionKind)e->action);
    if (e->instr < 0)
        fprintf(f, "\"name\": \"%s%s%s\", \"cat\": \"action\"}", kind, *unit ? " " : "", unit);
    else
        fprintf(f,
                "\"name\": \"%s\", \"cat\": \"%s\", \"args\": {\"unit\": \"%s\", \"phase\": "
                "\"%s\", \"micro\": %d, \"instr\": %d}}",
                op_info((OpId)e->op)->name, phase_name((Phase)e->phase), unit,
                phase_name((Phase)e->phase), e->micro, e->instr);
}

static void put_transfer(FILE *f, const Trace *t, const Record *r, double first)
{
    char name[RECORD_TEXT_BYTES];
    const double from = 1e6 * (t->opened_s + (r->timed ? r->matched_s : r->posted_s) - first);
    const double to = 1e6 * (t->opened_s + (r->done_s < 0 ? r->posted_s : r->done_s) - first);
    record_text(r, name);
    fprintf(f,
            ",\n{\"ph\": \"b\", \"pid\": %d, \"tid\": 1, \"id\": %lld, \"cat\": \"transfer\", "
            "\"name\": \"%s\", \"ts\": %.3f, \"args\": {\"bytes\": %zu, \"sent\": %zu, \"scalar\": "
            "%s}}",
            t->rank, (long long)r->number, name, from, r->bytes, r->sent_bytes,
            r->scalar ? "true" : "false");
    fprintf(f,
            ",\n{\"ph\": \"e\", \"pid\": %d, \"tid\": 1, \"id\": %lld, \"cat\": \"transfer\", "
            "\"name\": \"%s\", \"ts\": %.3f}",
            t->rank, (long long)r->number, name, to);
}

static void put_names(FILE *f, int rank, bool comma)
{
    static const char *const thread[] = {"compute", "transfers"};
    fprintf(f,
            "%s\n{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", \"args\": {\"name\": "
            "\"rank %d\"}}",
            comma ? "," : "", rank, rank);
    for (int i = 0; i < 2; i++)
        fprintf(f,
                ",\n{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"thread_name\", \"args\": "
                "{\"name\": \"%s\"}}",
                rank, i, thread[i]);
}

Err trace_write(const char *path, const Trace *const *trace, int n, const Model *model)
{
    FILE *f = fopen(path, "w");
    if (!f) return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    const double first = first_s(trace, n);
    fputs("[", f);
    for (int i = 0; i < n; i++) {
        const Trace *t = trace[i];
        put_names(f, t->rank, i > 0);
        for (int64_t k = 0; k < t->events.n; k++)
            put_event(f, t->rank, &t->events.at[k], model, first);
        for (int64_t k = 0; k < t->n_transfers; k++) put_transfer(f, t, &t->transfer[k], first);
    }
    fputs("\n]\n", f);
    const bool bad = ferror(f) != 0;
    if (fclose(f) == 0 && !bad) return OK;
    const int why = errno;
    struct stat s;
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode)) remove(path); /* half a trace; a device stays */
    return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(why));
}
