/* test_schedule_expand.c -- expansion of chunks to units: the actions inserted, no deadlock, and no
 * cost in time. */
#include "support/test_arena.h"

#include <stdio.h>
#include <string.h>
#include "base/philox.h"
#include "base/text.h"
#include "schedule/check/check.h"
#include "schedule/expand.h"
#include "schedule/moves.h"
#include "schedule/gen/generate.h"
#include "schedule/play.h"
#include "schedule/text_form.h"

#ifndef SHEAF_SOURCE_DIR
#define SHEAF_SOURCE_DIR "."
#endif

static Schedule generate(Arena *a, const char *name, int stages, int micros, int slices)
{
    Schedule s;
    const Pipeline p = {.stages = stages, .micros = micros, .slices = slices};
    DO(schedule_generate(name, &p, a, &s));
    return s;
}

static Schedule expand(Arena *a, const Schedule *chunks, ExpandEnd end)
{
    Schedule s;
    DO(schedule_expand(chunks, end, a, &s));
    DO(schedule_check(&s, a));
    return s;
}

static Schedule parse(Arena *a, const char *text)
{
    Schedule s;
    DO(schedule_parse("test", text, strlen(text), a, &s));
    return s;
}

static int count_kind(const Schedule *s, int stage, ActionKind kind)
{
    int n = 0;
    for (int i = 0; i < s->n[stage]; i++) n += s->list[stage][i].kind == kind;
    return n;
}

/* The RUNs of the units, folded back into chunks, are the list of the input. */
static void check_runs(const Schedule *chunks, const Schedule *units, int stage)
{
    int at = 0;
    for (int i = 0; i < chunks->n[stage]; i++) {
        const Action *a = &chunks->list[stage][i];
        const int low = chunks->first_unit[a->unit], high = chunks->first_unit[a->unit + 1];
        for (int k = 0; k < high - low; k++, at++) {
            while (units->list[stage][at].kind != A_RUN) at++;
            const Action *b = &units->list[stage][at];
            assert_int_equal(b->unit, a->phase == PHASE_F ? low + k : high - 1 - k);
            assert_true(b->phase == a->phase && b->micro == a->micro && b->slice == a->slice);
        }
    }
}

/* Each stage, expanded by itself, has the list that it has among all stages, and passes the check
 * of one list; without its last RUN it does not. */
static void check_alone(Arena *a, const Schedule *chunks, const Schedule *all)
{
    Schedule moves, one;
    DO(schedule_moves(chunks, a, &moves));
    DO(schedule_check(&moves, a));
    for (int r = 0; r < all->stages && all->stages > 1; r++) {
        DO(schedule_expand_stage(&moves, EXPAND_STEP, r, a, &one));
        for (int k = 0; k < all->stages; k++) assert_int_equal(one.n[k], k == r ? all->n[k] : 0);
        assert_memory_equal(one.list[r], all->list[r], (size_t)one.n[r] * sizeof *one.list[r]);
        DO(schedule_check(&one, a));
        int last = one.n[r] - 1;
        while (one.list[r][last].kind != A_RUN) last--;
        one.list[r][last] = action_of(A_GATHER, one.list[r][last].unit);
        assert_int_equal(schedule_check(&one, a), ERR_CHECK);
    }
}

static void check_expanded(Arena *a, Schedule *chunks, int turn)
{
    int16_t first_unit[32] = {0};
    for (int c = 0; c < chunks->chunks; c++)
        first_unit[c + 1] = (int16_t)(first_unit[c] + 1 + (c * 2 + turn) % 4);
    chunks->first_unit = first_unit;
    const Schedule s = expand(a, chunks, EXPAND_STEP);
    const int values = chunks->micros * chunks->slices;
    check_alone(a, chunks, &s);
    assert_true(schedule_in_order(&s) == schedule_in_order(chunks));
    for (int r = 0; r < s.stages; r++) {
        int sides = 0, units = 0; /* neighbors on other stages: one value in and out of each */
        for (int c = 0; c < s.chunks; c++) {
            if (s.stage_of[c] != r) continue;
            sides +=
                (c > 0 && s.stage_of[c - 1] != r) + (c + 1 < s.chunks && s.stage_of[c + 1] != r);
            units += first_unit[c + 1] - first_unit[c];
        }
        check_runs(chunks, &s, r);
        assert_int_equal(count_kind(&s, r, A_SEND), sides * values);
        assert_int_equal(count_kind(&s, r, A_RECV), sides * values);
        assert_int_equal(count_kind(&s, r, A_NORM), 1);
        assert_int_equal(count_kind(&s, r, A_UPDATE), units);
    }
    for (PlayWait wait = PLAY_WAIT_AT_USE; wait <= PLAY_WAIT_BOTH; wait++) {
        Play play;
        DO(schedule_play(&s, &(PlayCosts){.wait = wait, .latency = 0.25}, a, &play));
    }
}

