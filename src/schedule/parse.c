/* parse.c -- parses the text form of a schedule, which text_form.h shows.
 *
 * The lists are walked three times: for the number of stages, for the length of each list, and for
 * the actions. No array grows, and a header that claims billions allocates nothing. */
#include "schedule/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "schedule/text_form.h"

typedef struct {
    const char *name, *at, *end, *line_start;
    int line, version;
} ScheduleReader;

typedef struct {
    const char *at;
    int length, line, column; /* length 0: the end of the line */
} ScheduleWord;

static const size_t longest_text = (size_t)1 << 30; /* so that counts of words fit an int */

static Err refuse(const ScheduleReader *r, ScheduleWord w, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static Err refuse(const ScheduleReader *r, ScheduleWord w, const char *format, ...)
{
    char reason[PARSE_REASON_BYTES], shown[MAX_PARSE_WORD + 1];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    const int n = w.length < MAX_PARSE_WORD ? w.length : MAX_PARSE_WORD;
    for (int i = 0; i < n; i++) shown[i] = w.at[i] >= ' ' && w.at[i] <= '~' ? w.at[i] : '?';
    shown[n] = '\0';
    if (n == 0) return err_fail(ERR_CONFIG, "%s:%d:%d: %s", r->name, w.line, w.column, reason);
    return err_fail(ERR_CONFIG, "%s:%d:%d: '%s': %s", r->name, w.line, w.column, shown, reason);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Returns the next word of this line; its length is 0 at the end of the line. */
static ScheduleWord next_word(ScheduleReader *r)
{
    while (r->at < r->end && is_space(*r->at)) r->at++;
    if (r->at < r->end && *r->at == '#')
        while (r->at < r->end && *r->at != '\n') r->at++;
    const char *from = r->at;
    while (r->at < r->end && !is_space(*r->at) && *r->at != '\n' && *r->at != '#') r->at++;
    return (ScheduleWord){from, (int)(r->at - from), r->line, (int)(from - r->line_start) + 1};
}

/* Returns the first word of the next line that has one; its length is 0 at the end of the text. */
static ScheduleWord next_line(ScheduleReader *r)
{
    for (;;) {
        const ScheduleWord w = next_word(r);
        if (w.length > 0 || r->at == r->end) return w;
        r->line_start = ++r->at;
        r->line++;
    }
}

static bool word_is(ScheduleWord w, const char *text)
{
    return (size_t)w.length == strlen(text) && memcmp(w.at, text, (size_t)w.length) == 0;
}

static Err expect(const ScheduleReader *r, ScheduleWord w, const char *text)
{
    if (word_is(w, text)) return OK;
    return refuse(r, w, "expected `%s`", text);
}

static Err expect_end(ScheduleReader *r, const char *after)
{
    const ScheduleWord w = next_word(r);
    return w.length == 0 ? OK : refuse(r, w, "nothing more is allowed after %s", after);
}

int schedule_digits(const char *at, const char *end, int *value)
{
    const char *p = at;
    for (*value = 0; p < end && *p >= '0' && *p <= '9'; p++)
        if (*value <= MAX_SCHEDULE) *value = *value * 10 + (*p - '0');
    if (*value > MAX_SCHEDULE) *value = MAX_SCHEDULE + 1;
    return (int)(p - at);
}

static Err read_number(ScheduleReader *r, const char *what, int low, int high, int *out)
{
    const ScheduleWord w = next_word(r);
    int value;
    if (w.length == 0) return refuse(r, w, "the line ends; expected %s", what);
    const int digits = schedule_digits(w.at, w.at + w.length, &value);
    if (digits != w.length || value < low || value > high)
        return refuse(r, w, "expected %s, %d to %d", what, low, high);
    *out = value;
    return OK;
}

/* "chunks 2 micros 4 slices 1" */
static Err read_counts(ScheduleReader *r, Schedule *s)
{
    const struct {
        const char *name;
        int *count;
    } row[] = {{"chunks", &s->chunks}, {"micros", &s->micros}, {"slices", &s->slices}};
    for (int i = 0; i < 3; i++) {
        TRY(expect(r, i == 0 ? next_line(r) : next_word(r), row[i].name));
        char what[32];
        snprintf(what, sizeof what, "a number of %s", row[i].name);
        TRY(read_number(r, what, 1, MAX_SCHEDULE, row[i].count));
    }
    return expect_end(r, "the number of slices");
}

/* Reads exactly one number per chunk or unit. */
static Err read_numbers(ScheduleReader *r, int n, const char *of, const char *what, int low,
                        int16_t *out)
{
    for (int i = 0, value; i < n; i++) {
        TRY(read_number(r, what, low, MAX_SCHEDULE - 1 + low, &value));
        out[i] = (int16_t)value;
    }
    char after[48];
    snprintf(after, sizeof after, "one number for each of %d %ss", n, of);
    return expect_end(r, after);
}

/* Replaces counts by ends. */
static Err add_counts(const ScheduleReader *r, int n, const char *of, const char *what,
                      int16_t *first)
{
    for (int i = 0, total = 0; i < n; i++) {
        total += first[i + 1]; /* a count until here, an end from here on */
        if (total > MAX_SCHEDULE)
            return err_fail(ERR_CONFIG, "%s:%d: %d %ss in %ss 0 to %d; allowed are %d in all",
                            r->name, r->line, total, what, of, i, MAX_SCHEDULE);
        first[i + 1] = (int16_t)total;
    }
    return OK;
}

/* Reads the rest of the line "packs 1 2 1", and the first word of the next one. */
static Err read_packs(ScheduleReader *r, Arena *arena, Schedule *s, ScheduleWord *next)
{
    const int units = schedule_units(s);
    int16_t *first_pack;
    TRY(ARENA_NEW(arena, units + 1, &first_pack));
    TRY(read_numbers(r, units, "unit", "the packs of each unit", 0, first_pack + 1));
    TRY(add_counts(r, units, "unit", "pack", first_pack));
    s->first_pack = first_pack;
    *next = next_line(r);
    return OK;
}

static Err read_header(ScheduleReader *r, Arena *arena, Schedule *s)
{
    int16_t *stage_of, *first_unit;
    TRY(expect(r, next_line(r), "sheaf"));
    TRY(expect(r, next_word(r), "schedule"));
    TRY(read_number(r, "the version of the form", 1, SCHEDULE_VERSION, &r->version));
    TRY(expect_end(r, "the version"));
    TRY(read_counts(r, s));

    TRY(ARENA_NEW(arena, s->chunks, &stage_of));
    TRY(ARENA_NEW(arena, s->chunks + 1, &first_unit));
    TRY(expect(r, next_line(r), r->version == 1 ? "place" : "stages"));
    TRY(read_numbers(r, s->chunks, "chunk", "the stage of each chunk", 0, stage_of));
    for (int chunk = 0; chunk < s->chunks; chunk++) first_unit[chunk + 1] = 1;
    ScheduleWord w = next_line(r);
    if (word_is(w, "units")) {
        TRY(read_numbers(r, s->chunks, "chunk", "the units of each chunk", 1, first_unit + 1));
        w = next_line(r);
    }
    TRY(add_counts(r, s->chunks, "chunk", "unit", first_unit));
    s->stage_of = stage_of;
    s->first_unit = first_unit;
    if (word_is(w, "packs")) TRY(read_packs(r, arena, s, &w));
    TRY(expect(r, w, "over"));
    w = next_word(r);
    if (!word_is(w, "chunks") && !word_is(w, "units"))
        return refuse(r, w, "expected `chunks` or `units` after `over`");
    s->level = word_is(w, "units") ? OVER_UNITS : OVER_CHUNKS;
    if (s->level == OVER_CHUNKS && s->first_pack)
        return refuse(r, w, "the line `packs` is for lists over units");
    return expect_end(r, "`over`");
}

/* Reads "stage 3:", in version 1 "rank 3:". *stage is -1 at the end of the text. */
static Err next_list(ScheduleReader *r, int *stage)
{
    ScheduleWord w = next_line(r);
    *stage = -1;
    if (w.length == 0) return OK;
    TRY(expect(r, w, r->version == 1 ? "rank" : "stage"));
    w = next_word(r);
    int value;
    const int digits = schedule_digits(w.at, w.at + w.length, &value);
    if (digits == 0 || digits + 1 != w.length || w.at[digits] != ':' || value >= MAX_SCHEDULE)
        return refuse(r, w, "expected a stage and a colon, 0: to %d:", MAX_SCHEDULE - 1);
    *stage = value;
    return OK;
}

static Err count_stages(ScheduleReader r, Schedule *s)
{
    for (int chunk = 0; chunk < s->chunks; chunk++)
        if (s->stages <= s->stage_of[chunk]) s->stages = s->stage_of[chunk] + 1;
    for (int stage = 0; stage >= 0;) {
        TRY(next_list(&r, &stage));
        if (s->stages <= stage) s->stages = stage + 1;
        while (stage >= 0 && next_word(&r).length > 0) continue;
    }
    return OK;
}

static Err read_lists(ScheduleReader r, Schedule *s)
{
    char reason[PARSE_REASON_BYTES];
    for (;;) {
        int stage;
        TRY(next_list(&r, &stage));
        if (stage < 0) return OK;
        for (ScheduleWord w = next_word(&r); w.length > 0; w = next_word(&r)) {
            Action *a = &s->list[stage][s->n[stage]++];
            if (!action_parse(s, w.at, w.length, a, reason)) return refuse(&r, w, "%s", reason);
        }
    }
}

static Err count_words(ScheduleReader r, int *capacity)
{
    for (;;) {
        int stage;
        TRY(next_list(&r, &stage));
        if (stage < 0) return OK;
        while (next_word(&r).length > 0) capacity[stage]++;
    }
}

Err schedule_parse(const char *name, const char *text, size_t length, Arena *arena, Schedule *out)
{
    if (length > longest_text)
        return err_fail(ERR_CONFIG, "%s: %zu bytes; a schedule has at most %zu", name, length,
                        longest_text);
    ScheduleReader r = {name, text, text + length, text, 1, SCHEDULE_VERSION};
    Schedule shape = {0}, s;
    int *capacity;
    TRY(read_header(&r, arena, &shape));
    TRY(count_stages(r, &shape));
    TRY(ARENA_NEW(arena, shape.stages, &capacity));
    TRY(count_words(r, capacity));
    TRY(schedule_init(&shape, capacity, arena, &s));
    TRY(read_lists(r, &s));
    *out = s;
    return OK;
}
