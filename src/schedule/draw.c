/* draw.c -- schedules drawn as text; draw.h shows the drawings. */
#include "schedule/draw.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/text.h"

enum { LABEL_BYTES = 32 };

typedef struct {
    const Schedule *s;
    bool items; /* a stage holds several items, so every cell names its item */
    bool pairs; /* every stage holds two chunks; cells of the second are in lower case */
    int stage_columns, label_columns;
} Drawing;

/* The number of chunks with lower numbers on the same stage. */
static int chunks_before(const Schedule *s, int chunk)
{
    int n = 0;
    for (int c = 0; c < chunk; c++) n += s->stage_of[c] == s->stage_of[chunk];
    return n;
}

static bool two_chunks_each(const Schedule *s)
{
    if (s->level != OVER_CHUNKS || s->chunks != 2 * s->stages) return false;
    for (int c = 0; c < s->chunks; c++)
        if (chunks_before(s, c) > 1) return false;
    return true;
}

static int label(const Drawing *d, const Action *a, char *out)
{
    char item[12] = "", slice[12] = "";
    if (d->items) snprintf(item, sizeof item, "%d.", a->unit);
    if (d->s->slices > 1) snprintf(slice, sizeof slice, ".%d", a->slice);
    const char phase = phase_name(a->phase)[0];
    const bool small = d->pairs && chunks_before(d->s, a->unit) == 1;
    return snprintf(out, LABEL_BYTES, "%c%s%d%s", small ? tolower(phase) : phase, item, a->micro,
                    slice);
}

static Drawing drawing_of(const Schedule *s)
{
    char text[LABEL_BYTES];
    Drawing d = {.s = s, .stage_columns = snprintf(NULL, 0, "%d", s->stages - 1)};
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0, unit = -1; i < s->n[stage]; i++) {
            const Action *a = &s->list[stage][i];
            if (a->kind != A_RUN) continue;
            if (unit >= 0 && unit != a->unit) d.items = true;
            unit = a->unit;
        }
    d.pairs = two_chunks_each(s);
    if (d.pairs) d.items = false;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->n[stage]; i++) {
            if (s->list[stage][i].kind != A_RUN) continue;
            const int columns = label(&d, &s->list[stage][i], text);
            if (d.label_columns < columns) d.label_columns = columns;
        }
    return d;
}

Err schedule_draw(const Schedule *s, const char *before, Arena *arena, const char **out)
{
    const Drawing d = drawing_of(s);
    char text[LABEL_BYTES];
    Text t = text_in(arena);
    for (int stage = 0; stage < s->stages; stage++) {
        text_add(&t, "%sstage %-*d |", before, d.stage_columns, stage);
        for (int i = 0; i < s->n[stage]; i++) {
            if (s->list[stage][i].kind != A_RUN) continue;
            label(&d, &s->list[stage][i], text);
            text_add(&t, " %s", text);
        }
        text_add(&t, "\n");
    }
    return text_done(&t, out);
}

/* Returns the action of the stage that runs at `time`, searching from *i on, or -1. */
static int running(const Schedule *s, const Play *play, int stage, double time, int *i)
{
    while (*i < s->n[stage] && play->end[stage][*i] <= time) ++*i;
    if (*i == s->n[stage] || s->list[stage][*i].kind != A_RUN) return -1;
    return play->start[stage][*i] <= time ? *i : -1;
}

/* Draws one stage: cells from left to right, each with the RUN in its middle. */
static void draw_stage(Text *t, const Drawing *d, const Play *play, int stage, double unit)
{
    const int cells = (int)(play->makespan / unit + 0.5);
    char text[LABEL_BYTES];
    int spaces = 1; /* pending before the next label, so that no line ends in spaces */
    for (int cell = 0, i = 0, shown = -1; cell < cells; cell++) {
        const int now = running(d->s, play, stage, (cell + 0.5) * unit, &i);
        if (now >= 0 && now != shown)
            label(d, &d->s->list[stage][now], text);
        else
            snprintf(text, sizeof text, now < 0 ? "." : "--");
        shown = now;
        text_add(t, "%*s%s", spaces, "", text);
        spaces = d->label_columns + 1 - (int)strlen(text);
    }
}

Err schedule_draw_time(const Schedule *s, const Play *play, double unit, const char *before,
                       Arena *arena, const char **out)
{
    if (!(unit > 0) || play->makespan / unit > MAX_DRAW_CELLS)
        return err_fail(ERR_CONFIG, "a drawing of %g in cells of %g; allowed are %d cells",
                        play->makespan, unit, MAX_DRAW_CELLS);
    const Drawing d = drawing_of(s);
    Text t = text_in(arena);
    for (int stage = 0; stage < s->stages; stage++) {
        text_add(&t, "%sstage %-*d |", before, d.stage_columns, stage);
        draw_stage(&t, &d, play, stage, unit);
        text_add(&t, "\n");
    }
    return text_done(&t, out);
}
