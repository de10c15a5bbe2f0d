/* test_schedule_cuts.c -- units split into chunks and sequences cut into slices, against all
 * possible splits. */
#include "support/test_arena.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/philox.h"
#include "schedule/check/check.h"
#include "schedule/chunks.h"
#include "schedule/gen/generate.h"
#include "schedule/play.h"
#include "schedule/slices.h"

static const char *chunk_sizes(Arena *a, const ChunkRequest *r)
{
    static char text[256];
    const int16_t *first;
    int used = 0;
    if (schedule_chunks(r, a, &first) != OK) return err_text();
    assert_int_equal(first[0], 0);
    assert_int_equal(first[r->chunks], r->units);
    for (int c = 0; c < r->chunks; c++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%d", c ? "," : "",
                         first[c + 1] - first[c]);
    return text;
}

/* Units: the embedding, the layers, the head. */
static void chunks_match_the_request(void **state)
{
    const double head_heavy[] = {0.5, 2, 2, 2, 2, 2, 2, 2, 5};
    const double flat[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct {
        ChunkRequest r;
        const char *sizes;
    } row[] = {
        {{"even", 9, 3, NULL}, "4,2,3"}, /* 7 layers: 3, 2, 2 */
        {{"even", 9, 1, NULL}, "9"},
        {{"even", 10, 4, NULL}, "3,2,2,3"},
        {{"even", 14, 5, NULL}, "4,3,2,2,3"},
        {{"even", 9, 9, NULL}, "1,1,1,1,1,1,1,1,1"}, /* the embedding alone, the head alone */
        {{"even", 4, 3, NULL}, "2,1,1"},
        {{"even", 3, 2, NULL}, "2,1"},
        {{"cost", 9, 3, head_heavy}, "4,3,2"},
        {{"cost", 9, 3, flat}, "3,3,3"},
        {{"cost", 9, 4, flat}, "3,2,2,2"},
        {{"3,2,2", 9, 3, NULL}, "4,2,3"},
        {{"3,3,3", 9, 3, NULL}, "3,3,3"}, /* units */
        {{"0,7,0", 9, 3, NULL}, "1,7,1"},
        {{"7", 9, 1, NULL}, "9"},
        {{"3,2,1", 9, 3, NULL},
         "parallel.split is '3,2,1': 6 layers; the model has 7 (9 units, with embedding and head)"},
        {{"3,2", 9, 3, NULL}, "parallel.split is '3,2': 2 chunks; there are 3"},
        {{"4,0,3", 9, 3, NULL}, "parallel.split is '4,0,3': chunk 1 would be empty"},
        {{"evn", 9, 3, NULL},
         "parallel.split is 'evn'; allowed are even, cost, or layers in each chunk, as 3,2,2"},
        {{"3,2,", 9, 3, NULL},
         "parallel.split is '3,2,'; allowed are even, cost, or layers in "
         "each chunk, as 3,2,2"},
        {{"99999999999", 9, 1, NULL},
         "parallel.split is '99999999999'; allowed are even, cost, or "
         "layers in each chunk, as 3,2,2"},
        {{"even", 9, 10, NULL},
         "10 chunks (mesh.pp times parallel.chunks) for 9 units (embedding, "
         "7 layers, head); allowed are 1 to 9"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        assert_string_equal(chunk_sizes(*state, &row[i].r), row[i].sizes);
}

/* The chunk that takes longest and the sum of squares of every split, by trying them all. */
static void try_all(const ChunkDeal *d, double *least, double *square)
{
    for (int pass = 0; pass < 2; pass++)
        for (unsigned cuts = 0; cuts < 1u << (d->units - 1); cuts++) {
            if (__builtin_popcount(cuts) != d->chunks - 1) continue;
            double most = 0, squares = 0, sum = 0;
            bool allowed = true;
            for (int u = 0, c = 0, n = 0; u < d->units; u++) {
                sum += d->cost[u];
                n++;
                if (u + 1 < d->units && !(cuts >> u & 1)) continue;
                allowed = allowed && (!d->most || n <= d->most[c]);
                if (d->speed) sum /= d->speed[c];
                if (most < sum) most = sum;
                squares += sum * sum;
                sum = n = 0;
                c++;
            }
            if (!allowed) continue;
            if (pass == 0 && most < *least) *least = most;
            if (pass == 1 && most <= *least && squares < *square) *square = squares;
        }
}

/* Compares a split with the best of all. Costs and speeds are exact in binary. */
static void check_best(const ChunkDeal *d, const int16_t *first)
{
    double least = 1e300, square = 1e300, most = 0, squares = 0;
    try_all(d, &least, &square);
    for (int c = 0; c < d->chunks; c++) {
        double sum = 0;
        for (int u = first[c]; u < first[c + 1]; u++) sum += d->cost[u];
        assert_true(first[c + 1] > first[c]);
        assert_true(!d->most || first[c + 1] - first[c] <= d->most[c]);
        if (d->speed) sum /= d->speed[c];
        if (most < sum) most = sum;
        squares += sum * sum;
    }
    assert_int_equal(first[d->chunks], d->units);
    assert_true(most == least && squares == square);
}

static void chunks_by_cost_are_the_best(void **state)
{
    const Random random = random_named(5, "units");
    uint64_t draw = 0;
    for (int trial = 0; trial < 300; trial++) {
        const int units = 3 + trial % 9, chunks = 1 + trial % 5;
        double cost[12];
        const int16_t *first;
        if (chunks > units) continue;
        for (int u = 0; u < units; u++) cost[u] = (double)(random_bits(&random, draw++) % 8);
        DO(schedule_chunks(&(ChunkRequest){"cost", units, chunks, cost}, *state, &first));
        check_best(&(ChunkDeal){.units = units, .chunks = chunks, .cost = cost}, first);
    }
}

/* Chunks with speeds and limits, some of which leave no split. */
static void dealt_chunks_are_the_best(void **state)
{
    const Random random = random_named(8, "deal");
    uint64_t draw = 0;
    int none = 0, some = 0;
    for (int trial = 0; trial < 600; trial++) {
        ChunkDeal d = {.units = 3 + trial % 9, .chunks = 1 + trial % 5};
        double cost[12], speed[5];
        int16_t most[5];
        const int16_t *first;
        bool found;
        int room = 0;
        if (d.chunks > d.units) continue;
        for (int u = 0; u < d.units; u++) cost[u] = (double)(random_bits(&random, draw++) % 8);
        for (int c = 0; c < d.chunks; c++) {
            speed[c] = 1 / (double)(1 << random_bits(&random, draw++) % 4);
            most[c] = (int16_t)(1 + random_bits(&random, draw++) % (trial % 2 ? 4 : 9));
            room += most[c];
        }
        d.cost = cost;
        d.speed = trial % 7 ? speed : NULL;
        d.most = trial % 3 ? most : NULL;
        DO(schedule_deal(&d, *state, &first, &found));
        assert_true(found == (!d.most || room >= d.units));
        if (found) check_best(&d, first);
        *(found ? &some : &none) += 1;
    }
    assert_true(some > 200 && none > 50);
}

static SlicePlan equal_slices(Arena *a, SliceCost c, int64_t tokens, int64_t multiple, int slices)
{
    const SliceRequest r = {tokens, multiple, slices, 4, 2};
    SlicePlan p;
    DO(slices_equal(&c, &r, a, &p));
    return p;
}

/* The drawing of slices.h, and attention that costs nothing. */
static void equal_slices_by_hand(void **state)
{
    const int64_t *cut = equal_slices(*state, (SliceCost){.pair = 1}, 16, 1, 3).cut;
    assert_true(cut[0] == 0 && cut[1] == 9 && cut[2] == 13 && cut[3] == 16);
    cut = equal_slices(*state, (SliceCost){.token = 1}, 16, 1, 4).cut;
    for (int q = 0; q <= 4; q++) assert_true(cut[q] == 4 * q);
    cut = equal_slices(*state, (SliceCost){.pair = 1}, 4, 1, 4).cut; /* as short as possible */
    for (int q = 0; q <= 4; q++) assert_true(cut[q] == q);
    /* Four tokens after three others read 4 + 5 + 6 + 7 tokens. */
    assert_true(slice_time(&(SliceCost){1, 10, 100, 0}, 3, 4) == 1 + 40 + 2200);
    assert_true(slice_time(&(SliceCost){1, 10, 100, 5000}, 3, 4) == 5000);
}

static void equal_slices_take_the_same_time(void **state)
{
    const Random random = random_named(6, "slices");
    uint64_t draw = 0;
    for (int trial = 0; trial < 500; trial++) {
        SliceCost c = {.token = random_uniform(&random, draw++)};
        if (trial % 7) c.pair = random_uniform(&random, draw++) / 100;
        const int slices = 1 + trial % 9;
        const int64_t multiple = 1 + trial % 5;
        const int64_t tokens = slices * multiple + (int64_t)(random_bits(&random, draw++) % 3000);
        const int64_t *cut = equal_slices(*state, c, tokens, multiple, slices).cut;
        const double each = slice_time(&c, 0, tokens) / slices;
        for (int q = 0; q < slices; q++) {
            assert_true(cut[q + 1] > cut[q] && (q == 0 || cut[q] % multiple == 0));
            /* Either cut is at most half a point off, unless slices are as short as possible. */
            const double place = slice_time(&c, tokens - multiple, multiple);
            if (tokens > 8 * slices * multiple)
                assert_true(fabs(slice_time(&c, cut[q], cut[q + 1] - cut[q]) - each) <=
                            place * (1 + 1e-9));
        }
        assert_true(cut[0] == 0 && cut[slices] == tokens);
    }
}

static double best_of_all(const SliceCost *c, const SliceRequest *r)
{
    double best = 1e300;
    const int n = (int)((r->tokens + r->multiple - 1) / r->multiple);
    for (unsigned cuts = 0; cuts < 1u << (n - 1); cuts++) {
        if (r->slices > 0 && __builtin_popcount(cuts) != r->slices - 1) continue;
        double sum = 0, most = 0;
        int64_t from = 0;
        for (int p = 1; p <= n; p++) {
            if (p < n && !(cuts >> (p - 1) & 1)) continue;
            const int64_t to = p < n ? p * r->multiple : r->tokens;
            const double time = slice_time(c, from, to - from);
            sum += time;
            if (most < time) most = time;
            from = to;
        }
        const double time = r->micros * sum + (r->stages - 1) * most;
        if (time < best) best = time;
    }
    return best;
}

static void planned_slices_are_the_best(void **state)
{
    const Random random = random_named(9, "plan");
    uint64_t draw = 0;
    int different = 0; /* from equal slices */
    for (int trial = 0; trial < 400; trial++) {
        SliceCost c = {.token = random_uniform(&random, draw++)};
        c.pair = random_uniform(&random, draw++) / 4;
        if (trial % 3) c.fixed = 4 * random_uniform(&random, draw++);
        if (trial % 2) c.least = 9 * random_uniform(&random, draw++);
        const SliceRequest r = {.tokens = 20 + trial % 7,
                                .multiple = 2 + trial % 2,
                                .slices = trial % 5,
                                .stages = 1 + trial % 6,
                                .micros = 1 + trial % 4};
        SlicePlan plan, equal;
        DO(slices_planned(&c, &r, *state, &plan));
        const double best = best_of_all(&c, &r);
        if (fabs(plan.time - best) > 1e-9 * best)
            fail_msg("trial %d: %.12g, the best is %.12g", trial, plan.time, best);
        if (r.slices == 0) continue;
        assert_int_equal(plan.n, r.slices);
        DO(slices_equal(&c, &r, *state, &equal));
        assert_true(equal.time >= plan.time * (1 - 1e-9));
        different += equal.time > plan.time * 1.001;
    }
    assert_true(different > 20);
}

/* The formula of slices.h equals the player's makespan for gpipe and terapipe, and for seq1f1b with
 * equal slices. */
static void formula_equals_the_player(void **state)
{
    for (int trial = 0; trial < 60; trial++) {
        const SliceCost c = {.fixed = 1, .token = 0.5, .pair = 0.25};
        const SliceRequest r = {40 + trial, 1, 1 + trial % 6, 1 + trial % 5, 1 + trial % 4};
        const Pipeline p = {r.stages, r.micros, 1, r.slices, 0};
        SlicePlan plan;
        Schedule s;
        Play play;
        double times[8];
        DO(slices_planned(&c, &r, *state, &plan));
        for (int q = 0; q < plan.n; q++)
            times[q] = slice_time(&c, plan.cut[q], plan.cut[q + 1] - plan.cut[q]);
        DO(schedule_generate("terapipe", &p, *state, &s));
        DO(schedule_play(&s, &(PlayCosts){.slice = times}, *state, &play));
        assert_true(fabs(play.makespan - 3 * plan.time) < 1e-9 * plan.time); /* F is 1, B is 2 */
    }
}

static void long_sequences_are_planned_on_fewer_places(void **state)
{
    const SliceCost c = {.fixed = 100, .token = 1, .pair = 1e-4};
    SlicePlan plan;
    DO(slices_planned(&c, &(SliceRequest){100000, 8, 0, 8, 1}, *state, &plan));
    assert_true(plan.n > 4 && plan.cut[plan.n] == 100000);
    for (int q = 1; q < plan.n; q++) assert_true(plan.cut[q] % (8 * 49) == 0);
}

static void impossible_cuts_are_refused(void **state)
{
    const SliceCost c = {.token = 1};
    SlicePlan plan;
    assert_int_equal(slices_equal(&c, &(SliceRequest){8, 4, 3, 1, 1}, *state, &plan), ERR_CONFIG);
    assert_string_equal(err_text(), "parallel.slices is 3; a sequence of 8 tokens, cut at "
                                    "multiples of 4, has at most 2");
    assert_int_equal(slices_equal(&c, &(SliceRequest){8, 0, 3, 1, 1}, *state, &plan), ERR_CONFIG);
    assert_int_equal(slices_equal(&c, &(SliceRequest){8, 1, 0, 1, 1}, *state, &plan), ERR_CONFIG);
    assert_int_equal(slices_planned(&c, &(SliceRequest){8, 0, 3, 1, 1}, *state, &plan), ERR_CONFIG);
    assert_int_equal(slices_planned(&c, &(SliceRequest){0, 1, 3, 1, 1}, *state, &plan), ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_match_the_request),
        cmocka_unit_test(chunks_by_cost_are_the_best),
        cmocka_unit_test(dealt_chunks_are_the_best),
        cmocka_unit_test(equal_slices_by_hand),
        cmocka_unit_test(equal_slices_take_the_same_time),
        cmocka_unit_test(planned_slices_are_the_best),
        cmocka_unit_test(formula_equals_the_player),
        cmocka_unit_test(long_sequences_are_planned_on_fewer_places),
        cmocka_unit_test(impossible_cuts_are_refused),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
