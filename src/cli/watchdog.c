/* watchdog.c -- looks at the positions in the flight recorder and at the state of processes. */
#define _GNU_SOURCE
#include "cli/watchdog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_NAMED = 4, MAX_LOOKED = 256 };
static const double DEFAULT_TIMEOUT_S = 600, STOPPED_S = 2;

void watchdog_open(Watchdog *w, const FlightRecorder *b, int argc, char **argv, EnvGet *get,
                   Arena *temp)
{
    static const char key[] = "run.timeout_s=";
    MpiLaunch by;
    *w = (Watchdog){.recorder = b, .timeout_s = DEFAULT_TIMEOUT_S, .temp = temp};
    gethostname(w->host, sizeof w->host - 1);
    for (int i = 1; i < argc; i++) {
        const bool found = strncmp(argv[i], key, sizeof key - 1) == 0;
        const double value = found ? strtod(argv[i] + sizeof key - 1, NULL) : 0;
        if (value > 0) w->timeout_s = value;
    }
    w->launched = mpi_launched(get, &by) && by.ranks > 1;
    if (w->launched) roll_call_open(&w->roll, get, &by);
}

void watchdog_close(Watchdog *w)
{
    roll_call_close(&w->roll);
    free(w->look);
    w->look = NULL;
}

static double timeout_of(const Watchdog *w)
{
    return w->recorder->timeout_s > 0 ? w->recorder->timeout_s : w->timeout_s;
}

/* ---- start ---- */

static void name_late(const Watchdog *w, double waited_s, const char *what, Text *why)
{
    text_add(
        why,
        "rank %d of %d (%s, pid %d) has waited %.1f s (run.timeout_s=%g) for all ranks to %s: ",
        w->roll.rank, w->roll.ranks, w->host, w->worker, waited_s, timeout_of(w), what);
}

/* A rank that is stopped is named by its own parent. */
static bool look_if_stopped(Watchdog *w, double now_s, Text *why)
{
    if (!process_is_stopped(w->worker)) w->awake_s = now_s;
    if (now_s - w->awake_s < timeout_of(w)) return false;
    text_add(why,
             "rank %d of %d (%s, pid %d) keeps the others from starting: it has been stopped for "
             "%.1f s (run.timeout_s=%g); `kill -CONT` continues a process",
             w->roll.rank, w->roll.ranks, w->host, w->worker, now_s - w->awake_s, timeout_of(w));
    return true;
}

/* Waiting ranks look too, GRACE_S later, since the parent of a stopped rank may be stopped as
 * well. A rank that prepares may take its time. */
static bool look_at_start(Watchdog *w, double now_s, Text *why)
{
    const int start = atomic_load(&w->recorder->start);
    const double waited_s = now_s - w->phase_s;
    roll_call_enter(&w->roll, w->worker, start);
    if (look_if_stopped(w, now_s, why)) return true;
    if (start != w->start) w->start = start, w->phase_s = now_s;
    if (start == START_PREPARES || waited_s < timeout_of(w) + GRACE_S) return false;
    if (start == START_JOINS) {
        const char *names;
        Text found = text_in(w->temp);
        const int n = roll_call_missing(&w->roll, start, &found);
        if (n == 0 || text_done(&found, &names) != OK) return false;
        name_late(w, waited_s, "join", why);
        text_add(why, "%s", names);
        return true;
    }
    name_late(w, waited_s, "start", why);
    if (start == START_NONE)
        text_add(why, "it has not called MPI_Init itself");
    else if (roll_call_missing(&w->roll, start, why) == 0)
        text_add(why, "those of this host have called MPI_Init; see the messages of other hosts, "
                      "and check the network between them");
    return true;
}

/* ---- run ---- */

static uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211u; }

static uint64_t position_of(const RankStatus *s)
{
    const RankWatch *w = &s->watch;
    uint64_t hash = mix(1469598103934665603u, (uint64_t)atomic_load(&w->step));
    hash = mix(hash, (uint64_t)atomic_load(&w->action));
    hash = mix(hash, (uint64_t)atomic_load(&w->phase));
    hash = mix(hash, (uint64_t)atomic_load(&w->micro));
    hash = mix(hash, (uint64_t)atomic_load(&w->instr));
    hash = mix(hash, (uint64_t)s->recorder.total);
    return mix(hash, (uint64_t)s->recorder.waits);
}

/* The oldest transfer that has begun and not ended; NULL: none. */
static const Record *in_flight(const Recorder *r)
{
    int64_t from = r->total - (r->cap < MAX_LOOKED ? r->cap : MAX_LOOKED);
    for (int64_t i = from > 0 ? from : 0; i < r->total; i++) {
        const Record *x = recorder_at(r, i);
        if (x && x->done_s < 0) return x;
    }
    return recorder_at(r, r->waits);
}

