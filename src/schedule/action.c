/* action.c -- lookups over a schedule, comparison, and allocation. */
#include "schedule/action.h"

#include <string.h>

const char *action_kind_name(ActionKind kind)
{
    static const char *const name[N_ACTION_KINDS] = {
        "run",  "send",   "recv",  "gather", "drop",     "reduce",
        "norm", "update", "evict", "fetch",  "quantize", "bind",
    };
    return name[kind];
}

/* The last i below n with first[i] <= value. */
static int find_range(const int16_t *first, int n, int value)
{
    int low = 0, high = n; /* first[low] <= value < first[high] */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int schedule_chunk_of(const Schedule *s, int item)
{
    return s->level == OVER_CHUNKS ? item : find_range(s->first_unit, s->chunks, item);
}

int schedule_pack_unit(const Schedule *s, int pack)
{
    return s->first_pack ? find_range(s->first_pack, schedule_units(s), pack) : pack;
}

int schedule_stage_of(const Schedule *s, int item)
{
    return s->stage_of[schedule_chunk_of(s, item)];
}

bool schedule_has_moves(const Schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->n[stage]; i++)
            if (s->list[stage][i].kind == A_SEND || s->list[stage][i].kind == A_RECV) return true;
    return false;
}

int64_t schedule_length(const Schedule *s)
{
    int64_t length = 0;
    for (int stage = 0; stage < s->stages; stage++) length += s->n[stage];
    return length;
}

static bool action_equal(const Action *a, const Action *b)
{
    return a->kind == b->kind && a->phase == b->phase && a->unit == b->unit &&
           a->micro == b->micro && a->slice == b->slice && a->peer == b->peer;
}

bool schedule_equal(const Schedule *a, const Schedule *b)
{
    if (a->level != b->level || a->stages != b->stages || a->chunks != b->chunks ||
        a->micros != b->micros || a->slices != b->slices)
        return false;
    for (int chunk = 0; chunk < a->chunks; chunk++)
        if (a->stage_of[chunk] != b->stage_of[chunk] ||
            a->first_unit[chunk + 1] != b->first_unit[chunk + 1])
            return false;
    for (int u = 0; a->level == OVER_UNITS && u <= schedule_units(a); u++)
        if (schedule_first_pack(a, u) != schedule_first_pack(b, u)) return false;
    for (int stage = 0; stage < a->stages; stage++) {
        if (a->n[stage] != b->n[stage]) return false;
        for (int i = 0; i < a->n[stage]; i++)
            if (!action_equal(&a->list[stage][i], &b->list[stage][i])) return false;
    }
    return true;
}

Err schedule_check_counts(const Schedule *s, Err code)
{
    const struct {
        const char *name;
        int value;
    } row[] = {
        {"stages", s->stages}, {"chunks", s->chunks}, {"micros", s->micros}, {"slices", s->slices}};
    for (int i = 0; i < 4; i++)
        if (row[i].value < 1 || row[i].value > MAX_SCHEDULE)
            return err_fail(code, "schedule: %s is %d; allowed are 1 to %d", row[i].name,
                            row[i].value, MAX_SCHEDULE);
    return OK;
}

Err schedule_init(const Schedule *shape, const int *capacity, Arena *arena, Schedule *out)
{
    TRY(schedule_check_counts(shape, ERR_CONFIG));
    Schedule s = *shape;
    int16_t *stage_of, *first_unit;
    TRY(ARENA_NEW(arena, s.chunks, &stage_of));
    TRY(ARENA_NEW(arena, s.chunks + 1, &first_unit));
    for (int chunk = 0; chunk < s.chunks; chunk++)
        stage_of[chunk] = shape->stage_of ? shape->stage_of[chunk] : (int16_t)(chunk % s.stages);
    for (int chunk = 0; chunk <= s.chunks; chunk++)
        first_unit[chunk] = shape->first_unit ? shape->first_unit[chunk] : (int16_t)chunk;
    TRY(ARENA_NEW(arena, s.stages, &s.n));
    TRY(ARENA_NEW(arena, s.stages, &s.list));
    for (int stage = 0; capacity && stage < s.stages; stage++)
        TRY(ARENA_NEW(arena, capacity[stage], &s.list[stage]));
    s.stage_of = stage_of;
    s.first_unit = first_unit;
    *out = s;
    return OK;
}
