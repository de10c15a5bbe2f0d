/* expand.c -- expands chunks to units, and adds the end of the step.
 *
 * Each list is expanded by itself: a RUN becomes the RUNs of its units, a SEND or a RECV names the
 * unit at the edge of its chunk. A rank therefore makes the list of its own stage only, and tables
 * over (unit, micro-batch, slice) have rows for the units that this list names:
 *
 *     stages   0 1 | 2 3 | 4 5      units, by stage
 *     rows     4 0   1 2   3 4      stage 1: its own units and their neighbors; then all others
 */
#include "schedule/expand.h"

#include "schedule/moves.h"

static void push(Schedule *out, int stage, Action a) { out->list[stage][out->n[stage]++] = a; }

static int units_of(const Schedule *s, const Action *a)
{
    return s->first_unit[a->unit + 1] - s->first_unit[a->unit];
}

static bool is_move(const Action *a) { return a->kind == A_SEND || a->kind == A_RECV; }

/* Writes a RUN, or an EVICT or a FETCH (their phase is F), for each unit of the chunk. */
static void expand_run(Schedule *out, int stage, const Action *a)
{
    const int low = out->first_unit[a->unit], high = out->first_unit[a->unit + 1] - 1;
    for (int i = 0; i <= high - low; i++) {
        Action of_unit = *a;
        of_unit.unit = (int16_t)(a->phase == PHASE_F ? low + i : high - i);
        push(out, stage, of_unit);
    }
}

/* Names the unit that makes the value: the last of the chunk in F, the first in I and B. */
static void expand_move(Schedule *out, int stage, const Action *a)
{
    Action move = *a;
    move.unit = (int16_t)(a->phase == PHASE_F ? out->first_unit[a->unit + 1] - 1
                                              : out->first_unit[a->unit]);
    push(out, stage, move);
}

/* The first pack of a chunk's units. */
static int first_pack_of(const Schedule *s, int chunk)
{
    return schedule_first_pack(s, s->first_unit[chunk]);
}

static void expand_end(Schedule *out, int stage)
{
    push(out, stage, action_of(A_NORM, 0));
    for (int chunk = 0; chunk < out->chunks; chunk++)
        for (int pack = first_pack_of(out, chunk);
             pack < first_pack_of(out, chunk + 1) && out->stage_of[chunk] == stage; pack++)
            push(out, stage, action_of(A_UPDATE, pack));
}

/* The length of a stage's expanded list. */
static int count_actions(const Schedule *s, ExpandEnd end, int stage)
{
    int n = end == EXPAND_STEP;
    for (int at = 0; at < s->n[stage]; at++)
        n += is_move(&s->list[stage][at]) ? 1 : units_of(s, &s->list[stage][at]);
    for (int chunk = 0; chunk < s->chunks; chunk++)
        if (end == EXPAND_STEP && s->stage_of[chunk] == stage)
            n += first_pack_of(s, chunk + 1) - first_pack_of(s, chunk);
    return n;
}

/* Numbers the rows of a list: the stage's units, the units next to them, and one for all others. */
static Err number_rows(Schedule *s, int stage, Arena *arena)
{
    const int units = schedule_units(s);
    int16_t *row;
    TRY(ARENA_NEW(arena, units, &row));
    for (int u = 0; u < units; u++) row[u] = -1;
    s->rows = 0;
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        if (s->stage_of[chunk] != stage) continue;
        for (int u = s->first_unit[chunk] - 1; u <= s->first_unit[chunk + 1]; u++)
            if (u >= 0 && u < units && row[u] < 0) row[u] = (int16_t)s->rows++;
    }
    for (int u = 0; u < units; u++)
        if (row[u] < 0) row[u] = (int16_t)s->rows;
    s->rows++;
    s->row = row;
    return OK;
}

static Err expand_list(const Schedule *moves, ExpandEnd end, int stage, Arena *arena, Schedule *out)
{
    const int room = count_actions(moves, end, stage);
    TRY(ARENA_NEW(arena, room, &out->list[stage]));
    for (int at = 0; at < moves->n[stage]; at++) {
        const Action *a = &moves->list[stage][at];
        if (is_move(a))
            expand_move(out, stage, a);
        else
            expand_run(out, stage, a);
    }
    if (end == EXPAND_STEP) expand_end(out, stage);
    MUST(out->n[stage] == room, "stage %d: %d of %d", stage, out->n[stage], room);
    return OK;
}

Err schedule_expand_stage(const Schedule *moves, ExpandEnd end, int stage, Arena *arena,
                          Schedule *out)
{
    Schedule shape = *moves, s;
    shape.level = OVER_UNITS;
    TRY(schedule_init(&shape, NULL, arena, &s));
    for (int i = 0; i < s.stages; i++)
        if (stage == ALL_STAGES || stage == i) TRY(expand_list(moves, end, i, arena, &s));
    if (stage != ALL_STAGES && s.stages > 1) TRY(number_rows(&s, stage, arena));
    *out = s;
    return OK;
}

Err schedule_expand(const Schedule *chunks, ExpandEnd end, Arena *arena, Schedule *out)
{
    Schedule moves;
    TRY(schedule_moves(chunks, arena, &moves));
    return schedule_expand_stage(&moves, end, ALL_STAGES, arena, out);
}
