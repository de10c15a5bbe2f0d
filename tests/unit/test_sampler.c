/* test_sampler.c -- each filter of the sampler on hand-made logits: counts of draws over many
 * positions against the probabilities of the transformers library's definitions. */
#include <math.h>

#include "support/expect.h"
#include "infer/sampler.h"

enum { VOCAB = 8, DRAWS = 20000 };

/* Probabilities 0.4 0.05 0.25 0.1 0.1 0.05 0.04 0.01. */
static const double share[VOCAB] = {0.4, 0.05, 0.25, 0.1, 0.1, 0.05, 0.04, 0.01};

static const SamplerSettings plain = {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 3};

typedef struct {
    Arena arena;
    double logit[VOCAB];
    float narrow[VOCAB];
    int64_t count[VOCAB];
} Bench;

static Bench *bench(void)
{
    static Bench b;
    if (!b.arena.base) DO(arena_open(&b.arena, "test", ARENA_PLENTY));
    arena_rewind(&b.arena, 0);
    for (int i = 0; i < VOCAB; i++) b.logit[i] = log(share[i]) + 1.5;
    return &b;
}

static Tensor row_of(Bench *b) { return (Tensor){b->logit, F64, 1, {VOCAB}, {1}}; }

static void draw_many(Bench *b, const SamplerSettings *set, const int32_t *before, int64_t n)
{
    static int32_t many[DRAWS];
    Sampler s;
    const Tensor row = row_of(b);
    memset(b->count, 0, sizeof b->count);
    for (int i = 0; i < DRAWS; i++) many[i] = n ? before[i % n] : 0;
    DO(sampler_open(&s, set, VOCAB, &b->arena));
    for (int i = 1; i <= DRAWS; i++) {
        int32_t token;
        DO(sampler_draw(&s, &row, &(RandomDraw){many, i, 7}, &token));
        assert_in_range(token, 0, VOCAB - 1);
        b->count[token]++;
    }
}

/* The count of n draws with probability p is within five standard deviations of n p. The random
 * numbers are fixed, so the test is deterministic. */
static void expect_shares(const Bench *b, const double *want)
{
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += want[i];
    for (int i = 0; i < VOCAB; i++) {
        const double p = want[i] / sum, mean = p * DRAWS;
        if (p == 0 && b->count[i]) fail_msg("token %d is out, and was drawn", i);
        if (fabs((double)b->count[i] - mean) > 5 * sqrt(mean * (1 - p)) + 1e-9)
            fail_msg("token %d: %d times, not about %g", i, (int)b->count[i], mean);
    }
}

static void shares_are_probabilities(void **state)
{
    (void)state;
    Bench *b = bench();
    draw_many(b, &plain, NULL, 0);
    expect_shares(b, share);
}

static void temperature_is_a_power(void **state)
{
    (void)state;
    Bench *b = bench();
    SamplerSettings set = plain;
    double want[VOCAB];
    for (set.temperature = 0.5; set.temperature <= 2; set.temperature *= 4) {
        for (int i = 0; i < VOCAB; i++) want[i] = pow(share[i], 1 / set.temperature);
        draw_many(b, &set, NULL, 0);
        expect_shares(b, want);
    }
}

/* Two tokens are equal at the fourth place: both are kept. */
static void top_k_keeps_equals(void **state)
{
    (void)state;
    Bench *b = bench();
    SamplerSettings set = plain;
    const double kept[][VOCAB] = {{0.4},
                                  {0.4, 0, 0.25},
                                  {0.4, 0, 0.25, 0.1, 0.1},
                                  {0.4, 0, 0.25, 0.1, 0.1},
                                  {0.4, 0.05, 0.25, 0.1, 0.1, 0.05}};
    for (set.top_k = 1; set.top_k <= 5; set.top_k++) {
        draw_many(b, &set, NULL, 0);
        expect_shares(b, kept[set.top_k - 1]);
    }
    set.top_k = VOCAB + 3;
    draw_many(b, &set, NULL, 0);
    expect_shares(b, share);
}

/* A token is kept while the more likely ones sum to less than p. */
static void top_p_sums_up(void **state)
{
    (void)state;
    Bench *b = bench();
    SamplerSettings set = plain;
    const struct {
        double p, kept[VOCAB];
    } row[] = {{1e-9, {0.4}},
               {0.39, {0.4}},
               {0.41, {0.4, 0, 0.25}},
               {0.64, {0.4, 0, 0.25}},
               {0.66, {0.4, 0, 0.25, 0.1}}, /* the lower one of the two with 0.1 */
               {0.76, {0.4, 0, 0.25, 0.1, 0.1}},
               {0.97, {0.4, 0.05, 0.25, 0.1, 0.1, 0.05, 0.04}},
               {1, {0.4, 0.05, 0.25, 0.1, 0.1, 0.05, 0.04, 0.01}}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        set.top_p = row[i].p;
        draw_many(b, &set, NULL, 0);
        expect_shares(b, row[i].kept);
    }
}

