/* test_ranks_weights.c -- weights that travel over cp (compile/weights.c): such layouts compute the
 * model of one rank, send the bytes of the formula, have the predicted peak, and take less memory
 * than ZeRO 3 over cp.
 *
 * In elements, summed over the P ranks of cp, with W the weights of a layer's matrices, B S tokens
 * of a micro-batch and K the width of keys:
 *
 *     weights      2 (P-1) W     forward and backward
 *     gradients      (P-1) W
 *     keys         6 (P-1) B S K     gathered twice, and their gradients scattered
 *
 * so (P-1) (3 W + 6 B S K): with f = (P-1)/P, f (3 W + 6 B S K) from each rank. */
#include "support/expect.h"

#include "device/cpu/cpu.h"
#include "support/models.h"
#include "support/verified.h"
#include "support/world.h"

enum { STEPS = 2 };

static VerifySettings settings(const char *model, DType dtype, int64_t micro, Recompute recompute,
                               const char *names)
{
    VerifySettings s = verified_cpu(test_model(model), dtype, micro, 9);
    s.compile.recompute = recompute;
    s.compile.recompute_names = names;
    return s;
}

/* Every family; 9 tokens, and widths that P does not divide. */
static void families(void **state)
{
    static const struct {
        const char *model, *layout;
    } row[] = {{"gpt2", "cp=2 weights=stream"},
               {"gpt2", "cp=3 weights=stream context=ring"},
               {"llama", "cp=3 weights=stream"},
               {"llama", "cp=4 weights=stream context=ring tokens=striped"},
               {"mistral", "cp=2 weights=stream context=ring tokens=contiguous"},
               {"qwen2", "cp=4 weights=stream"},
               {"qwen3", "cp=2 weights=stream context=ulysses"},
               {"qwen3", "cp=3 weights=stream context=lightseq"}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const VerifySettings s =
            settings(row[i].model, F32, 1 + (int64_t)(i % 2), RECOMPUTE_NONE, NULL);
        expect_verified_words(&s, row[i].layout);
    }
}

static void other_axes(void **state)
{
    static const char *const layout[] = {"cp=2 dp=2 zero=3 weights=stream",
                                         "cp=3 dp=2 zero=1 weights=stream context=ring",
                                         "cp=2 tp=2 weights=stream",
                                         "cp=2 tp=2 sequence weights=stream context=ring",
                                         "cp=3 pp=2 zero=2 weights=stream",
                                         "cp=2 pp=2 schedule=zbv weights=stream context=ring",
                                         "cp=4 cp_heads=2 weights=stream",
                                         "cp=3 regather=false weights=stream",
                                         "cp=2 dp_replicate=2 dp_shard=2 zero=3 weights=stream"};
    static const Recompute recompute[] = {RECOMPUTE_FULL, RECOMPUTE_NONE, RECOMPUTE_SELECTIVE,
                                          RECOMPUTE_NAMED};
    (void)state;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        const Recompute how = recompute[i % 4];
        const VerifySettings s =
            settings("llama", F32, 2, how, how == RECOMPUTE_NAMED ? "mlp.gate,mlp.act" : NULL);
        expect_verified_words(&s, layout[i]);
    }
}

static void bf16_keeps_its_error(void **state)
{
    static const char *const layout[] = {"cp=2 weights=stream", "cp=5 weights=stream context=ring"};
    (void)state;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        const VerifySettings s = settings("llama", BF16, 2, RECOMPUTE_NONE, NULL);
        expect_verified_words(&s, layout[i]);
    }
}

static World world(int cp, int dp, int zero)
{
    World w = world_of(test_job_settings("llama", JOB_STEP));
    w.set.micros = 2;
    w.set.batch.sequences = 2;
    w.set.parallel.mesh = (MeshSizes){.cp = cp, .dp_shard = dp, .stream_weights = true};
    w.set.parallel.context = CONTEXT_GATHER;
    w.set.parallel.zero = zero;
    w.steps = STEPS;
    return w;
}

/* Elements of a kind that all ranks send in a step. */
static int64_t elements(const WorldResult *r, CommKind kind)
{
    assert_int_equal(r->sent[kind] % (STEPS * 8), 0);
    return r->sent[kind] / (STEPS * 8);
}

/* Elements of the matrices of all layers. */
static int64_t matrices(const ModelConfig *c)
{
    const int64_t heads = c->n_heads * c->head_size, keys = c->n_kv_heads * c->head_size;
    return c->n_layers * c->width * (2 * heads + 2 * keys + 3 * c->ff_width);
}

static void expect_sent(int cp, int dp, int zero, Recompute recompute)
{
    World w = world(cp, dp, zero);
    const ModelConfig *c = w.set.config;
    const int64_t keys =
        w.set.batch.sequences * w.set.batch.seq_len * c->n_kv_heads * c->head_size * c->n_layers;
    const int64_t times = dp * w.set.micros * (cp - 1);
    const int64_t psi_w = matrices(c), down = c->n_layers * c->width * c->ff_width;
    /* F runs again, but for the last GEMM of a layer, which no gradient reads. */
    const int64_t again = recompute == RECOMPUTE_FULL ? psi_w - down : 0;
    WorldResult r;
    w.set.compile.recompute = recompute;
    DO(world_run_job(&w, &r));
    assert_int_equal(elements(&r, COMM_SEND), times * (3 * psi_w + again));
    assert_int_equal(r.sent[COMM_RECV], 0);
    if (dp == 1 && zero == 0) { /* then nothing else is gathered or scattered */
        assert_int_equal(elements(&r, COMM_ALL_GATHER), times * 4 * keys);
        assert_int_equal(elements(&r, COMM_REDUCE_SCATTER), times * 2 * keys);
        assert_int_equal(elements(&r, COMM_ALL_REDUCE), 2 * (cp - 1) * (r.elements - psi_w));
    }
    assert_true(r.scalars_sent > 0);
    world_result_close(&r);
}

