/* check.c -- the checker: messages, completeness, local order, and the order of parts. */
#include "schedule/check/check_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include "schedule/play.h"
#include "schedule/text_form.h"

Err schedule_fail(const Schedule *s, int stage, int position, const char *format, ...)
{
    char reason[512], text[ACTION_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return err_fail(ERR_CHECK, "schedule: stage %d, position %d, %s: %s", stage, position,
                    action_text(&s->list[stage][position], s->slices, text), reason);
}

Err schedule_missing(const Schedule *s, int stage, Action a, const char *format, ...)
{
    char reason[512], text[ACTION_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return err_fail(ERR_CHECK, "schedule: stage %d: %s is missing: %s", stage,
                    action_text(&a, s->slices, text), reason);
}

/* Records the position of each RUN; a second RUN of a cell is a fault. */
static Err record_runs(Check *c)
{
    const Schedule *s = c->s;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->n[stage]; i++) {
            const Action *a = &s->list[stage][i];
            if (a->kind != A_RUN) continue;
            int *at = &check_cell(c, a)->run[a->phase];
            if (*at >= 0)
                return schedule_fail(s, stage, i, "runs twice, first at position %d", *at);
            *at = i;
        }
    return OK;
}

static Err check_phases(const Check *c, const CheckCell *cell, Action a)
{
    const Schedule *s = c->s;
    const int stage = c->stage_of[a.unit], *run = cell->run;
    if (run[PHASE_F] < 0) return schedule_missing(s, stage, a, "each item runs F once");
    if (run[PHASE_B] >= 0) {
        const int other = run[PHASE_I] >= 0 ? run[PHASE_I] : run[PHASE_W];
        if (other >= 0)
            return schedule_fail(s, stage, other,
                                 "runs in addition to B, at position %d, which is I and W",
                                 run[PHASE_B]);
    } else if (run[PHASE_I] < 0 && run[PHASE_W] < 0) {
        a.phase = PHASE_B;
        return schedule_missing(s, stage, a, "each item runs B once, or I and W");
    } else if (run[PHASE_I] < 0 || run[PHASE_W] < 0) {
        a.phase = run[PHASE_I] < 0 ? PHASE_I : PHASE_W;
        return schedule_missing(s, stage, a, "I and W come together");
    }
    return OK;
}

/* The position of the backward (B, or I). */
static int back_at(const CheckCell *cell)
{
    return cell->run[PHASE_B] >= 0 ? cell->run[PHASE_B] : cell->run[PHASE_I];
}

static Err check_order(const Check *c, const CheckCell *cell, Action a)
{
    const Schedule *s = c->s;
    const int stage = c->stage_of[a.unit], *run = cell->run, back = back_at(cell);
    if (back < run[PHASE_F])
        return schedule_fail(s, stage, back, "comes before its F, at position %d", run[PHASE_F]);
    if (run[PHASE_W] >= 0 && run[PHASE_W] < run[PHASE_I])
        return schedule_fail(s, stage, run[PHASE_W], "comes before its I, at position %d",
                             run[PHASE_I]);
    if (a.slice == 0) return OK;
    const CheckCell *before = cell - 1; /* the slice before */
    if (run[PHASE_F] < before->run[PHASE_F])
        return schedule_fail(s, stage, run[PHASE_F], "comes before F of slice %d, which it reads",
                             a.slice - 1);
    if (back_at(before) < back)
        return schedule_fail(s, stage, back_at(before),
                             "comes before the backward of slice %d, which it reads", a.slice);
    return OK;
}

typedef Err CellRule(const Check *c, const CheckCell *cell, Action a);

static Err check_item(const Check *c, int item, CellRule *rule)
{
    for (int micro = 0; micro < c->s->micros; micro++)
        for (int slice = 0; slice < c->s->slices; slice++) {
            const Action a = action_run(PHASE_F, item, micro, slice);
            TRY(rule(c, check_cell(c, &a), a));
        }
    return OK;
}

static Err check_runs(Check *c)
{
    TRY(record_runs(c));
    CellRule *const rule[] = {check_phases, check_order};
    for (int k = 0; k < 2; k++) /* all complete, then all in order: order reads the slice before */
        for (int item = 0; item < schedule_items(c->s); item++)
            if (schedule_has_list(c->s, c->stage_of[item])) TRY(check_item(c, item, rule[k]));
    return OK;
}

static Err check_init(const Schedule *s, Arena *temp, Check *c)
{
    *c = (Check){.s = s, .temp = temp};
    TRY(ARENA_NEW(temp, schedule_items(s), &c->stage_of));
    TRY(ARENA_NEW(temp, schedule_cells(s), &c->cell));
    for (int item = 0; item < schedule_items(s); item++)
        c->stage_of[item] = (int16_t)schedule_stage_of(s, item);
    for (int64_t i = 0; i < schedule_cells(s); i++)
        c->cell[i] = (CheckCell){{-1, -1, -1, -1}, {-1, -1}, {-1, -1}};
    return OK;
}

static Err check_all(const Schedule *s, Arena *temp)
{
    Check c;
    Play play;
    TRY(schedule_check_ranges(s));
    TRY(check_init(s, temp, &c));
    TRY(check_runs(&c));
    if (s->row) return schedule_check_state(&c);
    TRY(schedule_check_moves(&c));
    TRY(schedule_check_state(&c));
    return schedule_play(s, &(PlayCosts){.wait = PLAY_WAIT_AT_RECV}, temp, &play);
}

Err schedule_check(const Schedule *s, Arena *temp)
{
    const size_t mark = arena_mark(temp);
    const Err err = check_all(s, temp);
    arena_rewind(temp, mark);
    return err;
}

/* Checks that the item's RUNs that add to gradients are in order of micro-batches. In the last item
 * these include its forwards: it holds the head. */
static Err check_item_order(const Schedule *s, int item)
{
    const int stage = schedule_stage_of(s, item);
    int backward = 0, forward = 0; /* the latest micro-batch of each */
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind != A_RUN || a->unit != item) continue;
        const bool head = item == schedule_items(s) - 1 && a->phase == PHASE_F;
        int *latest = head ? &forward : &backward;
        if (!head && !schedule_writes(s, a)) continue;
        if (a->micro < *latest)
            return schedule_fail(s, stage, i,
                                 "adds to the gradients of %s %d after micro-batch %d: the sum "
                                 "is not that of one rank, bit for bit",
                                 s->level == OVER_UNITS ? "unit" : "chunk", item, *latest);
        *latest = a->micro;
    }
    return OK;
}

Err schedule_check_order(const Schedule *s)
{
    for (int item = 0; item < schedule_items(s); item++) TRY(check_item_order(s, item));
    return OK;
}

bool schedule_in_order(const Schedule *s) { return schedule_check_order(s) == OK; }
