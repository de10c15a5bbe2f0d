/* test_schedule_evict.c -- evicted and fetched frames, and split or merged backwards: the passes
 * keep lists valid and have their effect. */
#include "support/test_arena.h"

#include <stdio.h>
#include <string.h>
#include "schedule/check/check.h"
#include "schedule/evict.h"
#include "schedule/expand.h"
#include "schedule/gen/generate.h"
#include "schedule/passes.h"
#include "schedule/play.h"
#include "schedule/text_form.h"

static Schedule generate(Arena *a, const char *name, int stages, int micros)
{
    Schedule s;
    DO(schedule_generate(name, &(Pipeline){.stages = stages, .micros = micros}, a, &s));
    return s;
}

static Schedule evict(Arena *a, const Schedule *s, int keep)
{
    Schedule out;
    DO(schedule_evict(s, keep, a, &out));
    DO(schedule_check(&out, a));
    return out;
}

static Play play(Arena *a, const Schedule *s)
{
    Play p;
    DO(schedule_play(s, &(PlayCosts){0}, a, &p));
    return p;
}

static int count_kind(const Schedule *s, int stage, ActionKind kind)
{
    int n = 0;
    for (int i = 0; i < s->n[stage]; i++) n += s->list[stage][i].kind == kind;
    return n;
}

/* The RUNs are those of the input; every evicted frame was fetched. */
static void check_same_runs(const Schedule *before, const Schedule *after)
{
    for (int r = 0; r < before->stages; r++) {
        int at = 0;
        for (int i = 0; i < after->n[r]; i++)
            if (after->list[r][i].kind == A_RUN)
                assert_memory_equal(&after->list[r][i], &before->list[r][at++], sizeof(Action));
        assert_int_equal(at, before->n[r]);
        assert_int_equal(count_kind(after, r, A_EVICT), count_kind(after, r, A_FETCH));
    }
}

static void no_stage_of_1f1b_holds_more_than_half(void **state)
{
    for (int P = 1; P <= 24; P++)
        for (int m = 1; m <= 50; m += 1 + m / 6) {
            const size_t mark = arena_mark(*state);
            const Schedule s = generate(*state, "1f1b", P, m), out = evict(*state, &s, 0);
            const int keep = (P + 3) / 2; /* half of P+2, rounded up */
            const Play before = play(*state, &s), after = play(*state, &out);
            check_same_runs(&s, &out);
            assert_true(after.makespan == before.makespan);
            for (int r = 0; r < P; r++) {
                assert_true(after.peak[r] <= keep + 1);
                if (P - r <= keep) assert_int_equal(count_kind(&out, r, A_EVICT), 0);
                for (int i = 0; i < out.n[r]; i++)
                    if (out.list[r][i].kind == A_EVICT)
                        assert_int_equal(out.list[r][i].peer, P - 1 - r);
            }
            if (P >= 6 && m >= 2 * P) /* otherwise eviction would gain nothing */
                assert_true(before.peak[0] == P && after.peak[0] == keep + 1 && keep + 1 < P);
            arena_rewind(*state, mark);
        }
}

static void every_schedule_respects_keep(void **state)
{
    int n, to_host = 0, to_peer = 0;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++)
        for (int P = 1; P <= 6; P++)
            for (int keep = 0; keep <= 7; keep++) {
                const size_t mark = arena_mark(*state);
                const Schedule s = generate(*state, row[i].name, P, 2 * P + 1);
                const Schedule out = evict(*state, &s, keep);
                const Play before = play(*state, &s), after = play(*state, &out);
                Schedule units;
                check_same_runs(&s, &out);
                for (int r = 0; r < P; r++) {
                    if (keep > 0 && after.peak[r] > keep + 1 && after.peak[r] > before.peak[r])
                        fail_msg("%s P=%d keep=%d: stage %d holds %d", row[i].name, P, keep, r,
                                 after.peak[r]);
                    if (keep > 0 && count_kind(&out, r, A_EVICT) > 0)
                        assert_true(after.peak[r] <= keep + 1);
                    for (int k = 0; k < out.n[r]; k++)
                        if (out.list[r][k].kind == A_EVICT)
                            ++*(out.list[r][k].peer < 0 ? &to_host : &to_peer);
                }
                DO(schedule_expand(&out, EXPAND_STEP, *state, &units));
                DO(schedule_check(&units, *state));
                arena_rewind(*state, mark);
            }
    assert_true(to_host > 100 && to_peer > 100);
}

/* Checks that the schedule's text contains the list. */
static void assert_list(Arena *a, const Schedule *s, const char *list)
{
    const char *text;
    DO(schedule_print(s, a, &text));
    if (!strstr(text, list)) fail_msg("no\n%sin\n%s", list, text);
}