static void bytes_match_the_formula(void **state)
{
    (void)state;
    for (int cp = 2; cp <= 4; cp++) expect_sent(cp, 1, 0, RECOMPUTE_NONE);
    expect_sent(5, 1, 0, RECOMPUTE_SELECTIVE);
    expect_sent(3, 1, 0, RECOMPUTE_FULL);
    expect_sent(2, 3, 3, RECOMPUTE_NONE);
}

static void peaks(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        World w = world(2 + variant % 3, 1 + variant / 4, variant % 4);
        w.set.schedule = variant % 3 ? "gpipe" : "1f1b";
        w.set.split = variant % 2;
        w.set.parallel.context = variant % 3 == 1 ? CONTEXT_RING : CONTEXT_GATHER;
        w.set.compile.recompute = variant % 4 == 3 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        world_peaks_are_exact("weights=stream", w);
    }
}

/* The same bits whatever the order in which transfers complete. */
static void bits_are_fixed(void **state)
{
    char what[128];
    WorldResult one, two;
    World w = world(3, 2, 1);
    (void)state;
    DO(world_run_job(&w, &one));
    w.hostile = true;
    for (w.seed = 1; w.seed <= 3; w.seed++) {
        DO(world_run_job(&w, &two));
        if (!world_equal(&one, &two, what)) fail_msg("seed %d: %s", (int)w.seed, what);
        world_result_close(&two);
    }
    world_result_close(&one);
}

/* Bytes of state, step and work of a rank of a model whose weights are most of its memory. */
static void bytes_of(bool stream, int64_t width, DType dtype, size_t bytes[N_ARENAS])
{
    Arena arena;
    Job job;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    ModelConfig config = *set.config;
    config.width = width;
    config.n_heads = 8;
    config.n_kv_heads = 4;
    config.head_size = width / 8;
    config.ff_width = width * 11 / 4;
    config.n_layers = 6;
    set.config = &config;
    set.dtype = dtype;
    set.parallel.mesh = (MeshSizes){.cp = 4, .stream_weights = stream};
    set.parallel.context = CONTEXT_GATHER;
    set.parallel.zero = 3;
    DO(arena_open(&arena, "job", ARENA_PLENTY));
    DO(job_compile(&set, &arena, &job));
    for (int a = 0; a < N_ARENAS; a++) bytes[a] = job.linked.bytes[a];
    arena_close(&arena);
}

/* ZeRO 3 over cp gathers whole layers; a streamed weight is there in two shards of P. */
static void less_memory_than_zero3(void **state)
{
    static const DType dtype[] = {F32, BF16};
    (void)state;
    for (int i = 0; i < 2; i++) {
        size_t whole[N_ARENAS], stream[N_ARENAS];
        const int64_t width = 512, matrix = width * width * 11 / 4;
        bytes_of(false, width, dtype[i], whole);
        bytes_of(true, width, dtype[i], stream);
        /* at home both have 1/P of everything */
        const double ratio = (double)stream[ARENA_STATE] / (double)whole[ARENA_STATE];
        assert_true(ratio > 0.99 && ratio < 1.01);
        assert_true(stream[ARENA_STEP] + stream[ARENA_WORK] <
                    (whole[ARENA_STEP] + whole[ARENA_WORK]) / 2);
        /* besides two gradient shards and two shards of the largest matrix: the tokens' part */
        assert_true(stream[ARENA_WORK] > (size_t)matrix / 4 * 2 * (dtype_bytes(dtype[i]) + 4));
    }
}

static void compiles_not(const MeshSizes *mesh, int64_t width, const char *message)
{
    Arena arena;
    Job job;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    ModelConfig config = *set.config;
    config.n_kv_heads = 2;
    config.n_heads = 4;
    config.head_size = width;
    set.config = &config;
    set.parallel.mesh = *mesh;
    DO(arena_open(&arena, "job", ARENA_PLENTY));
    expect_error("weights", job_compile(&set, &arena, &job), ERR_CONFIG, message);
    arena_close(&arena);
}

static void refusals(void **state)
{
    ParallelSettings layout;
    (void)state;
    compiles_not(&(MeshSizes){.cp = 2, .tp = 4, .stream_weights = true}, 4,
                 "parallel.weights=stream with mesh.tp=4, which does not divide the 2 key heads");
    compiles_not(&(MeshSizes){.cp = 5, .tp = 1, .stream_weights = true}, 2,
                 "self_attn.k_proj.weight of a layer has 4 rows on a rank of tp, and mesh.cp=5 "
                 "ranks each need one");
    expect_error("words", layout_parse("dp=2 weights=stream", 19, &layout), ERR_CONFIG,
                 "weights=stream: has no effect without cp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(other_axes),
        cmocka_unit_test(bf16_keeps_its_error),
        cmocka_unit_test(bytes_match_the_formula),
        cmocka_unit_test(peaks),
        cmocka_unit_test(bits_are_fixed),
        cmocka_unit_test(less_memory_than_zero3),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
