/* ranges.c -- checks that every action names an existing item on the stage that holds it; all other
 * checks index tables without a test of their own. */
#include "schedule/check/check_parts.h"

/* Slack above the cells that a complete schedule of this length can fill. More cells are a fault,
 * so that a false header allocates no large table. */
static const int64_t spare_cells = (int64_t)1 << 20;

static Err check_shape(const Schedule *s)
{
    TRY(schedule_check_counts(s, ERR_CHECK));
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        if (s->stage_of[chunk] < 0 || s->stage_of[chunk] >= s->stages)
            return err_fail(ERR_CHECK, "schedule: chunk %d is on stage %d; allowed are 0 to %d",
                            chunk, s->stage_of[chunk], s->stages - 1);
        if (s->first_unit[0] != 0 || s->first_unit[chunk + 1] <= s->first_unit[chunk])
            return err_fail(ERR_CHECK,
                            "schedule: chunk %d has units %d to %d; each chunk follows the one "
                            "before and has at least one",
                            chunk, s->first_unit[chunk], s->first_unit[chunk + 1] - 1);
    }
    for (int u = 0; s->level == OVER_UNITS && s->first_pack && u < schedule_units(s); u++)
        if (s->first_pack[0] != 0 || s->first_pack[u + 1] < s->first_pack[u])
            return err_fail(ERR_CHECK,
                            "schedule: unit %d has packs %d to %d; packs are numbered by unit, "
                            "from 0",
                            u, s->first_pack[u], s->first_pack[u + 1] - 1);
    if (!s->row && schedule_cells(s) > schedule_length(s) + spare_cells)
        return err_fail(ERR_CHECK,
                        "schedule: %lld (item, micro-batch, slice) to run, only %lld actions",
                        (long long)schedule_cells(s), (long long)schedule_length(s));
    return OK;
}

static Err check_index(const Schedule *s, int stage, int at, const char *what, int value, int count)
{
    if (value >= 0 && value < count) return OK;
    return schedule_fail(s, stage, at, "%s %d; allowed are 0 to %d", what, value, count - 1);
}

static Err check_cell_index(const Schedule *s, int stage, int at)
{
    const Action *a = &s->list[stage][at];
    TRY(check_index(s, stage, at, "micro-batch", a->micro, s->micros));
    return check_index(s, stage, at, "slice", a->slice, s->slices);
}

static Err check_peer(const Schedule *s, int stage, int at)
{
    const Action *a = &s->list[stage][at];
    const bool host = (a->kind == A_EVICT || a->kind == A_FETCH) && a->peer == -1;
    if (!host) TRY(check_index(s, stage, at, "peer", a->peer, s->stages));
    if (a->peer == stage) return schedule_fail(s, stage, at, "its peer is its own stage");
    return OK;
}

/* Checks the holder: a receive names an item of its peer, every other action one of the stage. */
static Err check_holder(const Schedule *s, int stage, int at)
{
    const Action *a = &s->list[stage][at];
    const bool pack = s->level == OVER_UNITS && s->first_pack && action_names_pack(a);
    const char *what = pack ? "pack" : s->level == OVER_UNITS ? "unit" : "chunk";
    TRY(check_index(s, stage, at, what, a->unit, pack ? schedule_packs(s) : schedule_items(s)));
    const int holder = schedule_stage_of(s, pack ? schedule_pack_unit(s, a->unit) : a->unit);
    if (holder != (a->kind == A_RECV ? a->peer : stage))
        return schedule_fail(s, stage, at, "%s %d is held by stage %d", what, a->unit, holder);
    return OK;
}

static Err check_action(const Schedule *s, int stage, int at)
{
    const Action *a = &s->list[stage][at];
    if (a->kind >= N_ACTION_KINDS || a->phase >= N_PHASES)
        return schedule_fail(s, stage, at, "no such kind or phase: %d, %d", a->kind, a->phase);
    switch (a->kind) {
    case A_NORM:
    case A_QUANTIZE:
        return OK;
    case A_BIND:
        return check_index(s, stage, at, "slot", a->unit, MAX_SCHEDULE);
    case A_SEND:
    case A_RECV:
        if (a->phase == PHASE_W)
            return schedule_fail(s, stage, at, "W makes no value for another stage");
        TRY(check_peer(s, stage, at));
        break;
    case A_EVICT:
    case A_FETCH:
        TRY(check_peer(s, stage, at));
        break;
    case A_REDUCE:
        if (a->micro != -1) TRY(check_index(s, stage, at, "micro-batch", a->micro, s->micros));
        return check_holder(s, stage, at);
    case A_RUN:
        break;
    default: /* actions of a whole pack */
        return check_holder(s, stage, at);
    }
    TRY(check_cell_index(s, stage, at));
    return check_holder(s, stage, at);
}

Err schedule_check_ranges(const Schedule *s)
{
    TRY(check_shape(s));
    for (int stage = 0; stage < s->stages; stage++)
        for (int at = 0; at < s->n[stage]; at++) TRY(check_action(s, stage, at));
    return OK;
}
