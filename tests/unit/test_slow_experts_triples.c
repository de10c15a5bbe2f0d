/* test_slow_experts_triples.c -- every triple of options of a mixture of experts. */
#include "experts_cover.h"

static void every_triple(void **state)
{
    (void)state;
    assert_true(expect_cover(MAX_RANKS, 3) > 160);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_triple)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
