/* test_ranks_tensor.c -- homes, copies and norms of parameters that are also sharded over tp:
 * f64 on ref, within 1e-10 of one rank. */
#include "support/expect.h"

#include "support/world.h"

typedef struct {
    int dp, replicate, tp;
    bool sequence;
} Grid;

static void compare(const char *model, Grid g, int zero)
{
    World one = world_of(test_job_settings(model, JOB_STEP)), many = one;
    WorldResult a, b;
    const int dp = g.dp * g.replicate;
    one.steps = many.steps = 3;
    one.set.micros = 2 * dp;
    one.set.optim.clip = many.set.optim.clip = 0.4;
    many.set.micros = 2;
    many.set.parallel =
        (ParallelSettings){.mesh = {.dp_replicate = g.replicate, .dp_shard = g.dp, .tp = g.tp},
                           .zero = zero,
                           .sequence = g.sequence};
    DO(world_run_job(&one, &a));
    if (world_run_job(&many, &b) != OK)
        fail_msg("%s, dp %d x %d, tp %d, sp %d, zero %d: %s", model, g.replicate, g.dp, g.tp,
                 g.sequence, zero, err_text());
    const double off = world_differ_all(&a, &b);
    if (!(off <= 1e-10))
        fail_msg("%s, dp %d x %d, tp %d, sp %d, zero %d: off by %g", model, g.replicate, g.dp, g.tp,
                 g.sequence, zero, off);
    world_result_close(&a);
    world_result_close(&b);
}

/* Heads that divide evenly, unevenly (4 on 3), and key heads with copies (2 on 3 and 4). */
static void grids(void **state)
{
    (void)state;
    static const Grid grid[] = {{1, 1, 2, false}, {2, 1, 2, false}, {2, 1, 3, true},
                                {1, 1, 3, false}, {2, 2, 2, true},  {1, 1, 4, true}};
    static const char *const model[] = {"llama", "qwen3", "llama-tied"};
    for (int m = 0; m < 3; m++)
        for (int i = 0; i < 6; i++) compare(model[m], grid[i], (m + i) % 4);
    for (int i = 0; i < 4; i++) compare("gpt2", grid[i], (i + 1) % 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(grids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
