/* test_ranks_exact.c -- equalities to the bit, f32 on device/cpu: the levels of ZeRO at equal dp
 * and equal reductions; dp=N and one rank with a fold of N; any timing of transfers; offloading
 * of values that are gathered again. */
#include "support/expect.h"

#include "device/cpu/cpu.h"
#include "support/world.h"

static World world(const char *model, int dp, int micros)
{
    World w = world_of(test_job_settings(model, JOB_STEP));
    w.set.dtype = F32;
    w.set.micros = micros;
    w.set.optim.clip = 0.4;
    w.set.parallel.mesh.dp_shard = dp;
    DO(device_cpu_open(NULL, &w.device));
    return w;
}

static void same(const char *name, const WorldResult *a, const World *w)
{
    WorldResult b;
    char what[128];
    if (world_run_job(w, &b) != OK) fail_msg("%s: %s", name, err_text());
    if (!world_equal(a, &b, what)) fail_msg("%s: %s", name, what);
    world_result_close(&b);
}

static void levels_of(const char *model, DType dtype, int dp, bool each)
{
    World w = world(model, dp, 3);
    WorldResult a;
    w.set.dtype = dtype;
    w.init = dtype == BF16; /* programs read weights rounded to bf16 */
    w.set.parallel.reduce_each = each;
    DO(world_run_job(&w, &a));
    for (int zero = 1; zero < 4; zero++) {
        w.set.parallel.zero = zero;
        if (zero >= 2 && !each) continue; /* these reduce after each micro-batch */
        same("levels", &a, &w);
        w.set.parallel.in_order = true;
        same("in order", &a, &w);
        w.set.parallel.in_order = false;
        w.set.parallel.live = 4;
        same("more live", &a, &w);
        w.set.parallel.live = 0;
    }
    world_result_close(&a);
}

static void levels_are_equal(void **state)
{
    (void)state;
    static const char *const model[] = {"gpt2", "llama", "qwen2"};
    for (int m = 0; m < 3; m++)
        for (int dp = 2; dp <= 5; dp += 3) {
            levels_of(model[m], m == 1 ? BF16 : F32, dp, false);
            levels_of(model[m], m == 1 ? BF16 : F32, dp, true);
        }
}

/* One rank that runs the micro-batches of N ranks one after another. */
static void fold_is_dp(void **state)
{
    (void)state;
    static const char *const model[] = {"gpt2", "llama", "llama-tied"};
    for (int m = 0; m < 3; m++)
        for (int n = 2; n <= 5; n += 1 + n % 2)
            for (int variant = 0; variant < 4; variant++) {
                World many = world(model[m], n, 2), one = world(model[m], 1, 2 * n);
                WorldResult a;
                many.set.parallel.zero = variant % 2;
                many.numbers = one.numbers =
                    2 * n - variant / 2; /* the last one may have no rows */
                one.set.parallel.fold = n;
                one.set.schedule = variant % 2 ? "gpipe" : "1f1b";
                DO(world_run_job(&many, &a));
                same("fold", &a, &one);
                world_result_close(&a);
            }
}

/* In f64 too: losses are summed in f64, where f32 losses rarely show the order. */
static void fold_is_dp_in_f64(void **state)
{
    (void)state;
    World many = world("gpt2", 3, 2), one = world("gpt2", 1, 6);
    WorldResult a;
    many.device = one.device = &device_ref;
    many.set.dtype = one.set.dtype = F64;
    one.set.parallel.fold = 3;
    DO(world_run_job(&many, &a));
    same("fold", &a, &one);
    world_result_close(&a);
}

/* Initial weights depend on the element of the whole parameter, so all layouts start equal. */
static void initial_weights_are_equal(void **state)
{
    (void)state;
    static const MeshSizes mesh[] = {{1, 4, 1, 1, 0, 0, 0, 0, false},
                                     {2, 2, 1, 1, 0, 0, 0, 0, false},
                                     {1, 1, 3, 1, 0, 0, 0, 0, false},
                                     {1, 2, 2, 1, 0, 0, 0, 0, false},
                                     {2, 1, 2, 1, 0, 0, 0, 0, false}};
    World w = world("llama-tied", 1, 1);
    WorldResult a, b;
    w.init = true;
    w.steps = 0;
    DO(world_run_job(&w, &a));
    for (int i = 0; i < 5; i++)
        for (int zero = 0; zero < 4; zero++) {
            w.set.parallel = (ParallelSettings){.mesh = mesh[i], .zero = zero};
            DO(world_run_job(&w, &b));
            assert_memory_equal(a.part[PART_MASTER], b.part[PART_MASTER],
                                (size_t)a.elements * sizeof(double));
            world_result_close(&b);
        }
    world_result_close(&a);
}