static bool is_busy(const RankStatus *s)
{
    return !atomic_load(&s->ended) && (atomic_load(&s->watch.step) != 0 || in_flight(&s->recorder));
}

static void name_rank(const Watchdog *w, const RankStatus *s, double idle_s, Text *why)
{
    char where[WATCH_TEXT_BYTES], name[RECORD_TEXT_BYTES];
    const Record *x = in_flight(&s->recorder);
    text_add(why, "rank %d of %d (%s, pid %d) has not moved for %.1f s: %s", s->rank,
             w->recorder->ranks, w->host, w->worker, idle_s, watch_text(&s->watch, where));
    if (x) text_add(why, ", with %s in flight", record_text(x, name));
    const Record *last = recorder_at(&s->recorder, s->recorder.total - 1);
    if (!x && last) text_add(why, "; its latest transfer was %s", record_text(last, name));
}

/* Names the ranks that have not ended, up to MAX_NAMED. */
static void name_ranks(const Watchdog *w, double now_s, Text *why)
{
    int n = 0;
    for (int i = 0; i < w->recorder->n_here; i++) {
        const RankStatus *s = &w->recorder->status[i];
        if (atomic_load(&s->ended)) continue;
        if (n++ >= MAX_NAMED) continue;
        text_add(why, "%s", n > 1 ? "; " : "");
        name_rank(w, s, now_s - w->look[i].moved_s, why);
    }
    if (n > MAX_NAMED) text_add(why, "; and %d more ranks", n - MAX_NAMED);
}

/* Notes which ranks have moved. A gap between two looks, or a stopped worker, is no time. */
static void note_positions(Watchdog *w, double now_s)
{
    const double gap_s = now_s - w->seen_s;
    const bool stopped = process_is_stopped(w->worker);
    for (int i = 0; i < w->recorder->n_here; i++) {
        RankLook *k = &w->look[i];
        const uint64_t mark = position_of(&w->recorder->status[i]);
        if (mark != k->mark || stopped) k->moved_s = now_s;
        if (gap_s > STOPPED_S && k->moved_s < now_s) k->moved_s += gap_s;
        k->mark = mark;
    }
    if (w->told_s > 0 && (stopped || gap_s > STOPPED_S)) w->told_s += stopped ? 0 : gap_s;
}

/* The seconds for which the rank that moved last has not moved; *busy: a rank is in a step or has a
 * transfer in flight. */
static double idle_of_all(const Watchdog *w, double now_s, bool *busy)
{
    double least = 1e18;
    *busy = false;
    for (int i = 0; i < w->recorder->n_here; i++) {
        if (atomic_load(&w->recorder->status[i].ended)) continue;
        const double idle_s = now_s - w->look[i].moved_s;
        if (idle_s < least) least = idle_s;
        *busy = *busy || is_busy(&w->recorder->status[i]);
    }
    return least;
}

static bool look_at_run(Watchdog *w, double now_s, Text *why)
{
    const FlightRecorder *b = w->recorder;
    const double timeout_s = timeout_of(w);
    bool busy;
    if (!w->look) w->look = calloc((size_t)b->n_here, sizeof *w->look);
    if (!w->look) return false;
    note_positions(w, now_s);
    const double idle_s = idle_of_all(w, now_s, &busy);
    if (atomic_load(&b->failed) && w->failed_s == 0) w->failed_s = now_s;
    if (w->failed_s > 0 && now_s - w->failed_s >= FAILED_S) {
        text_add(why, "%s; %d s later ", b->why[0] ? b->why : "a rank failed", FAILED_S);
        name_ranks(w, now_s, why);
        return true;
    }
    if (w->failed_s > 0 || !busy) return false;
    const bool told = w->told_s > 0 && now_s - w->told_s >= timeout_s && idle_s >= timeout_s;
    if (!told && (b->ranks == 1 || idle_s < timeout_s + GRACE_S)) return false;
    name_ranks(w, now_s, why);
    text_add(why, " (run.timeout_s=%g)%s", timeout_s,
             told ? "; it does not end as it was told" : "");
    return true;
}

bool watchdog_look(Watchdog *w, double now_s, Text *why)
{
    bool end = false;
    if (w->seen_s == 0) w->phase_s = w->awake_s = w->seen_s = now_s;
    if (w->launched && atomic_load(&w->recorder->start) != START_JOINED)
        end = look_at_start(w, now_s, why);
    else if (w->recorder->n_here > 0)
        end = look_at_run(w, now_s, why);
    /* All ranks have entered the list by now; a process that is killed later leaves no file. */
    if (atomic_load(&w->recorder->start) == START_JOINED) roll_call_close(&w->roll);
    w->seen_s = now_s;
    return end;
}
