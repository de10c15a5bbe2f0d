/* test_slow_plan_search.c -- the search against brute force on thirty whole spaces. */
#include "plan_spaces.h"

static void finds_every_optimum(void **state)
{
    const PlanFixed none = plan_fixed_none();
    (void)state;
    for (int n = 0; n < 30; n++) check_space(n, &none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_every_optimum)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