/* One rank without a fold sums in another order, so the tests of folds can fail. */
static void fold_matters(void **state)
{
    (void)state;
    World many = world("llama", 4, 2), one = world("llama", 1, 8);
    WorldResult a, b;
    char what[128];
    DO(world_run_job(&many, &a));
    DO(world_run_job(&one, &b));
    assert_false(world_equal(&a, &b, what));
    world_result_close(&a);
    world_result_close(&b);
}

static void timing_does_not_matter(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int replicate = 1; replicate <= 2; replicate++) {
            World w = world("gpt2", 4 / replicate, 2);
            WorldResult a;
            w.set.parallel.mesh.dp_replicate = replicate;
            w.set.parallel.zero = zero;
            DO(world_run_job(&w, &a));
            w.hostile = true;
            for (w.seed = 1; w.seed <= 3; w.seed++) same("hostile", &a, &w);
            world_result_close(&a);
        }
}

/* Values that are kept only to be gathered again in the backward phases are offloaded by name, and
 * change no bit. A name without effect would be refused. */
static void regathered_values_are_offloaded(void **state)
{
    static const struct {
        int cp, tp;
        bool sequence;
        const char *offload;
    } row[] = {{2, 1, false, "attn.v,attn.k.rope"},
               {3, 1, false, "attn.k.rope,mlp.act"},
               {2, 2, true, "attn.v,attn.in,mlp.in"},
               {1, 2, true, "attn.in"}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        World w = world("llama", 1, 4);
        WorldResult kept;
        w.set.parallel.mesh.cp = row[i].cp;
        w.set.parallel.mesh.tp = row[i].tp;
        w.set.parallel.sequence = row[i].sequence;
        if (row[i].cp > 1) w.set.parallel.context = CONTEXT_GATHER;
        DO(world_run_job(&w, &kept));
        w.set.compile.offload_names = row[i].offload;
        same(row[i].offload, &kept, &w);
        world_result_close(&kept);
    }
}

static void impossible_folds_are_refused(void **state)
{
    (void)state;
    static Job job;
    Arena arena;
    World w = world("llama", 2, 4);
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    w.set.parallel.fold = 2;
    expect_error("dp", job_compile(&w.set, &arena, &job), ERR_CONFIG,
                 "numerics.fold=2 with dp=2: fold reproduces the order of sums");
    w.set.parallel.mesh.dp_shard = 1;
    w.set.parallel.mesh.cp = 2;
    expect_error("cp", job_compile(&w.set, &arena, &job), ERR_CONFIG,
                 "numerics.fold=2 with mesh.cp=2: gradients of dp x cp ranks");
    w.set.parallel.mesh.cp = 1;
    w.set.parallel.reduce_each = true;
    expect_error("each", job_compile(&w.set, &arena, &job), ERR_CONFIG, "set parallel.reduce=last");
    w.set.parallel.reduce_each = false;
    w.set.parallel.fold = 3;
    expect_error("groups", job_compile(&w.set, &arena, &job), ERR_CONFIG,
                 "numerics.fold=3: the rank's 4 micro-batches");
    w.set.parallel.fold = 0;
    w.set.parallel.zero = 4;
    expect_error("zero", job_compile(&w.set, &arena, &job), ERR_CONFIG, "levels are 0 to 3");
    w.set.parallel.zero = 0;
    w.set.parallel.rank = 1;
    expect_error("rank", job_compile(&w.set, &arena, &job), ERR_CONFIG,
                 "the mesh has ranks 0 to 0");
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_equal),
        cmocka_unit_test(fold_is_dp),
        cmocka_unit_test(fold_matters),
        cmocka_unit_test(fold_is_dp_in_f64),
        cmocka_unit_test(initial_weights_are_equal),
        cmocka_unit_test(timing_does_not_matter),
        cmocka_unit_test(regathered_values_are_offloaded),
        cmocka_unit_test(impossible_folds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
