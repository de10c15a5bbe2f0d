/* explain_actions.c -- the list of the rank, for people: as the text form of a schedule has it, but with
 * long runs of units folded.
 *
 *     rank 0: F0.0 .. F33.0 B33.0 .. B0.0 F0.1 .. F33.1 B33.1 .. B0.1 norm update.0 .. update.33 */
#include <stdio.h>
#include <string.h>
#include "cli/explain.h"
#include "schedule/textform.h"

/* A run of more actions than SHOWN is told by its ends. */
enum { COLUMNS = 100, SHOWN = 8 };

/* How many from the first on are the same but for the unit, which goes up, or down, by one. */
static int run_length(const Action *list, int n)
{
    const int step = n > 1 ? list[1].unit - list[0].unit : 0;
    int length = 1;
    while ((step == 1 || step == -1) && length < n) {
        const Action *a = &list[length - 1], *b = &list[length];
        if (b->unit - a->unit != step || b->kind != a->kind || b->phase != a->phase ||
            b->micro != a->micro || b->slice != a->slice || b->peer != a->peer)
            break;
        length++;
    }
    return length;
}

static void list_rank(const Schedule *s, int rank, Text *t)
{
    char head[24], first[ACTION_TEXT_BYTES], last[ACTION_TEXT_BYTES];
    char word[sizeof first + sizeof last + 4];
    const size_t margin = (size_t)snprintf(head, sizeof head, "rank %d:", rank);
    size_t column = margin;
    text_add(t, "  %s", head);
    for (int i = 0; i < s->n[rank];) {
        const Action *a = &s->list[rank][i];
        const int run = run_length(a, s->n[rank] - i), taken = run > SHOWN ? run : 1;
        action_text(a, s->slices, first);
        action_text(&a[taken - 1], s->slices, last);
        snprintf(word, sizeof word, "%s%s%s", first, taken > 1 ? " .. " : "",
                 taken > 1 ? last : "");
        if (column + strlen(word) + 1 > COLUMNS) {
            text_add(t, "\n  %s", head);
            column = margin;
        }
        text_add(t, " %s", word);
        column += strlen(word) + 1;
        i += taken;
    }
    text_add(t, "\n");
}

Err explain_actions_text(const Facts *f, Arena *temp, Text *t)
{
    const Schedule *s = &f->job->units;
    const char *form;
    TRY(schedule_print(s, temp, &form));
    text_add(t, "\nACTIONS of the rank, in order: phase, unit . micro-batch\n");
    while (*form && strncmp(form, "rank ", 5) != 0) { /* what stands before the lists */
        const size_t length = strcspn(form, "\n");
        text_add(t, "  %.*s\n", (int)length, form);
        form += length + (form[length] == '\n');
    }
    for (int rank = 0; rank < s->ranks; rank++) list_rank(s, rank, t);
    return OK;
}
