/* test_experts_pairs.c -- every pair of options of a mixture of experts, and further layouts. */
#include "experts_cover.h"

static void every_pair_of_options(void **state)
{
    (void)state;
    assert_in_range(expect_cover(MAX_RANKS, 2), 40, 160);
}

/* Cases that a covering set may miss: axes of experts across those of attention, schedules that
 * run I and W apart, ranks without tokens, experts without rows. */
static void further_layouts(void **state)
{
    static const char *const layouts[] = {"dp=2 tp=2 ep=2 etp=2",
                                          "tp=4 dp=2 ep=2 etp=2 sequence",
                                          "cp=4 dp=2 ep=8",
                                          "pp=2 dp=2 ep=2 schedule=zbh1",
                                          "pp=2 tp=2 ep=2 schedule=dualpipev",
                                          "pp=2 dp=2 tp=2 ep=4 schedule=interleaved zero=2",
                                          "cp=2 tp=2 context=ring ep=4",
                                          "dp_replicate=2 dp_shard=2 ep=4 zero=3",
                                          "dp=8 ep=8 zero=1",
                                          "dp=8 etp=8",
                                          "dp=6 ep=3 etp=2 zero=3"};
    const ModelConfig model[3] = {model_with(10, 0), model_with(0, 1), deepseek_router()};
    Arena arena;
    (void)state;
    DO(arena_open(&arena, "further", ARENA_PLENTY));
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        VerifySettings s = settings_for(&model[i % 3]);
        ParallelSettings p;
        DO(layout_parse(layouts[i], strlen(layouts[i]), &p));
        s.compile.recompute = i % 2 ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE;
        expect_same(&s, &p, &arena);
    }
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair_of_options),
                                       cmocka_unit_test(further_layouts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
