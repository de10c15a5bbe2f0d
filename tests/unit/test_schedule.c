/* test_schedule.c -- generators against closed forms, and the player against a second player that
 * implements only the rules. */
#include "support/test_arena.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/math.h"
#include "base/philox.h"
#include "schedule/check/check.h"
#include "schedule/gen/generate.h"
#include "schedule/play.h"
#include "schedule/text_form.h"

/* F, I, W, B of every chunk; sums of them are exact in binary. */
static const double costs[][N_PHASES] = {{1, 1, 1, 2}, {1, 1.25, 0.75, 2}, {3, 4.5, 2.25, 6.75}};

static const double *cost_table(Arena *a, int items, const double *cost)
{
    double *table;
    DO(ARENA_NEW(a, items * N_PHASES, &table));
    for (int i = 0; i < items * N_PHASES; i++) table[i] = cost[i % N_PHASES];
    return table;
}

static void check_closed_form(Arena *a, const char *name, int stages, int micros)
{
    const bool gpipe = strcmp(name, "gpipe") == 0;
    Schedule s;
    Play play;
    DO(schedule_generate(name, &(Pipeline){.stages = stages, .micros = micros}, a, &s));
    DO(schedule_check(&s, a));
    assert_true(schedule_in_order(&s));
    for (int k = 0; k < 3; k++) {
        const PlayCosts c = {.cost = cost_table(a, stages, costs[k])};
        const double both = costs[k][PHASE_F] + costs[k][PHASE_B];
        DO(schedule_play(&s, &c, a, &play));
        assert_true(play.bubble == (stages - 1) * both);
        assert_true(play.makespan == (stages - 1 + micros) * both);
        for (int r = 0; r < stages; r++) {
            assert_true(play.busy[r] == micros * both);
            assert_int_equal(play.peak[r], gpipe ? micros : min_int(stages - r, micros));
        }
    }
    for (int r = 0; r < stages; r++) { /* forwards before the first backward */
        int warm = 0;
        while (s.list[r][warm].phase == PHASE_F) warm++;
        assert_int_equal(warm, gpipe ? micros : min_int(stages - r, micros));
        assert_int_equal(s.n[r], 2 * micros);
    }
}

static void closed_forms_of_gpipe_and_1f1b(void **state)
{
    const size_t mark = arena_mark(*state);
    for (int i = 0; i < 2; i++)
        for (int stages = 1; stages <= 24; stages++)
            for (int micros = 1; micros <= 40; micros++) {
                check_closed_form(*state, i ? "gpipe" : "1f1b", stages, micros);
                arena_rewind(*state, mark);
            }
}

/* Slices cost the same time as small micro-batches. */
static void slices_of_gpipe(void **state)
{
    for (int stages = 1; stages <= 6; stages++)
        for (int micros = 1; micros <= 7; micros++)
            for (int slices = 2; slices <= 5; slices++) {
                const size_t mark = arena_mark(*state);
                Schedule s;
                Play play;
                const Pipeline p = {.stages = stages, .micros = micros, .slices = slices};
                DO(schedule_generate("gpipe", &p, *state, &s));
                DO(schedule_check(&s, *state));
                assert_true(schedule_in_order(&s));
                DO(schedule_play(&s, &(PlayCosts){0}, *state, &play));
                assert_true(play.bubble == (stages - 1) * 3);
                for (int r = 0; r < stages; r++) assert_int_equal(play.peak[r], micros * slices);
                arena_rewind(*state, mark);
            }
}

/* The known end of a cell's backward: its B, or its I. */
static double back_end(const double *end)
{
    return end[PHASE_B] > end[PHASE_I] ? end[PHASE_B] : end[PHASE_I];
}

/* Returns the earliest start of a RUN over chunks by the rules alone, from the ends that are known
 * so far: end[cell][phase]. */
