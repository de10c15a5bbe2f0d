/* test_slow_context_triples.c -- every triple of options of context parallelism. */
#include "context_cover.h"

static void every_triple(void **state)
{
    (void)state;
    assert_true(expect_cover(3) > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_triple)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