/* The drawing of evict.h; and eviction to the host, from a stage that has no partner. */
static void lists_match_drawings(void **state)
{
    const Schedule s = generate(*state, "1f1b", 4, 8), out = evict(*state, &s, 0);
    const char first[] = "stage 0: F0.0 F0.1 F0.2 F0.3 evict.0.3>3 B0.0 F0.4 B0.1 F0.5 B0.2 "
                         "fetch.0.3<3 F0.6 evict.0.6>3 B0.3\n"
                         "stage 0: F0.7 B0.4 fetch.0.6<3 B0.5 B0.6 B0.7\n"
                         "stage 1: F1.0 F1.1 F1.2 B1.0 F1.3";
    assert_list(*state, &out, first);
    const Schedule one = generate(*state, "gpipe", 1, 4), kept = evict(*state, &one, 2);
    assert_list(*state, &kept,
                "stage 0: F0.0 F0.1 F0.2 evict.0.2>host F0.3 evict.0.3>host B0.0 fetch.0.2<host "
                "B0.1 fetch.0.3<host\nstage 0: B0.2 B0.3\n");
}

/* A frame that is used after the next RUN is not evicted for it. */
static void nothing_is_evicted_to_return_at_once(void **state)
{
    const Schedule s = generate(*state, "gpipe", 1, 2), kept = evict(*state, &s, 1);
    assert_true(schedule_equal(&s, &kept));
    assert_int_equal(play(*state, &kept).peak[0], 2);
}

/* Units of a chunk are evicted and fetched together. */
static void units_move_with_their_chunk(void **state)
{
    Schedule one = generate(*state, "gpipe", 1, 3), units;
    one.first_unit = (const int16_t[]){0, 2};
    const Schedule kept = evict(*state, &one, 1);
    DO(schedule_expand(&kept, EXPAND_RUNS, *state, &units));
    assert_list(*state, &units,
                "stage 0: F0.0 F1.0 F0.1 F1.1 evict.0.1>host evict.1.1>host F0.2 F1.2 "
                "evict.0.2>host evict.1.2>host\nstage 0: fetch.0.1<host fetch.1.1<host B1.0 B0.0 "
                "fetch.0.2<host fetch.1.2<host B1.1 B0.1 B1.2 B0.2\n");
}

static void invalid_evictions_are_refused(void **state)
{
    Schedule s = generate(*state, "1f1b", 2, 3), out;
    assert_int_equal(schedule_evict(&s, -1, *state, &out), ERR_CONFIG);
    assert_string_equal(err_text(), "parallel.evict keeps -1 frames; allowed are 1 and more");
    DO(schedule_expand(&s, EXPAND_RUNS, *state, &s));
    assert_int_equal(schedule_evict(&s, 1, *state, &out), ERR_CHECK);
    assert_non_null(
        strstr(err_text(), "stage 0, position 0: a run over units; frames are evicted"));
}

static void split_and_merge(void **state)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++) {
        const Schedule s = generate(*state, row[i].name, 3, 7);
        Schedule split, merged, resplit;
        DO(schedule_split(&s, *state, &split));
        DO(schedule_check(&split, *state));
        DO(schedule_merge(&split, *state, &merged));
        DO(schedule_check(&merged, *state));
        DO(schedule_split(&merged, *state, &resplit));
        assert_true(schedule_equal(&split, &resplit));
        for (int r = 0; r < 3; r++) {
            int left = 0, backwards = 0;
            assert_int_equal(split.n[r], 3 * 7 * s.chunks / 3 * s.slices);
            for (int k = 0; k < split.n[r]; k++) assert_true(split.list[r][k].phase != PHASE_B);
            for (int k = 0; k + 1 < merged.n[r]; k++) {
                const Action *a = &merged.list[r][k];
                backwards += a->phase == PHASE_B;
                left += a[0].phase == PHASE_I && a[1].phase == PHASE_W && a[0].unit == a[1].unit &&
                        a[0].micro == a[1].micro && a[0].slice == a[1].slice;
            }
            assert_int_equal(left, 0);
            if (r == 0) assert_true(backwards > 0);
        }
        if (strchr(row[i].name, 'z')) continue; /* those are split already and merge in part */
        if (strcmp(row[i].name, "dualpipev") != 0) assert_true(schedule_equal(&s, &merged));
    }
    Schedule units = generate(*state, "1f1b", 2, 3), out;
    DO(schedule_expand(&units, EXPAND_RUNS, *state, &units));
    assert_int_equal(schedule_split(&units, *state, &out), ERR_CHECK);
    assert_non_null(strstr(err_text(), "this one has sends"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_stage_of_1f1b_holds_more_than_half),
        cmocka_unit_test(every_schedule_respects_keep),
        cmocka_unit_test(lists_match_drawings),
        cmocka_unit_test(nothing_is_evicted_to_return_at_once),
        cmocka_unit_test(units_move_with_their_chunk),
        cmocka_unit_test(invalid_evictions_are_refused),
        cmocka_unit_test(split_and_merge),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
