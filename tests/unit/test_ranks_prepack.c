/* test_ranks_prepack.c -- prepacked weights on device/cpu: the same bits as without, in every
 * layout. They are made once per step if they are read often enough, and their memory is
 * predicted. */
#include "support/expect.h"

#include <stdatomic.h>
#include <string.h>
#include "device/cpu/cpu.h"
#include "support/world.h"

/* Number of prepacked weights made; atomic because ranks are threads. */
static atomic_int made;

static const Device *plain_cpu(void)
{
    const Device *d;
    DO(device_cpu_open(NULL, &d));
    return d;
}

static size_t cpu_bytes(DType type, int64_t k, int64_t n)
{
    return plain_cpu()->prepack->bytes(type, k, n);
}

static Err counted(const Call *call)
{
    atomic_fetch_add(&made, 1);
    return plain_cpu()->prepack->pack(call);
}

/* Packs nothing: the poison stays. */
static Err forgotten(const Call *call)
{
    (void)call;
    return OK;
}

static const DevicePrepack counting = {cpu_bytes, counted}, forgetting = {cpu_bytes, forgotten};

/* Three micro-batches of two sequences, too many rows for the skinny GEMM. */
static World world(const char *model, DType dtype)
{
    World w = world_of(test_job_settings(model, JOB_STEP));
    w.set.dtype = dtype;
    w.set.batch.sequences = 2;
    w.set.micros = 3;
    w.set.compile.chunk_elements = 11 * w.set.config->vocab;
    w.init = dtype == BF16; /* programs use weights rounded */
    w.device = plain_cpu();
    w.steps = 3;
    return w;
}

/* Runs w with prepacked weights; returns the number of times that one was made. */
static int run_prepacked(World w, const DevicePrepack *how, WorldResult *out)
{
    Device d = *plain_cpu();
    d.prepack = how;
    w.device = &d;
    w.set.compile.prepack = how;
    atomic_store(&made, 0);
    if (world_run_job(&w, out) != OK) fail_msg("%s", err_text());
    return atomic_load(&made);
}

/* Compares runs with and without prepacking; returns the number of weights made. */
static int same_bits(const char *name, const World *w)
{
    WorldResult a, b;
    char what[128];
    DO(world_run_job(w, &a));
    const int n = run_prepacked(*w, &counting, &b);
    if (!world_equal(&a, &b, what)) fail_msg("%s: %s", name, what);
    world_result_close(&a);
    world_result_close(&b);
    return n;
}

static const char *const models[] = {"gpt2", "llama", "qwen2", "llama-tied", "gpt2-untied"};

/* q, k and v are one GEMM; so are gate and up. */
static void once_a_step(void **state)
{
    (void)state;
    for (int m = 0; m < 5; m++) {
        const World w = world(models[m], m % 2 ? F32 : BF16);
        const int per_direction =
            4 * w.set.config->n_layers + 1; /* qkv, o, up, down; and the head */
        assert_int_equal(same_bits(models[m], &w), 2 * per_direction * w.steps);
    }
}

static void on_ranks(void **state)
{
    (void)state;
    for (int variant = 0; variant < 10; variant++) {
        World w = world(models[variant % 5], variant % 2 ? F32 : BF16);
        ParallelSettings *p = &w.set.parallel;
        p->mesh = (MeshSizes){1, 1 + variant % 3, variant % 3 == 0 ? 2 : 1, 1, 0, 0, 0, 0, false};
        p->zero = p->mesh.dp_shard > 1 ? variant % 3 : 0;
        p->sequence = variant % 4 == 0;
        w.set.compile.recompute = variant % 4 == 1 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        w.validate = true;
        w.hostile = variant % 2;
        assert_true(same_bits(models[variant % 5], &w) > 0);
    }
}

static void in_pipelines(void **state)
{
    (void)state;
    static const char *const schedule[] = {"1f1b", "gpipe", "zbh1", "zbv", "seq1f1b"};
    for (int variant = 0; variant < 5; variant++) {
        World w = world(models[variant], variant % 2 ? F32 : BF16);
        ModelConfig config = *w.set.config;
        ParallelSettings *p = &w.set.parallel;
        config.n_layers = 5;
        w.set.config = &config;
        p->mesh = (MeshSizes){1, 1, variant % 2 ? 2 : 1, 2, 0, 0, 0, 0, false};
        p->schedule = schedule[variant];
        if (variant == 4) w.set.batch.sequences = 1; /* one sequence, cut into slices */
        const int all = 2 * (4 * config.n_layers + 1) * w.steps * p->mesh.tp;
        assert_int_equal(same_bits(schedule[variant], &w), all);
    }
}

/* Slices of several lengths, and therefore several programs per unit. */
static void in_slices(void **state)
{
    (void)state;
    static const int64_t cuts[] = {0, 5, 7, 9};
    for (int m = 0; m < 5; m++) {
        World w = world(models[m], m % 2 ? BF16 : F32);
        w.set.batch.sequences = 1;
        w.set.schedule = "gpipe";
        w.set.compile.chunk_elements = 2 * w.set.config->vocab;
        w.set.parallel.slices = 3;
        w.set.parallel.cuts = cuts;
        assert_int_equal(same_bits(models[m], &w), 2 * (4 * w.set.config->n_layers + 1) * w.steps);
    }
}

/* Weights gathered for each use are not prepacked, nor those that a step reads once or twice. */
static void rarely_read_weights_are_not_prepacked(void **state)
{
    (void)state;
    World w = world("llama", BF16), twice = world("gpt2", F32);
    WorldResult a, b;
    w.set.parallel.mesh.dp_shard = 2;
    w.set.parallel.zero = 3;
    assert_int_equal(same_bits("zero 3", &w), 0);
    twice.set.micros = 2;
    twice.set.compile.chunk_elements = 1 << 20;
    DO(world_run_job(&twice, &a));
    assert_int_equal(run_prepacked(twice, &counting, &b), 0);
    assert_memory_equal(a.bytes, b.bytes, sizeof a.bytes);
    world_result_close(&a);
    world_result_close(&b);
}

/* GEMMs do read the prepacked weights: left as poison, they make the loss NaN. */
static void prepacked_weights_are_read(void **state)
{
    (void)state;
    const World w = world("llama", F32);
    WorldResult r;
    run_prepacked(w, &forgetting, &r);
    assert_true(r.loss[0] != r.loss[0]);
    world_result_close(&r);
}

static void peaks(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        World w = world(models[variant % 5], F32);
        ParallelSettings *p = &w.set.parallel;
        p->mesh = (MeshSizes){
            1, 1 + variant / 4, 1 + variant % 2, 1 + variant / 2 % 2, 0, 0, 0, 0, false};
        p->zero = variant / 4 * (variant % 4);
        w.set.compile.prepack = w.device->prepack;
        world_peaks_are_exact(models[variant % 5], w);
    }
}

/* A program compiled for one device is refused on another. */
static void on_another_device(void **state)
{
    (void)state;
    World w = world("llama", F32);
    WorldResult r;
    w.set.compile.prepack = w.device->prepack;
    w.device = &device_ref;
    expect_error("ref", world_run_job(&w, &r), ERR_CHECK, "and 0 on device ref");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(once_a_step),
        cmocka_unit_test(on_ranks),
        cmocka_unit_test(in_pipelines),
        cmocka_unit_test(in_slices),
        cmocka_unit_test(rarely_read_weights_are_not_prepacked),
        cmocka_unit_test(prepacked_weights_are_read),
        cmocka_unit_test(peaks),
        cmocka_unit_test(on_another_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