/* Temperature, then top-k, then top-p: 0.4 0.25 0.1 0.1 at temperature 0.5 are 0.16 0.0625 0.01
 * 0.01 of 0.2425, so the first two sum to 0.9175. Another order would keep more tokens. */
static void stages_in_their_order(void **state)
{
    (void)state;
    Bench *b = bench();
    const SamplerSettings set = {0.5, 3, 0.9, 1, 11};
    draw_many(b, &set, NULL, 0);
    expect_shares(b, (const double[VOCAB]){0.16, 0, 0.0625});
}

/* Positive logits are divided, negative ones multiplied; once, however often a token occurred. */
static void repetition_is_penalized(void **state)
{
    (void)state;
    Bench *b = bench();
    SamplerSettings set = plain;
    const int32_t before[] = {0, 7, 0};
    double want[VOCAB];
    set.repetition = 1.5;
    for (int i = 0; i < VOCAB; i++) want[i] = share[i];
    assert_true(b->logit[0] > 0 && b->logit[7] < 0);
    want[0] = exp(b->logit[0] / 1.5 - 1.5);
    want[7] = exp(b->logit[7] * 1.5 - 1.5);
    draw_many(b, &set, before, 3); /* from position 2 on both have occurred */
    expect_shares(b, want);
}

static void greedy_takes_the_first_largest(void **state)
{
    (void)state;
    Bench *b = bench();
    Sampler s;
    int32_t token, before[] = {2};
    SamplerSettings set = {.temperature = 0, .top_p = 1, .repetition = 1};
    Tensor row = row_of(b);
    b->logit[5] = b->logit[2] = 3;
    DO(sampler_open(&s, &set, VOCAB, &b->arena));
    DO(sampler_draw(&s, &row, &(RandomDraw){before, 1, 0}, &token));
    assert_int_equal(token, 2);
    set.repetition = 2;
    DO(sampler_open(&s, &set, VOCAB, &b->arena));
    DO(sampler_draw(&s, &row, &(RandomDraw){before, 1, 0}, &token));
    assert_int_equal(token, 5);
    b->logit[3] = (double)NAN;
    expect_error("NaN", sampler_draw(&s, &row, &(RandomDraw){before, 1, 0}, &token), ERR_CHECK,
                 "token 3 is NaN");
}

/* Draws depend on seed, request and position, not on the type or stride of the logits. */
static void draws_depend_on_seed_and_position(void **state)
{
    (void)state;
    Bench *b = bench();
    Sampler s;
    enum { N = 64 };
    int32_t before[N] = {0}, got[4][N];
    int same[4] = {0};
    const RandomDraw at[4] = {{before, 0, 0}, {before, 0, 0}, {before, 0, 1}, {before, 0, 0}};
    for (int i = 0; i < VOCAB; i++)
        b->narrow[i] = (float)b->logit[i], b->logit[i] = (double)b->narrow[i];
    for (int k = 0; k < 4; k++) {
        SamplerSettings set = plain;
        Tensor row = row_of(b);
        if (k == 1) row = (Tensor){b->narrow, F32, 1, {VOCAB}, {1}};
        set.seed += k == 3;
        DO(sampler_open(&s, &set, VOCAB, &b->arena));
        for (int i = 0; i < N; i++) {
            RandomDraw d = at[k];
            d.n = i;
            DO(sampler_draw(&s, &row, &d, &got[k][i]));
            same[k] += got[k][i] == got[0][i];
        }
    }
    assert_int_equal(same[1], N);
    assert_in_range(same[2], 5, N / 2); /* 0.26 by chance */
    assert_in_range(same[3], 5, N / 2);
}

static void refusals(void **state)
{
    (void)state;
    Bench *b = bench();
    Sampler s;
    const struct {
        SamplerSettings set;
        const char *message;
    } row[] = {{{-1, 0, 1, 1, 0}, "temperature -1"}, {{(double)NAN, 0, 1, 1, 0}, "temperature"},
               {{1, -2, 1, 1, 0}, "top-k -2"},       {{1, 0, 0, 1, 0}, "top-p 0"},
               {{1, 0, 1.5, 1, 0}, "top-p 1.5"},     {{1, 0, 1, 0, 0}, "repetition penalty 0"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect_error(row[i].message, sampler_open(&s, &row[i].set, VOCAB, &b->arena), ERR_CONFIG,
                     row[i].message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_probabilities),
        cmocka_unit_test(temperature_is_a_power),
        cmocka_unit_test(top_k_keeps_equals),
        cmocka_unit_test(top_p_sums_up),
        cmocka_unit_test(stages_in_their_order),
        cmocka_unit_test(repetition_is_penalized),
        cmocka_unit_test(greedy_takes_the_first_largest),
        cmocka_unit_test(draws_depend_on_seed_and_position),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
