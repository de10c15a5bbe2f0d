/* test_slow_plan_mixed.c -- plans whose layers differ against brute force on thirty spaces. */
#include "mixed_spaces.h"

static void is_within_its_gap(void **state)
{
    int spaces = 0, faster = 0;
    (void)state;
    for (int n = 0; spaces < 30; n++) {
        static const int ranks[] = {4, 2, 8, 6, 3}; /* as open_small */
        const int all = ranks[n % 5], pp = n % 3 == 2 && all % 2 == 0 ? 2 : 1;
        PlanFixed fixed = plan_fixed_none();
        if (all / pp > 5 + n % 7) continue; /* ranks without a sequence */
        fixed.micro = 1;
        fixed.tp = all % 2 == 0 && n % 2 ? 2 : 1;
        if (all / pp / fixed.tp < 2) fixed.tp = 1;
        fixed.cp = 1;
        fixed.pp = pp;
        fixed.schedule = n % 4 == 2 ? "gpipe" : "1f1b";
        fixed.sequence = fixed.by_cost = 0;
        if (all / pp / fixed.tp == 1)
            fixed.zero = 0;
        else if (n % 2)
            fixed.zero = n % 4;
        else
            fixed.recompute = n % 3;
        faster += check_mixed(n, &fixed);
        spaces++;
    }
    print_message("layers differ in %d of 120 answers\n", faster);
    assert_true(faster > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_within_its_gap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
