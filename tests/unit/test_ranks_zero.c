/* test_ranks_zero.c -- data parallelism and ZeRO against one rank: f64 on ref, within 1e-10,
 * five AdamW steps with accumulation and a clip, on any number of ranks. */
#include "support/expect.h"

#include "support/world.h"

static World world(const char *model, int micros)
{
    World w = world_of(test_job_settings(model, JOB_STEP));
    w.set.micros = micros;
    w.set.optim.clip = 0.4;
    return w;
}

static void compare(const char *name, const World *one, const World *many)
{
    WorldResult a, b;
    DO(world_run_job(one, &a));
    if (world_run_job(many, &b) != OK) fail_msg("%s: %s", name, err_text());
    const double off = world_differ_all(&a, &b);
    if (!(off <= 1e-10)) fail_msg("%s: off by %g", name, off);
    world_result_close(&a);
    world_result_close(&b);
}

/* The layouts of dp ranks: levels, reductions, replicas, and transfers that do not overlap. */
static void all_layouts(const char *model, int dp, int micros)
{
    const World one = world(model, dp * micros);
    WorldResult a, b;
    DO(world_run_job(&one, &a));
    for (int variant = 0; variant < 16; variant++) {
        World many = world(model, micros);
        ParallelSettings *p = &many.set.parallel;
        const int zero = variant % 4, replicate = variant / 8 + 1;
        if (dp % replicate != 0 || (replicate > 1 && zero == 0)) continue;
        p->mesh = (MeshSizes){.dp_replicate = replicate, .dp_shard = dp / replicate};
        p->zero = zero;
        p->reduce_each = p->in_order = variant / 4 % 2;
        if (world_run_job(&many, &b) != OK)
            fail_msg("%s, dp %d, variant %d: %s", model, dp, variant, err_text());
        const double off = world_differ_all(&a, &b);
        if (!(off <= 1e-10)) fail_msg("%s, dp %d, variant %d: off by %g", model, dp, variant, off);
        world_result_close(&b);
    }
    world_result_close(&a);
}

static void tied(void **state)
{
    (void)state;
    for (int dp = 1; dp <= 8; dp++) all_layouts(dp % 2 ? "gpt2" : "llama-tied", dp, 2);
}

static void untied(void **state)
{
    (void)state;
    for (int dp = 1; dp <= 8; dp++) all_layouts(dp % 2 ? "llama" : "gpt2-untied", dp, 2);
}

/* Every schedule, split or not, and a batch that fills neither ranks nor micro-batches. */
static void schedules(void **state)
{
    (void)state;
    for (int variant = 0; variant < 16; variant++) {
        World one = world("qwen2", 9), many = world("qwen2", 3);
        many.set.parallel.mesh.dp_shard = 3;
        many.set.parallel.zero = variant % 4;
        many.set.schedule = variant / 4 % 2 ? "gpipe" : "1f1b";
        many.set.split = variant / 8;
        one.numbers = many.numbers = 5 + variant % 3;
        compare(many.set.schedule, &one, &many);
    }
}

/* A rank whose tokens all have weight 0, one that has no rows, and then all of them. */
static void ranks_without_tokens(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        World one = world("mistral", 3), many = world("mistral", 1);
        many.set.parallel.mesh.dp_shard = 3;
        many.set.parallel.zero = zero;
        one.without = many.without = 1;
        one.numbers = many.numbers = 2;
        compare("one of three has tokens", &one, &many);
        one.without = many.without = 0;
        one.numbers = many.numbers = 1;
        WorldResult r;
        DO(world_run_job(&many, &r));
        for (int s = 0; s < many.steps; s++)
            assert_true(r.live[s] == 0 && r.loss[s] == 0 && r.norm[s] == 0);
        assert_true(world_differ(&r, &r, PART_MASTER) == 0); /* nothing is NaN */
        world_result_close(&r);
        compare("no rank has tokens", &one, &many);
    }
}

/* Adam and a clip would hide a wrong factor; gradients and one SGD step show it. */
static void sgd_shows_scale(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        World one = world("qwen3", 8), many = world("qwen3", 2);
        one.set.optim = (OptimSettings){.kind = OPTIM_SGD, .block = 16};
        one.steps = many.steps = 1;
        many.set.optim = one.set.optim;
        many.set.parallel.mesh =
            (MeshSizes){.dp_replicate = 1 + variant / 4, .dp_shard = 4 - variant / 4 * 2};
        many.set.parallel.zero = variant % 4;
        compare("one step of SGD", &one, &many);
    }
}

/* The loss alone, by ranks that share the state of the training ranks, between two steps. */
static void validation(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        World one = world("llama-tied", 6), many = world("llama-tied", 2);
        one.steps = many.steps = 2;
        one.validate = many.validate = true;
        many.set.parallel.mesh = (MeshSizes){1, 3, 1 + variant / 4, 1, 0, 0, 0, 0, false};
        many.set.parallel.zero = variant % 4;
        compare("validation", &one, &many);
    }
}

/* Blocks determine where homes are cut; with more ranks than blocks some ranks have none. */
static void blocks(void **state)
{
    (void)state;
    static const int64_t block[] = {1, 7, 16, 300, 65536};
    for (int i = 0; i < 5; i++)
        for (int zero = 1; zero <= 3; zero += 2) {
            World one = world("gpt2", 4), many = world("gpt2", 1);
            one.set.optim.block = many.set.optim.block = block[i];
            many.set.parallel.mesh.dp_shard = 4;
            many.set.parallel.zero = zero;
            compare("blocks", &one, &many);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tied),
        cmocka_unit_test(untied),
        cmocka_unit_test(schedules),
        cmocka_unit_test(ranks_without_tokens),
        cmocka_unit_test(validation),
        cmocka_unit_test(blocks),
        cmocka_unit_test(sgd_shows_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
