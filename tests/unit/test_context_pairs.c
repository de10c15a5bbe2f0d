/* test_context_pairs.c -- every pair of options of context parallelism computes the same model. */
#include "context_cover.h"

static void every_pair(void **state)
{
    (void)state;
    assert_in_range(expect_cover(2), 90, 150);
}

/* Every pair of values of two options, by brute force over the rows. */
static bool any(const void *context, const int *value, int n)
{
    (void)context;
    return n < 3 || !(value[0] == 1 && value[2] == 2); /* not together */
}

static void sets_cover(void **state)
{
    const CoverSpace space = {.n = 4, .values = {2, 3, 4, 2}, .may = any};
    Arena arena;
    (void)state;
    DO(arena_open(&arena, "cover", ARENA_PLENTY));
    for (int strength = 2; strength <= 3; strength++) {
        int *row, n, found = 0, pairs = 0;
        DO(cover_rows(&space, strength, &arena, &row, &n));
        for (int a = 0; a < 4; a++)
            for (int b = a + 1; b < 4; b++)
                for (int k = 0; k < space.values[a] * space.values[b]; k++) {
                    bool has = false;
                    for (int i = 0; i < n; i++)
                        has = has || (row[4 * i + a] == k / space.values[b] &&
                                      row[4 * i + b] == k % space.values[b]);
                    found += has;
                    pairs++;
                }
        assert_int_equal(found, pairs - 1); /* all but the impossible one */
        assert_in_range(n, strength == 2 ? 12 : 24, strength == 2 ? 16 : 32);
    }
    arena_close(&arena);
}

/* Plans that move queries are refused in slices, with a way out. */
static void slices_are_refused(void **state)
{
    static const char *const words[] = {"cp=2 pp=2 schedule=seq1f1b context=lightseq",
                                        "cp=2 schedule=terapipe slices=3 context=token-ring"};
    const VerifySettings s = verified_f64(test_model("llama"), 1, 12);
    ParallelSettings layout;
    VerifyLine line[MAX_VERIFY_LINES];
    Arena arena;
    int n;
    (void)state;
    DO(arena_open(&arena, "verify", ARENA_PLENTY));
    for (int i = 0; i < 2; i++) {
        DO(layout_parse(words[i], strlen(words[i]), &layout));
        expect_error("slices", verify_layout(&s, &layout, &arena, line, &n), ERR_CONFIG,
                     "gather, ulysses, ring or double-ring, or a schedule without slices");
    }
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sets_cover),
                                       cmocka_unit_test(slices_are_refused),
                                       cmocka_unit_test(every_pair)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