static double by_rules(const Schedule *s, const Action *x, double latency, double (*end)[N_PHASES])
{
    const int64_t cell = schedule_cell(s, x->unit, x->micro, x->slice);
    const int64_t chunk =
        (int64_t)s->micros * s->slices; /* from a cell to that of the next chunk */
    if (x->phase == PHASE_W) return end[cell][PHASE_I];
    const bool back = x->phase != PHASE_F;
    const int from = back ? x->unit + 1 : x->unit - 1, before = back ? x->slice + 1 : x->slice - 1;
    double t = back ? end[cell][PHASE_F] : 0;
    if (from >= 0 && from < s->chunks) {
        const double delay = s->stage_of[from] == s->stage_of[x->unit] ? 0 : latency;
        const double there = back ? back_end(end[cell + chunk]) : end[cell - chunk][PHASE_F];
        if (t < there + delay) t = there + delay;
    }
    if (before >= 0 && before < s->slices) {
        const double there = back ? back_end(end[cell + 1]) : end[cell - 1][PHASE_F];
        if (t < there) t = there;
    }
    return t;
}

/* Returns the makespan by raising times until all rules hold: slow, and unlike the player. */
static double slow_play(const Schedule *s, const PlayCosts *c, Arena *a)
{
    double(*end)[N_PHASES], makespan = 0;
    DO(ARENA_NEW(a, schedule_cells(s), &end)); /* zero: before all rules */
    for (bool changed = true; changed;) {
        changed = false;
        for (int r = 0; r < s->stages; r++) {
            double free = 0;
            for (int i = 0; i < s->n[r]; i++) {
                const Action *x = &s->list[r][i];
                double *mine = &end[schedule_cell(s, x->unit, x->micro, x->slice)][x->phase];
                const double start = by_rules(s, x, c->latency, end);
                const double cost = c->cost[x->unit * N_PHASES + x->phase] * c->slice[x->slice];
                free = (start > free ? start : free) + cost;
                if (*mine != free) changed = true;
                *mine = free;
                if (makespan < free) makespan = free;
            }
        }
    }
    return makespan;
}

/* Returns the time of the forward of a micro-batch's first slice through all chunks and its
 * backward, one after another: a lower bound in every schedule. */
static double once_through(const Schedule *s, const PlayCosts *c, bool split)
{
    double once = 0;
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        const double *cost = &c->cost[chunk * N_PHASES];
        once += (cost[PHASE_F] + cost[split ? PHASE_I : PHASE_B]) * c->slice[0];
        if (chunk > 0 && s->stage_of[chunk] != s->stage_of[chunk - 1]) once += 2 * c->latency;
    }
    return once;
}

static void random_costs_keep_the_bounds(void **state)
{
    const Random random = random_named(7, "costs");
    uint64_t draw = 0;
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int trial = 0; trial < 40 * n; trial++) {
        const size_t mark = arena_mark(*state);
        const int stages = 1 + (int)(random_bits(&random, draw++) % 7);
        const int micros = 1 + (int)(random_bits(&random, draw++) % 9);
        const Pipeline p = {.stages = stages,
                            .micros = micros,
                            .slices = row[trial % n].slices ? 1 + trial / n % 3 : 0};
        Schedule s;
        Play play;
        double *cost, slice[3], busiest = 0, busy = 0;
        DO(schedule_generate(row[trial % n].name, &p, *state, &s));
        DO(ARENA_NEW(*state, s.chunks * N_PHASES, &cost));
        for (int i = 0; i < s.chunks * N_PHASES; i++)
            cost[i] = 0.1 + random_uniform(&random, draw++);
        for (int q = 0; q < 3; q++) slice[q] = 0.5 + random_uniform(&random, draw++);
        const PlayCosts c = {.cost = cost, .slice = slice, .latency = trial % 5 * 0.3};
        DO(schedule_play(&s, &c, *state, &play));
        assert_true(play.makespan == slow_play(&s, &c, *state));

        for (int r = 0; r < stages; r++) {
            if (busiest < play.busy[r]) busiest = play.busy[r];
            busy += play.busy[r];
            for (int i = 1; i < s.n[r]; i++) assert_true(play.start[r][i] >= play.end[r][i - 1]);
        }
        bool split = false;
        for (int i = 0; i < s.n[0]; i++) split |= s.list[0][i].phase == PHASE_I;
        if (strcmp(row[trial % n].name, "dualpipev") != 0) /* has both kinds of backwards */
            assert_true(play.makespan > once_through(&s, &c, split) * (1 - 1e-12));
        assert_true(play.makespan >= busiest);
        assert_true(play.bubble == play.makespan - busiest);
        assert_true(play.idle == 1 - busy / (stages * play.makespan));
        arena_rewind(*state, mark);
    }
}

