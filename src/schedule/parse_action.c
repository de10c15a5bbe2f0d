/* parse_action.c -- parses one word of a list into an action.
 *
 *     send.F0.1>1
 *     |    || | |
 *     |    || | peer              each part has a scan_ function; the table of forms gives the
 *     |    || micro-batch         order of the parts, one row per kind
 *     |    |chunk or unit
 *     |    phase
 *     kind; a phase alone is a run */
#include "schedule/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/text.h"

/* The rest of the word, from `at` on. */
typedef struct {
    const char *at, *end;
    const Schedule *s;
    char *reason;
} ActionScan;

static bool refuse(ActionScan *scan, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(ActionScan *scan, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(scan->reason, PARSE_REASON_BYTES, format, args);
    va_end(args);
    return false;
}

static bool next_is(const ActionScan *scan, char c)
{
    return scan->at < scan->end && *scan->at == c;
}

static bool scan_char(ActionScan *scan, char c, const char *before)
{
    if (!next_is(scan, c)) return refuse(scan, "expected '%c' before the %s", c, before);
    scan->at++;
    return true;
}

static bool scan_index(ActionScan *scan, const char *what, int count, int16_t *out)
{
    int value;
    const int digits = schedule_digits(scan->at, scan->end, &value);
    if (digits == 0) return refuse(scan, "expected the %s, a number", what);
    if (value >= count)
        return refuse(scan, "%s %.*s is not there; allowed are 0 to %d", what,
                      digits < 12 ? digits : 12, scan->at, count - 1);
    scan->at += digits;
    *out = (int16_t)value;
    return true;
}

static bool scan_unit(ActionScan *scan, Action *a)
{
    const char *what = scan->s->level == OVER_UNITS ? "unit" : "chunk";
    return scan_index(scan, what, schedule_items(scan->s), &a->unit);
}

static bool scan_pack(ActionScan *scan, Action *a)
{
    if (scan->s->level != OVER_UNITS || !scan->s->first_pack) return scan_unit(scan, a);
    return scan_index(scan, "pack", schedule_packs(scan->s), &a->unit);
}

static bool scan_micro(ActionScan *scan, Action *a)
{
    return scan_char(scan, '.', "micro-batch") &&
           scan_index(scan, "micro-batch", scan->s->micros, &a->micro);
}

static bool scan_slice(ActionScan *scan, Action *a)
{
    if (scan->s->slices > 1)
        return scan_char(scan, '.', "slice") &&
               scan_index(scan, "slice", scan->s->slices, &a->slice);
    if (next_is(scan, '.')) return refuse(scan, "a third number is a slice, and slices is 1");
    return true;
}

static bool scan_phase(ActionScan *scan, Action *a)
{
    for (int phase = 0; phase < N_PHASES; phase++)
        if (next_is(scan, phase_name(phase)[0])) {
            if (a->kind != A_RUN && phase == PHASE_W)
                return refuse(scan, "W makes no value for another stage; allowed are F, I and B");
            a->phase = (uint8_t)phase;
            scan->at++;
            return true;
        }
    return refuse(scan, "expected a phase: F, I, W or B");
}

static bool scan_peer(ActionScan *scan, Action *a)
{
    const bool frame = a->kind == A_EVICT || a->kind == A_FETCH;
    const char arrow = a->kind == A_SEND || a->kind == A_EVICT ? '>' : '<';
    if (!scan_char(scan, arrow, frame ? "stage, or `host`" : "stage")) return false;
    if (frame && scan->end - scan->at == 4 && memcmp(scan->at, "host", 4) == 0) {
        scan->at = scan->end;
        return true;
    }
    return scan_index(scan, "stage", scan->s->stages, &a->peer);
}

static bool scan_slot(ActionScan *scan, Action *a)
{
    return scan_index(scan, "slot", MAX_SCHEDULE, &a->unit);
}

static bool scan_maybe_micro(ActionScan *scan, Action *a)
{
    return !next_is(scan, '.') || scan_micro(scan, a);
}

typedef bool FormPart(ActionScan *scan, Action *a);

/* The parts that follow "kind.", in order. */
static FormPart *const form[N_ACTION_KINDS][5] = {
    [A_RUN] = {scan_phase, scan_unit, scan_micro, scan_slice},
    [A_SEND] = {scan_phase, scan_unit, scan_micro, scan_slice, scan_peer},
    [A_RECV] = {scan_phase, scan_unit, scan_micro, scan_slice, scan_peer},
    [A_GATHER] = {scan_pack},
    [A_DROP] = {scan_pack},
    [A_REDUCE] = {scan_pack, scan_maybe_micro},
    [A_NORM] = {NULL},
    [A_QUANTIZE] = {NULL},
    [A_UPDATE] = {scan_pack},
    [A_EVICT] = {scan_unit, scan_micro, scan_slice, scan_peer},
    [A_FETCH] = {scan_unit, scan_micro, scan_slice, scan_peer},
    [A_BIND] = {scan_slot},
};

static bool unknown_kind(ActionScan *scan, int length)
{
    const char *name[N_ACTION_KINDS];
    char word[MAX_PARSE_WORD + 1], list[128] = "";
    size_t used = 0;
    for (int kind = 0; kind < N_ACTION_KINDS; kind++) {
        name[kind] = action_kind_name(kind);
        if (kind == A_RUN) continue; /* never written: a phase alone is a run */
        used += (size_t)snprintf(list + used, sizeof list - used, " %s", name[kind]);
    }
    snprintf(word, sizeof word, "%.*s", length, scan->at);
    const char *near = text_nearest(word, name + 1, N_ACTION_KINDS - 1);
    return refuse(scan, "no such action%s%s%s; allowed are F I W B%s",
                  near ? " (did you mean " : "", near ? near : "", near ? "?)" : "", list);
}

static bool scan_kind(ActionScan *scan, Action *a)
{
    int length = 0;
    while (scan->at + length < scan->end && scan->at[length] >= 'a' && scan->at[length] <= 'z')
        length++;
    *a = action_of(A_RUN, 0);
    if (length == 0) return true; /* a phase, or an unknown character, which scan_phase refuses */
    for (int kind = A_RUN + 1; kind < N_ACTION_KINDS; kind++) {
        const char *name = action_kind_name(kind);
        if (strlen(name) != (size_t)length || memcmp(name, scan->at, (size_t)length) != 0) continue;
        a->kind = (uint8_t)kind;
        scan->at += length;
        return action_is_whole(a) || scan_char(scan, '.', "rest of the action");
    }
    return unknown_kind(scan, length);
}

bool action_parse(const Schedule *s, const char *word, int length, Action *out, char *reason)
{
    ActionScan scan = {word, word + length, s, reason};
    Action a;
    if (length > MAX_PARSE_WORD)
        return refuse(&scan, "%d characters; an action has at most %d", length, MAX_PARSE_WORD);
    if (!scan_kind(&scan, &a)) return false;
    for (int i = 0; i < 5 && form[a.kind][i]; i++)
        if (!form[a.kind][i](&scan, &a)) return false;
    if (scan.at < scan.end)
        return refuse(&scan, "the action ends before its last %d characters",
                      (int)(scan.end - scan.at));
    *out = a;
    return true;
}
