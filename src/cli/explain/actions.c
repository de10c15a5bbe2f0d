/* actions.c -- the action list of the rank as text: the text form of a schedule, with repetitions
 * folded, first from unit to unit, then from micro-batch to micro-batch.
 *
 *     rank 0: F0.0 .. F33.0 B33.0 .. B0.0 norm update.0 .. update.33
 *     rank 3: gather.0 gather.1 F0.0 drop.0 (gather.2 F1.0 drop.1) .. (gather.9 F8.0 drop.8) ... */
#include <stdio.h>
#include <string.h>
#include "cli/explain/explain.h"
#include "schedule/text_form.h"

/* More than SHOWN repetitions are printed as the first and the last one. MAX_ACTIONS and MAX_ITEMS
 * limit the length of a repeated group. */
enum { COLUMNS = 100, SHOWN = 8, MAX_ACTIONS = 12, MAX_ITEMS = 160 };

/* `times` groups of `period` actions. From one group to the next all units change by +1, or all by
 * -1. */
typedef struct {
    int at, period, times;
} FoldedItem;

typedef struct {
    const Schedule *s;
    const Action *list;
    FoldedItem *item;
    int n;
} FoldedList;

/* True if b is the action a with unit and micro-batch increased by `unit` and `micro`. */
static bool is_moved(const Action *a, const Action *b, int unit, int micro)
{
    return a->kind == b->kind && a->phase == b->phase && a->slice == b->slice &&
           a->peer == b->peer && b->unit - a->unit == unit &&
           b->micro - a->micro == (a->micro < 0 ? 0 : micro);
}

/* Returns the number of consecutive groups of `period` actions, the first included. */
static int groups_at(const Action *list, int n, int period)
{
    if (n <= period) return 1;
    const int step = list[period].unit - list[0].unit;
    int end = period;
    if (step != 1 && step != -1) return 1;
    while (end < n && is_moved(&list[end - period], &list[end], step, 0)) end++;
    return end / period;
}

static Err fold_units(const Schedule *s, int stage, Arena *temp, FoldedList *out)
{
    const Action *list = s->list[stage];
    FoldedList f = {.s = s, .list = list};
    TRY(ARENA_NEW(temp, s->n[stage] + 1, &f.item));
    for (int i = 0; i < s->n[stage];) {
        FoldedItem item = {i, 1, 1};
        for (int p = 1; p <= MAX_ACTIONS && item.times == 1; p++) {
            const int groups = groups_at(&list[i], s->n[stage] - i, p);
            if (groups > SHOWN) item = (FoldedItem){i, p, groups};
        }
        f.item[f.n++] = item;
        i += item.period * item.times;
    }
    *out = f;
    return OK;
}

/* True if b is the item a, one micro-batch later. */
static bool is_next_micro(const FoldedList *f, const FoldedItem *a, const FoldedItem *b)
{
    if (a->period != b->period || a->times != b->times) return false;
    for (int i = 0; i < a->period; i++)
        if (!is_moved(&f->list[a->at + i], &f->list[b->at + i], 0, 1)) return false;
    return true;
}

/* Returns how often the next *period items repeat, each time for the next micro-batch; 1 unless
 * more than SHOWN times. */
static int micros_at(const FoldedList *f, int from, int *period)
{
    for (int p = 1; p <= MAX_ITEMS; p++) {
        int end = from + p;
        while (end < f->n && is_next_micro(f, &f->item[end - p], &f->item[end])) end++;
        *period = p;
        if ((end - from) / p > SHOWN) return (end - from) / p;
    }
    *period = 1;
    return 1;
}

/* Word wrapping. The last word is buffered, because a closing bracket may still follow it. */
typedef struct {
    Text *t;
    char head[24], word[2 * ACTION_TEXT_BYTES + 16];
    size_t column;
    int open; /* opening brackets before the next word */
} WordWrap;

static void flush(WordWrap *l)
{
    const size_t length = strlen(l->word);
    if (length == 0) return;
    if (l->column + length + 1 > COLUMNS) {
        text_add(l->t, "\n  %s", l->head);
        l->column = strlen(l->head);
    }
    text_add(l->t, " %s", l->word);
    l->column += length + 1;
    l->word[0] = '\0';
}

static void add_word(WordWrap *l, const char *a, const char *to, const char *b)
{
    flush(l);
    snprintf(l->word, sizeof l->word, "%.*s%s%s%s", l->open, "((((", a, to, b);
    l->open = 0;
}

static void close_bracket(WordWrap *l)
{
    strncat(l->word, ")", sizeof l->word - strlen(l->word) - 1);
}

static void add_actions(WordWrap *l, const FoldedList *f, int at, int n)
{
    char text[ACTION_TEXT_BYTES];
    for (int i = 0; i < n; i++)
        add_word(l, action_text(&f->list[at + i], f->s->slices, text), "", "");
}

static void add_item(WordWrap *l, const FoldedList *f, const FoldedItem *item)
{
    char first[ACTION_TEXT_BYTES], last[ACTION_TEXT_BYTES];
    const int end = item->at + item->period * (item->times - 1);
    if (item->times == 1) {
        add_actions(l, f, item->at, 1);
    } else if (item->period == 1) {
        action_text(&f->list[item->at], f->s->slices, first);
        add_word(l, first, " .. ", action_text(&f->list[end], f->s->slices, last));
    } else {
        l->open++;
        add_actions(l, f, item->at, item->period);
        close_bracket(l);
        add_word(l, "..", "", "");
        l->open++;
        add_actions(l, f, end, item->period);
        close_bracket(l);
    }
}

static void add_items(WordWrap *l, const FoldedList *f, int from, int n)
{
    l->open++;
    for (int i = 0; i < n; i++) add_item(l, f, &f->item[from + i]);
    close_bracket(l);
}

static void list_actions(const FoldedList *f, int rank, Text *t)
{
    WordWrap l = {.t = t};
    l.column = (size_t)snprintf(l.head, sizeof l.head, "rank %d:", rank);
    text_add(t, "  %s", l.head);
    for (int i = 0; i < f->n;) {
        int period;
        const int times = micros_at(f, i, &period);
        if (times == 1) {
            add_item(&l, f, &f->item[i++]);
            continue;
        }
        add_items(&l, f, i, period);
        add_word(&l, "..", "", "");
        add_items(&l, f, i + period * (times - 1), period);
        i += period * times;
    }
    flush(&l);
    text_add(t, "\n");
}

Err explain_actions_text(const Facts *f, Arena *temp, Text *t)
{
    const Schedule *s = &f->job->units;
    const Mesh *m = &f->job->mesh;
    const int stage = mesh_part(m, VIEW_DENSE, mesh_axes(m, VIEW_DENSE, "pp"), f->job->linked.rank);
    const char *form;
    FoldedList folded;
    TRY(schedule_print(s, temp, &form));
    text_add(t, "\nACTIONS of the rank, in order: phase, unit . micro-batch; a..b: all from a to "
                "b\n");
    while (*form && strncmp(form, "stage ", 6) != 0) { /* the header, before the lists */
        const size_t length = strcspn(form, "\n");
        text_add(t, "  %.*s\n", (int)length, form);
        form += length + (form[length] == '\n');
    }
    TRY(fold_units(s, stage, temp, &folded));
    list_actions(&folded, f->job->linked.rank, t);
    return OK;
}