/* Results of another simulator for the same lists: 8 stages; F, I and W of a whole stage. */
static void bubbles_match_another_simulator(void **state)
{
    const struct {
        const char *name;
        int chunks, micros;
        double F, I, W, latency, bubble, span; /* span -1: unknown */
    } row[] = {
        {"1f1b", 1, 32, 1, 1, 1, 0.3, 41.4, -1},
        {"interleaved", 2, 32, 1, 1, 1, 0.3, 19.5, -1},
        {"interleaved", 4, 32, 1, 1, 1, 0.3, 27.45, -1},
        {"zbh1", 1, 32, 1, 1, 1, 0.3, 15.4, -1},
        {"zbv", 2, 32, 1, 1, 1, 0.3, 13.5, -1},
        {"zbh1", 1, 24, 1, 1.2, 0.8, 0, 9.8, -1},
        {"zbh2", 1, 24, 1, 1.2, 0.8, 0, 7, 4.2},
        {"zbv", 2, 24, 1, 1.2, 0.8, 0, 4.2, 2.8},
        {"1f1b", 1, 24, 1, 1.2, 0.8, 0, 21, -1},
        {"interleaved", 2, 24, 1, 1.2, 0.8, 0, 10.5, -1},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const Pipeline p = {.stages = 8, .micros = row[i].micros, .chunks = row[i].chunks};
        const double v = row[i].chunks, F = row[i].F / v, I = row[i].I / v, W = row[i].W / v;
        Schedule s;
        Play play;
        DO(schedule_generate(row[i].name, &p, *state, &s));
        const PlayCosts c = {
            .cost = cost_table(*state, s.chunks, (const double[N_PHASES]){F, I, W, I + W}),
            .latency = row[i].latency};
        DO(schedule_play(&s, &c, *state, &play));
        assert_true(fabs(play.bubble - row[i].bubble) < 1e-9);
        if (row[i].span >= 0) assert_true(fabs(play.span - row[i].span) < 1e-9);
    }
}

/* If the first stage is busy from the first forward to the last backward, the next step cannot
 * start sooner. ZB-H2 can: all waits of its stages are at the barrier, (P - 1) F. */
static void cost_of_the_barrier(void **state)
{
    static const char *const name[] = {"1f1b", "gpipe", "interleaved", "zbh2"};
    for (int i = 0; i < 4; i++)
        for (int stages = 1; stages <= 6; stages++)
            for (int k = 0; k < 2; k++) {
                const size_t mark = arena_mark(*state);
                const double F = 1 + 2 * k, cost[N_PHASES] = {F, F, F, 2 * F};
                const Pipeline p = {.stages = stages, .micros = 2 * stages + 1};
                Schedule s;
                Play play;
                double period;
                DO(schedule_generate(name[i], &p, *state, &s));
                const PlayCosts c = {.cost = cost_table(*state, s.chunks, cost)};
                DO(schedule_play(&s, &c, *state, &play));
                DO(play_period(&s, &c, *state, &period));
                if (play.makespan - period != (i == 3 ? (stages - 1) * F : 0))
                    fail_msg("%s, %d stages: %g of %g", name[i], stages, period, play.makespan);
                arena_rewind(*state, mark);
            }
    Schedule long_one;
    double period;
    DO(schedule_generate("1f1b", &(Pipeline){.stages = 1, .micros = 8192}, *state, &long_one));
    assert_int_equal(play_period(&long_one, &(PlayCosts){0}, *state, &period), ERR_CONFIG);
}

