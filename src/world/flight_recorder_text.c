/* flight_recorder_text.c -- the report of a flight recorder; one line per rank and per transfer.
 *
 *     rank 0: step 12, layer.3, F of micro-batch 1, instruction 17 linear; waits for all-reduce
 *             #31 over {0 1 2 3}, instruction 17: rank 2 has not posted it
 *         all-reduce #30 over {0 1 2 3}, instruction 17: 4.0 KiB, posted at 1.201 s, done after
 *         0.4 ms */
#include "world/flight_recorder.h"

#include <stdio.h>
#include <string.h>
#include "ir/ops.h"
#include "schedule/action.h"

enum { MAX_NAMED = 8 };

const char *watch_text(const RankWatch *w, char buffer[WATCH_TEXT_BYTES])
{
    const int64_t step = atomic_load(&w->step);
    const int action = atomic_load(&w->action), phase = atomic_load(&w->phase);
    const int instr = atomic_load(&w->instr), op = atomic_load(&w->op);
    char unit[WATCH_NAME_BYTES];
    size_t n = 0, cap = WATCH_TEXT_BYTES;
    for (int i = 0; i < WATCH_NAME_BYTES; i++) unit[i] = atomic_load(&w->unit[i]);
    unit[WATCH_NAME_BYTES - 1] = '\0';
    if (step == 0) return strcpy(buffer, "between steps");
    n += (size_t)snprintf(buffer, cap, "step %lld", (long long)step);
    if (action == A_RUN && phase >= 0 && phase < N_PHASES)
        n += (size_t)snprintf(buffer + n, cap - n, ", %s, %s of micro-batch %d", unit,
                              phase_name((Phase)phase), (int)atomic_load(&w->micro));
    else if (action == WATCH_GRAPH)
        snprintf(buffer + n, cap - n, ", in its graph");
    else if (action >= 0 && action < N_ACTION_KINDS)
        n += (size_t)snprintf(buffer + n, cap - n, ", %s%s%s", action_kind_name((ActionKind)action),
                              unit[0] ? " of " : "", unit);
    if (action == A_RUN && instr >= 0 && op >= 0 && op < N_OPS)
        snprintf(buffer + n, cap - n, ", instruction %d %s", instr, op_info((OpId)op)->name);
    return buffer;
}

static bool is_pair(const Record *r) { return r->kind == COMM_SEND || r->kind == COMM_RECV; }

static bool same_group(const Record *a, const Record *b)
{
    const int n = a->n_ranks < RECORD_RANKS ? a->n_ranks : RECORD_RANKS;
    return a->purpose == b->purpose && a->n_ranks == b->n_ranks &&
           memcmp(a->rank, b->rank, sizeof *a->rank * (size_t)n) == 0;
}

/* True if the rank of `s` has posted its part of transfer `r` of rank `me`, or a later one on the
 * same group. Searches from the newest record back. */
static bool has_posted(const RankStatus *s, const Record *r, int me)
{
    const Recorder *of = &s->recorder;
    const int64_t oldest = of->total > of->cap ? of->total - of->cap : 0;
    for (int64_t i = of->total - 1; i >= oldest; i--) {
        const Record *x = recorder_at(of, i);
        if (!same_group(x, r) || is_pair(x) != is_pair(r) || x->sequence < r->sequence) continue;
        if (!is_pair(r) || (x->kind != r->kind && x->peer == me)) return true;
    }
    return false;
}

/* The ranks other than `me` that have not posted the transfer, as far as the record names them; at
 * most MAX_NAMED. */
static int partners(const FlightRecorder *f, const Record *r, int me, int *out)
{
    int n = 0;
    if (is_pair(r)) {
        if (r->peer != me) out[n++] = r->peer;
        return n;
    }
    const bool all = r->n_ranks == f->ranks; /* then the ranks are known, however many they are */
    const int known = all ? f->ranks : r->n_ranks < RECORD_RANKS ? r->n_ranks : RECORD_RANKS;
    for (int i = 0; i < known && n < MAX_NAMED; i++) {
        const int rank = all ? i : r->rank[i];
        const RankStatus *s = flight_recorder_of(f, rank);
        if (rank != me && s && !has_posted(s, r, me)) out[n++] = rank;
    }
    return n;
}

static void report_wait(const FlightRecorder *f, const RankStatus *s, Text *t)
{
    char name[RECORD_TEXT_BYTES];
    int missing[MAX_NAMED];
    const Record *r = recorder_at(&s->recorder, s->recorder.waits);
    if (!r) return;
    text_add(t, "; waits for %s", record_text(r, name));
    const int n = partners(f, r, s->rank, missing);
    for (int i = 0; i < n; i++) text_add(t, "%s rank %d", i ? "," : ":", missing[i]);
    if (n > 0) text_add(t, n > 1 ? " have not posted it" : " has not posted it");
    if (n == 0 && f->n_here == f->ranks) text_add(t, ": all have posted it");
}

static void report_record(const Record *r, Text *t)
{
    char name[RECORD_TEXT_BYTES], bytes[24];
    text_add(t, "    %s: %s, posted at %.3f s", record_text(r, name),
             text_bytes((int64_t)r->bytes, bytes), r->posted_s);
    if (r->done_s >= 0)
        text_add(t, ", done after %.1f ms\n", 1e3 * (r->done_s - r->posted_s));
    else
        text_add(t, r->matched_s >= 0 ? ", on its way\n" : ", not matched\n");
}

void flight_recorder_report(const FlightRecorder *f, int latest, Text *t)
{
    char where[WATCH_TEXT_BYTES];
    for (int i = 0; i < f->n_here; i++) {
        const RankStatus *s = &f->status[i];
        const int64_t total = s->recorder.total;
        text_add(t, "  rank %d: %s", s->rank, watch_text(&s->watch, where));
        if (s->recorder.waits >= 0) report_wait(f, s, t);
        text_add(t, "\n");
        for (int64_t k = total > latest ? total - latest : 0; k < total; k++)
            report_record(recorder_at(&s->recorder, k), t);
    }
}
