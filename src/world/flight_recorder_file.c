/* flight_recorder_file.c -- writes and reads recorder.json; flight_recorder.h has the format. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "ir/ops.h"
#include "schedule/action.h"
#include "world/flight_recorder.h"

/* Version 1 stored the number of ranks of the world as `ranks` and the list as `seats`. */
enum { VERSION = 2, OLD_VERSION = 1, MAX_HERE = 1 << 20 };

static json_t *record_json(const Record *r)
{
    const int known = r->n_ranks < RECORD_RANKS ? r->n_ranks : RECORD_RANKS;
    json_t *over = json_array();
    for (int i = 0; i < known; i++) json_array_append_new(over, json_integer(r->rank[i]));
    return json_pack("{sI ss sI si si si si so sI sI ss sb sf sf sf}", "number",
                     (json_int_t)r->number, "kind", comm_kind_name(r->kind), "sequence",
                     (json_int_t)r->sequence, "purpose", r->purpose, "instr", r->instr, "peer",
                     r->peer, "group", r->n_ranks, "over", over, "bytes", (json_int_t)r->bytes,
                     "sent", (json_int_t)r->sent_bytes, "dtype", dtype_name(r->dtype), "scalar",
                     r->scalar, "posted_s", r->posted_s, "matched_s", r->matched_s, "done_s",
                     r->done_s);
}

/* The position of the rank. Members are read one by one while the rank runs, so names are checked
 * before use. */
static void add_place(json_t *o, const RankWatch *w)
{
    const int action = atomic_load(&w->action), op = atomic_load(&w->op);
    char unit[WATCH_NAME_BYTES];
    for (int i = 0; i < WATCH_NAME_BYTES; i++) unit[i] = atomic_load(&w->unit[i]);
    unit[WATCH_NAME_BYTES - 1] = '\0';
    json_object_set_new(o, "step", json_integer(atomic_load(&w->step)));
    if (action < 0 || action >= N_ACTION_KINDS) return;
    json_object_set_new(o, "action", json_string(action_kind_name((ActionKind)action)));
    if (unit[0]) json_object_set_new(o, "unit", json_stringn_nocheck(unit, strlen(unit)));
    if (action != A_RUN) return;
    const Phase phase = (Phase)atomic_load(&w->phase);
    json_object_set_new(o, "phase", json_string(phase < N_PHASES ? phase_name(phase) : "?"));
    json_object_set_new(o, "micro", json_integer(atomic_load(&w->micro)));
    if (op < 0 || op >= N_OPS) return;
    json_object_set_new(o, "instr", json_integer(atomic_load(&w->instr)));
    json_object_set_new(o, "op", json_string(op_info((OpId)op)->name));
}

static json_t *status_json(const RankStatus *s)
{
    json_t *o = json_object(), *records = json_array();
    const Recorder *r = &s->recorder;
    json_object_set_new(o, "rank", json_integer(s->rank));
    add_place(o, &s->watch);
    json_object_set_new(o, "transfers", json_integer(r->total));
    json_object_set_new(o, "waits", json_integer(r->waits));
    for (int64_t i = r->total > r->cap ? r->total - r->cap : 0; i < r->total; i++)
        json_array_append_new(records, record_json(recorder_at(r, i)));
    json_object_set_new(o, "records", records);
    return o;
}

Err flight_recorder_write(const FlightRecorder *f, const char *path, const char *reason)
{
    json_t *o = json_object(), *ranks = json_array();
    json_object_set_new(o, "sheaf", json_string("recorder"));
    json_object_set_new(o, "version", json_integer(VERSION));
    json_object_set_new(o, "reason", json_string(reason)); /* not set if it is no valid UTF-8 */
    json_object_set_new(o, "world", json_integer(f->ranks));
    for (int i = 0; i < f->n_here; i++) json_array_append_new(ranks, status_json(&f->status[i]));
    json_object_set_new(o, "ranks", ranks);
    const int bad = json_dump_file(o, path, JSON_INDENT(1));
    const int why = errno;
    json_decref(o);
    return bad ? err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(why)) : OK;
}

/* ---- reading ---- */

static int64_t number_of(const json_t *o, const char *key, int64_t fallback)
{
    const json_t *x = json_object_get(o, key);
    return json_is_integer(x) ? json_integer_value(x) : fallback;
}

static double seconds_of(const json_t *o, const char *key)
{
    const json_t *x = json_object_get(o, key);
    return json_is_number(x) ? json_number_value(x) : -1;
}

static const char *word_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static int find_action(const char *word)
{
    for (int i = 0; i < N_ACTION_KINDS; i++)
        if (strcmp(word, action_kind_name((ActionKind)i)) == 0) return i;
    return -1;
}

static int find_phase(const char *word)
{
    for (int i = 0; i < N_PHASES; i++)
        if (strcmp(word, phase_name((Phase)i)) == 0) return i;
    return -1;
}

static int find_op(const char *word)
{
    for (int i = 0; i < N_OPS; i++)
        if (strcmp(word, op_info((OpId)i)->name) == 0) return i;
    return -1;
}