static void every_shape_expands(void **state)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++)
        for (int stages = 1; stages <= 8; stages++)
            for (int micros = 1; micros <= 18; micros += 1 + micros / 4)
                for (int slices = 1; slices <= (row[i].slices ? 2 : 1); slices++) {
                    const size_t mark = arena_mark(*state);
                    Schedule s = generate(*state, row[i].name, stages, micros, slices);
                    check_expanded(*state, &s, micros);
                    arena_rewind(*state, mark);
                }
}

/* With the assumed costs, receives that wait cost nothing; with any costs, posted receives cost
 * nothing. */
static void moves_cost_no_time(void **state)
{
    const Random random = random_named(3, "costs");
    uint64_t draw = 0;
    for (int trial = 0; trial < 200; trial++) {
        const size_t mark = arena_mark(*state);
        const int stages = 1 + trial % 7, micros = 1 + trial % 11;
        const Schedule chunks = generate(*state, trial % 2 ? "1f1b" : "gpipe", stages, micros, 1);
        const Schedule units = expand(*state, &chunks, EXPAND_RUNS);
        Play before, after;
        double *cost;
        DO(schedule_play(&chunks, &(PlayCosts){0}, *state, &before));
        DO(schedule_play(&units, &(PlayCosts){.wait = PLAY_WAIT_AT_RECV}, *state, &after));
        assert_true(after.makespan == before.makespan);
        DO(ARENA_NEW(*state, stages * N_PHASES, &cost));
        for (int i = 0; i < stages * N_PHASES; i++) cost[i] = 0.1 + random_uniform(&random, draw++);
        DO(schedule_play(&chunks, &(PlayCosts){.cost = cost}, *state, &before));
        DO(schedule_play(&units, &(PlayCosts){.cost = cost}, *state, &after));
        assert_true(after.makespan == before.makespan);
        assert_int_equal(after.peak[0], before.peak[0]);
        arena_rewind(*state, mark);
    }
}

static void assert_text(Arena *a, const Schedule *s, const char *expected)
{
    const char *text;
    DO(schedule_print(s, a, &text));
    assert_string_equal(text, expected);
}

static void one_stage_sends_nothing(void **state)
{
    Schedule s = generate(*state, "1f1b", 1, 2, 1);
    s.first_unit = (const int16_t[]){0, 3};
    const Schedule units = expand(*state, &s, EXPAND_STEP);
    assert_text(
        *state, &units,
        "sheaf schedule 2\nchunks 1 micros 2 slices 1\nstages 0\nunits 3\nover units\n"
        "stage 0: F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 B1.1 B0.1 norm update.0 "
        "update.1 update.2\n");
}

/* The drawing of expand.h. */
static void two_stages_as_drawn(void **state)
{
    Schedule s = generate(*state, "1f1b", 2, 1, 1);
    s.first_unit = (const int16_t[]){0, 2, 3};
    const Schedule units = expand(*state, &s, EXPAND_STEP);
    assert_text(*state, &units,
                "sheaf schedule 2\nchunks 2 micros 1 slices 1\nstages 0 1\nunits 2 1\nover units\n"
                "stage 0: F0.0 F1.0 send.F1.0>1 recv.B2.0<1 B1.0 B0.0 norm update.0 update.1\n"
                "stage 1: recv.F1.0<0 F2.0 B2.0 send.B2.0>0 norm update.2\n");
}

/* A V: chunks 1 and 2 are neighbors on stage 1 and share the value in memory; I is sent, W is
 * not. */
static void neighbors_on_one_stage_share_memory(void **state)
{
    const Schedule s = parse(
        *state, "sheaf schedule 2\nchunks 4 micros 1 slices 1\nstages 0 1 1 0\nover chunks\n"
                "stage 0: F0.0 F3.0 I3.0 W3.0 B0.0\nstage 1: F1.0 F2.0 I2.0 I1.0 W2.0 W1.0\n");
    const Schedule units = expand(*state, &s, EXPAND_RUNS);
    assert_text(
        *state, &units,
        "sheaf schedule 2\nchunks 4 micros 1 slices 1\nstages 0 1 1 0\nover units\n"
        "stage 0: F0.0 send.F0.0>1 recv.F2.0<1 F3.0 I3.0 send.I3.0>1 W3.0 recv.I1.0<1 B0.0\n"
        "stage 1: recv.F0.0<0 F1.0 F2.0 send.F2.0>0 recv.I3.0<0 I2.0 I1.0 send.I1.0>0 W2.0 "
        "W1.0\n");
}

