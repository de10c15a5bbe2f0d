/* passes.c -- splitting and merging of backwards; passes.h shows before and after. */
#include "schedule/passes.h"

static bool is_run(const Action *a, Phase phase) { return a->kind == A_RUN && a->phase == phase; }

static int split_list(const Action *list, int n, Action *out)
{
    int made = 0;
    for (int i = 0; i < n; i++) {
        out[made] = list[i];
        if (is_run(&list[i], PHASE_B)) {
            out[made++].phase = PHASE_I;
            out[made] = list[i];
            out[made].phase = PHASE_W;
        }
        made++;
    }
    return made;
}

static bool same_cell(const Action *a, const Action *b)
{
    return a->unit == b->unit && a->micro == b->micro && a->slice == b->slice;
}

static int merge_list(const Action *list, int n, Action *out)
{
    int made = 0;
    for (int i = 0; i < n; i++) {
        out[made] = list[i];
        if (i + 1 < n && is_run(&list[i], PHASE_I) && is_run(&list[i + 1], PHASE_W) &&
            same_cell(&list[i], &list[i + 1])) {
            out[made].phase = PHASE_B;
            i++;
        }
        made++;
    }
    return made;
}

static Err each_list(const Schedule *s, int (*pass)(const Action *, int, Action *), Arena *arena,
                     Schedule *out)
{
    Schedule result = *s;
    if (schedule_has_moves(s))
        return err_fail(ERR_CHECK,
                        "schedule: backwards are split or merged before sends are added, "
                        "since a send names the phase; this one has sends");
    TRY(ARENA_NEW(arena, s->stages, &result.n));
    TRY(ARENA_NEW(arena, s->stages, &result.list));
    for (int stage = 0; stage < s->stages; stage++) {
        TRY(ARENA_NEW(arena, 2 * (int64_t)s->n[stage], &result.list[stage]));
        result.n[stage] = pass(s->list[stage], s->n[stage], result.list[stage]);
    }
    *out = result;
    return OK;
}

Err schedule_split(const Schedule *s, Arena *arena, Schedule *out)
{
    return each_list(s, split_list, arena, out);
}

Err schedule_merge(const Schedule *s, Arena *arena, Schedule *out)
{
    return each_list(s, merge_list, arena, out);
}
