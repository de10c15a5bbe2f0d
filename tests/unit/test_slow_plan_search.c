/* test_slow_plan_search.c -- the search against brute force on thirty spaces. */
#include "plan_spaces.h"

static void finds_every_optimum(void **state)
{
    PlanFixed fixed = plan_fixed_none();
    (void)state;
    for (int n = 0; n < 30; n++) {
        const bool few = n % 5 == 1 || n % 5 == 4; /* 2 or 3 ranks: all choices are free */
        fixed.micro = few ? 0 : 1 + n % 2;
        fixed.recompute = few ? -1 : n % 3;
        fixed.by_cost = few ? -1 : n % 4 == 1;
        fixed.sequence = few ? -1 : n % 2;
        check_space(n, &fixed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_every_optimum)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