static void invalid_expansions_are_refused(void **state)
{
    Schedule s = generate(*state, "gpipe", 2, 2, 1), out;
    const Schedule units = expand(*state, &s, EXPAND_STEP);
    assert_int_equal(schedule_expand(&units, EXPAND_STEP, *state, &out), ERR_CHECK);
    assert_non_null(strstr(err_text(), "runs over units already"));
    s.n[1]--;
    assert_int_equal(schedule_expand(&s, EXPAND_STEP, *state, &out), ERR_CHECK);
    assert_non_null(strstr(err_text(), "B1.1 is missing"));
    s = parse(*state, "sheaf schedule 2\nchunks 1 micros 1 slices 1\nstages 0\nover chunks\n"
                      "stage 0: gather.0 F0.0 B0.0\n");
    assert_int_equal(schedule_expand(&s, EXPAND_STEP, *state, &out), ERR_CHECK);
    assert_non_null(strstr(err_text(), "stage 0, position 0: a gather over chunks"));
}

/* Lists that were reviewed once and should not change without another review. */
static void lists_match_reviewed_ones(void **state)
{
    const struct {
        const char *file, *name;
        int stages, micros;
        const int16_t *first_unit; /* NULL: not expanded */
    } row[] = {
        {"gpipe_4x6", "gpipe", 4, 6, NULL},
        {"1f1b_4x6", "1f1b", 4, 6, NULL},
        {"1f1b_4x2", "1f1b", 4, 2, NULL},
        {"gpipe_2x3_units", "gpipe", 2, 3, (const int16_t[]){0, 3, 5}},
        {"1f1b_4x6_units", "1f1b", 4, 6, (const int16_t[]){0, 2, 3, 4, 6}},
        {"interleaved_4x6", "interleaved", 4, 6, NULL},
        {"bfs_4x6", "bfs", 4, 6, NULL},
        {"izb_4x6", "izb", 4, 6, NULL},
        {"zbh1_4x6", "zbh1", 4, 6, NULL},
        {"zbh2_4x8", "zbh2", 4, 8, NULL},
        {"zbv_4x9", "zbv", 4, 9, NULL},
        {"zbv_4x2", "zbv", 4, 2, NULL},
        {"dualpipev_4x9", "dualpipev", 4, 9, NULL},
        {"dualpipev_4x2", "dualpipev", 4, 2, NULL},
        {"seq1f1b_4x3", "seq1f1b", 4, 3, NULL},
        {"terapipe_4x2", "terapipe", 4, 2, NULL},
        {"interleaved_2x3_units", "interleaved", 2, 3, (const int16_t[]){0, 2, 3, 4, 6}},
        {"zbv_2x3_units", "zbv", 2, 3, (const int16_t[]){0, 2, 3, 4, 6}},
        {"dualpipev_2x3_units", "dualpipev", 2, 3, (const int16_t[]){0, 2, 3, 4, 6}},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char path[512];
        const char *golden, *text;
        size_t length;
        Schedule s = generate(*state, row[i].name, row[i].stages, row[i].micros, 0);
        if (row[i].first_unit) {
            s.first_unit = row[i].first_unit;
            s = expand(*state, &s, EXPAND_STEP);
        }
        DO(schedule_print(&s, *state, &text));
        snprintf(path, sizeof path, SHEAF_SOURCE_DIR "/tests/golden/schedule/%s.txt", row[i].file);
        DO(text_read_file(path, 1 << 20, *state, &golden, &length));
        if (strcmp(text, golden) != 0) fail_msg("%s differs; now it is:\n%s", path, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_expands),
        cmocka_unit_test(moves_cost_no_time),
        cmocka_unit_test(one_stage_sends_nothing),
        cmocka_unit_test(two_stages_as_drawn),
        cmocka_unit_test(neighbors_on_one_stage_share_memory),
        cmocka_unit_test(invalid_expansions_are_refused),
        cmocka_unit_test(lists_match_reviewed_ones),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
