/* print.c -- prints the text form of schedules, which text_form.h shows. */
#include "schedule/text_form.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"

enum { LINE_COLUMNS = 100 };

/* ".2"; empty if there is one slice. */
static const char *slice_text(const Action *a, int slices, char *buffer, size_t bytes)
{
    buffer[0] = '\0';
    if (slices > 1) snprintf(buffer, bytes, ".%d", a->slice);
    return buffer;
}

const char *action_text(const Action *a, int slices, char *buffer)
{
    enum { N = ACTION_TEXT_BYTES };
    char slice[12], peer[12] = "host";
    slice_text(a, slices, slice, sizeof slice);
    if (a->peer >= 0) snprintf(peer, sizeof peer, "%d", a->peer);
    const char *word = a->kind < N_ACTION_KINDS ? action_kind_name(a->kind) : "?";
    const char *phase = a->phase < N_PHASES ? phase_name(a->phase) : "?";
    const char arrow = a->kind == A_SEND || a->kind == A_EVICT ? '>' : '<';

    switch (a->kind) {
    case A_RUN:
        snprintf(buffer, N, "%s%d.%d%s", phase, a->unit, a->micro, slice);
        break;
    case A_SEND:
    case A_RECV:
        snprintf(buffer, N, "%s.%s%d.%d%s%c%s", word, phase, a->unit, a->micro, slice, arrow, peer);
        break;
    case A_EVICT:
    case A_FETCH:
        snprintf(buffer, N, "%s.%d.%d%s%c%s", word, a->unit, a->micro, slice, arrow, peer);
        break;
    case A_NORM:
    case A_QUANTIZE:
        snprintf(buffer, N, "%s", word);
        break;
    case A_REDUCE: /* the step's sum is named by its unit alone */
        snprintf(buffer, N, a->micro < 0 ? "%s.%d" : "%s.%d.%d", word, a->unit, a->micro);
        break;
    default:
        snprintf(buffer, N, "%s.%d", word, a->unit);
    }
    return buffer;
}

static void print_stage(Text *t, const Schedule *s, int stage)
{
    char head[24], word[ACTION_TEXT_BYTES];
    const size_t head_columns = (size_t)snprintf(head, sizeof head, "stage %d:", stage);
    size_t column = head_columns;
    text_add(t, "%s", head);
    for (int i = 0; i < s->n[stage]; i++) {
        action_text(&s->list[stage][i], s->slices, word);
        const size_t columns = strlen(word) + 1;
        if (column + columns > LINE_COLUMNS) {
            text_add(t, "\n%s", head);
            column = head_columns;
        }
        text_add(t, " %s", word);
        column += columns;
    }
    text_add(t, "\n");
}

static bool one_unit_each(const Schedule *s)
{
    return schedule_units(s) == s->chunks; /* no chunk is empty, so each has one */
}

Err schedule_print(const Schedule *s, Arena *arena, const char **out)
{
    Text t = text_in(arena);
    text_add(&t, "sheaf schedule %d\n", SCHEDULE_VERSION);
    text_add(&t, "chunks %d micros %d slices %d\n", s->chunks, s->micros, s->slices);
    text_add(&t, "stages");
    for (int chunk = 0; chunk < s->chunks; chunk++) text_add(&t, " %d", s->stage_of[chunk]);
    if (!one_unit_each(s)) {
        text_add(&t, "\nunits");
        for (int chunk = 0; chunk < s->chunks; chunk++)
            text_add(&t, " %d", s->first_unit[chunk + 1] - s->first_unit[chunk]);
    }
    if (s->level == OVER_UNITS && s->first_pack) {
        text_add(&t, "\npacks");
        for (int u = 0; u < schedule_units(s); u++)
            text_add(&t, " %d", s->first_pack[u + 1] - s->first_pack[u]);
    }
    text_add(&t, "\nover %s\n", s->level == OVER_UNITS ? "units" : "chunks");
    for (int stage = 0; stage < s->stages; stage++) print_stage(&t, s, stage);
    return text_done(&t, out);
}