static void read_place(const json_t *o, RankWatch *w)
{
    const char *unit = word_of(o, "unit");
    atomic_init(&w->step, number_of(o, "step", 0));
    atomic_init(&w->action, find_action(word_of(o, "action")));
    atomic_init(&w->phase, find_phase(word_of(o, "phase")));
    atomic_init(&w->micro, (int32_t)number_of(o, "micro", -1));
    atomic_init(&w->instr, (int32_t)number_of(o, "instr", -1));
    atomic_init(&w->op, find_op(word_of(o, "op")));
    for (int i = 0; i < WATCH_NAME_BYTES - 1 && unit[i]; i++) atomic_init(&w->unit[i], unit[i]);
}

static Err read_record(const json_t *o, const char *path, Record *out)
{
    Record r = {.number = number_of(o, "number", -1),
                .sequence = number_of(o, "sequence", -1),
                .purpose = (int)number_of(o, "purpose", 0),
                .instr = (int32_t)number_of(o, "instr", -1),
                .peer = (int32_t)number_of(o, "peer", -1),
                .n_ranks = (int32_t)number_of(o, "group", 0),
                .bytes = (size_t)number_of(o, "bytes", 0),
                .sent_bytes = (size_t)number_of(o, "sent", 0),
                .posted_s = seconds_of(o, "posted_s"),
                .matched_s = seconds_of(o, "matched_s"),
                .done_s = seconds_of(o, "done_s"),
                .kind = N_COMM_KINDS};
    const json_t *over = json_object_get(o, "over");
    for (int k = 0; k < N_COMM_KINDS; k++)
        if (strcmp(word_of(o, "kind"), comm_kind_name((CommKind)k)) == 0) r.kind = (CommKind)k;
    const int64_t known = r.n_ranks < RECORD_RANKS ? r.n_ranks : RECORD_RANKS;
    if (r.kind == N_COMM_KINDS || r.n_ranks < 1 || (int64_t)json_array_size(over) != known)
        return err_fail(ERR_CHECK, "%s: record %lld has an unknown kind or no group", path,
                        (long long)r.number);
    for (size_t i = 0; i < (size_t)known; i++)
        r.rank[i] = (int32_t)json_integer_value(json_array_get(over, i));
    *out = r;
    return OK;
}

/* Records go to the ring entry that recorder_at computes for their number. */
static Err read_status(const json_t *o, const char *path, Arena *a, RankStatus *s)
{
    const json_t *records = json_object_get(o, "records");
    Recorder *r = &s->recorder;
    *r = (Recorder){.cap = (int64_t)json_array_size(records), .waits = number_of(o, "waits", -1)};
    s->rank = (int)number_of(o, "rank", -1);
    r->total = number_of(o, "transfers", -1);
    read_place(o, &s->watch);
    if (s->rank < 0 || r->total < r->cap || !json_is_array(records))
        return err_fail(ERR_CHECK, "%s: rank %d has %lld records of %lld transfers", path, s->rank,
                        (long long)r->cap, (long long)r->total);
    TRY(ARENA_NEW(a, r->cap ? r->cap : 1, &r->ring));
    for (int64_t i = 0; i < r->cap; i++) {
        const int64_t number = r->total - r->cap + i;
        Record *x = &r->ring[number % r->cap];
        TRY(read_record(json_array_get(records, (size_t)i), path, x));
        if (x->number != number)
            return err_fail(ERR_CHECK, "%s: rank %d: record %lld stands where %lld belongs", path,
                            s->rank, (long long)x->number, (long long)number);
    }
    return OK;
}

static Err read_all(const json_t *o, const char *path, Arena *a, FlightRecorder *out)
{
    const int64_t version = number_of(o, "version", 0);
    const json_t *ranks = json_object_get(o, version == OLD_VERSION ? "seats" : "ranks");
    const size_t n = json_array_size(ranks);
    out->ranks = (int)number_of(o, version == OLD_VERSION ? "ranks" : "world", 0);
    if (strcmp(word_of(o, "sheaf"), "recorder") != 0 || version < OLD_VERSION ||
        version > VERSION || n == 0 || n > MAX_HERE || out->ranks < (int)n)
        return err_fail(ERR_CHECK, "%s: not a recorder's file of version %d or %d", path,
                        OLD_VERSION, VERSION);
    TRY(ARENA_NEW(a, n, &out->status));
    for (size_t i = 0; i < n; i++) {
        TRY(read_status(json_array_get(ranks, i), path, a, &out->status[i]));
        if (out->status[i].rank != out->status[0].rank + (int)i)
            return err_fail(ERR_CHECK, "%s: rank %d after rank %d", path, out->status[i].rank,
                            out->status[0].rank + (int)i - 1);
    }
    out->n_here = (int)n;
    return OK;
}

Err flight_recorder_read(const char *path, Arena *a, FlightRecorder *out, const char **reason)
{
    json_error_t why;
    json_t *o = json_load_file(path, 0, &why);
    *out = (FlightRecorder){0};
    if (!o) return err_fail(ERR_CHECK, "%s:%d: not JSON: %s", path, why.line, why.text);
    Err err = read_all(o, path, a, out);
    if (err == OK) err = arena_string(a, word_of(o, "reason"), reason);
    json_decref(o);
    return err;
}
