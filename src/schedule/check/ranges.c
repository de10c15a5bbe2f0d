/* ranges.c -- every action names what exists, on the rank that holds it; after this the
 * others index without asking. */
#include "schedule/check/check_parts.h"

/* More cells than a complete schedule of this length could fill, by far: no table for them. */
static const int64_t spare_cells = (int64_t)1 << 20;

static Err check_shape(const Schedule *s)
{
    TRY(schedule_check_counts(s, ERR_CHECK));
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        if (s->rank_of[chunk] < 0 || s->rank_of[chunk] >= s->ranks)
            return err_fail(ERR_CHECK, "schedule: chunk %d is on rank %d; allowed are 0 to %d",
                            chunk, s->rank_of[chunk], s->ranks - 1);
        if (s->first_unit[0] != 0 || s->first_unit[chunk + 1] <= s->first_unit[chunk])
            return err_fail(ERR_CHECK,
                            "schedule: chunk %d has units %d to %d; each chunk follows the one "
                            "before and has at least one",
                            chunk, s->first_unit[chunk], s->first_unit[chunk + 1] - 1);
    }
    if (schedule_cells(s) > schedule_length(s) + spare_cells)
        return err_fail(ERR_CHECK, "schedule: %lld pieces to run, only %lld actions",
                        (long long)schedule_cells(s), (long long)schedule_length(s));
    return OK;
}

static Err check_index(const Schedule *s, int rank, int at, const char *what, int value, int count)
{
    if (value >= 0 && value < count) return OK;
    return schedule_fail(s, rank, at, "%s %d; allowed are 0 to %d", what, value, count - 1);
}

static Err check_cell_index(const Schedule *s, int rank, int at)
{
    const Action *a = &s->list[rank][at];
    TRY(check_index(s, rank, at, "micro-batch", a->micro, s->micros));
    return check_index(s, rank, at, "slice", a->slice, s->slices);
}

static Err check_peer(const Schedule *s, int rank, int at)
{
    const Action *a = &s->list[rank][at];
    const bool host = (a->kind == A_EVICT || a->kind == A_FETCH) && a->peer == -1;
    if (!host) TRY(check_index(s, rank, at, "peer", a->peer, s->ranks));
    if (a->peer == rank) return schedule_fail(s, rank, at, "its peer is its own rank");
    return OK;
}

/* A receive names what its peer holds; everything else what the rank itself holds. */
static Err check_holder(const Schedule *s, int rank, int at)
{
    const Action *a = &s->list[rank][at];
    const char *what = s->grain == OVER_UNITS ? "unit" : "chunk";
    TRY(check_index(s, rank, at, what, a->unit, schedule_items(s)));
    const int holder = schedule_rank_of(s, a->unit);
    if (holder != (a->kind == A_RECV ? a->peer : rank))
        return schedule_fail(s, rank, at, "%s %d is held by rank %d", what, a->unit, holder);
    return OK;
}

static Err check_action(const Schedule *s, int rank, int at)
{
    const Action *a = &s->list[rank][at];
    if (a->kind >= N_ACTION_KINDS || a->phase >= N_PHASES)
        return schedule_fail(s, rank, at, "no such kind or phase: %d, %d", a->kind, a->phase);
    switch (a->kind) {
    case A_NORM:
        return OK;
    case A_BIND:
        return check_index(s, rank, at, "slot", a->unit, MAX_SCHEDULE);
    case A_SEND:
    case A_RECV:
        if (a->phase == PHASE_W)
            return schedule_fail(s, rank, at, "W makes no value for another rank");
        TRY(check_peer(s, rank, at));
        break;
    case A_EVICT:
    case A_FETCH:
        TRY(check_peer(s, rank, at));
        break;
    case A_REDUCE:
        if (a->micro != -1) TRY(check_index(s, rank, at, "micro-batch", a->micro, s->micros));
        return check_holder(s, rank, at);
    case A_RUN:
        break;
    default: /* of a whole unit */
        return check_holder(s, rank, at);
    }
    TRY(check_cell_index(s, rank, at));
    return check_holder(s, rank, at);
}

Err schedule_check_ranges(const Schedule *s)
{
    TRY(check_shape(s));
    for (int rank = 0; rank < s->ranks; rank++)
        for (int at = 0; at < s->n[rank]; at++) TRY(check_action(s, rank, at));
    return OK;
}