static void bad_requests_are_named(void **state)
{
    const struct {
        const char *name;
        Pipeline p;
        const char *reason;
    } row[] = {
        {"1f1c",
         {2, 2, 0, 0, 0},
         "parallel.schedule: there is no '1f1c' (did you mean 1f1b?); "
         "allowed are gpipe 1f1b interleaved bfs"},
        {"", {2, 2, 0, 0, 0}, "there is no ''"},
        {"gpipe", {0, 2, 0, 0, 0}, "stages is 0; allowed are 1 to 32767"},
        {"gpipe", {2, 40000, 0, 0, 0}, "micros is 40000; allowed are 1 to 32767"},
        {"gpipe", {2, 2, 0, -1, 0}, "slices is -1; allowed"},
        {"gpipe",
         {2, 2, 2, 0, 0},
         "parallel.chunks is 2; parallel.schedule=gpipe has 1 on each "
         "stage: set parallel.chunks=1"},
        {"1f1b",
         {2, 2, 0, 2, 0},
         "parallel.slices is 2; parallel.schedule=1f1b runs whole "
         "micro-batches: set parallel.slices=1"},
        {"zbv",
         {2, 2, 3, 0, 0},
         "parallel.chunks is 3; parallel.schedule=zbv has 2 on each stage: set parallel.chunks=2"},
        {"izb",
         {2, 2, -1, 0, 0},
         "parallel.schedule=izb has at least 1 on each stage: set parallel.chunks=1"},
        {"interleaved",
         {4, 6, 0, 0, 4},
         "parallel.group is 4; with 4 stages and 6 micro-batches parallel.schedule=interleaved "
         "would have groups of 3; each needs 4, one for each stage: set parallel.group=6"},
        {"interleaved",
         {4, 3, 0, 0, 2},
         "parallel.group is 2; with 4 stages and 3 micro-batches parallel.schedule=interleaved "
         "would have groups of 1; each needs 3, all of them: set parallel.group=3"},
        {"izb", {4, 16, 0, 0, -3}, "parallel.group is -3"},
        {"izb",
         {4, 13, 0, 0, 4},
         "parallel.group is 4; with 4 stages and 13 micro-batches "
         "parallel.schedule=izb would have groups of 3; each needs 4, one for each stage: "
         "set parallel.group=5"},
        {"izb", {20000, 16, 0, 0, 0}, "chunks is 32768; allowed are 1 to 32767"},
        {"1f1b", {2, 2, 0, 0, 2}, "parallel.group is 2; parallel.schedule=1f1b takes no groups"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        Schedule s;
        assert_int_equal(schedule_generate(row[i].name, &row[i].p, *state, &s), ERR_CONFIG);
        if (!strstr(err_text(), row[i].reason))
            fail_msg("wanted: %s\n got: %s", row[i].reason, err_text());
    }
}

/* Tags of different transfers differ, up to the largest counts. */
static void tags_are_unique(void **state)
{
    static const int16_t unit[] = {0, 1, 255, 256, MAX_SCHEDULE}, micro[] = {0, 1, 2, 256, 32767};
    static const int number[] = {0, 1, 255, 256, MAX_TRANSFERS - 1};
    enum { N = 5 * N_PHASES * 5 * 5 * 5 };
    static int64_t tag[N];
    int n = 0;
    (void)state;
    for (int u = 0; u < 5; u++)
        for (int p = 0; p < N_PHASES; p++)
            for (int m = 0; m < 5; m++)
                for (int s = 0; s < 5; s++)
                    for (int k = 0; k < 5; k++) {
                        const Action a = {.phase = (uint8_t)p,
                                          .unit = unit[u],
                                          .micro = micro[m],
                                          .slice = micro[s]};
                        tag[n] = action_tag(&a, number[k]);
                        assert_true(tag[n] >= 0);
                        for (int i = 0; i < n; i++) assert_true(tag[i] != tag[n]);
                        n++;
                    }
    assert_int_equal(n, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_forms_of_gpipe_and_1f1b),
        cmocka_unit_test(slices_of_gpipe),
        cmocka_unit_test(random_costs_keep_the_bounds),
        cmocka_unit_test(bubbles_match_another_simulator),
        cmocka_unit_test(cost_of_the_barrier),
        cmocka_unit_test(bad_requests_are_named),
        cmocka_unit_test(tags_are_unique),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
