/* test_ranks_coded.c -- coded weights: quantized once, at home, and gathered as codes of 8 bits.
 * Losses, weights and moments have the bits of weights that every program quantizes for itself,
 * under every layout; bytes sent are those of the codes, and memory is exact. */
#include "support/expect.h"

#include <math.h>
#include <stdio.h>
#include "device/cpu/cpu.h"
#include "support/shadow.h"
#include "support/world.h"

static World world(const char *model, Scaling scaling)
{
    static ModelConfig with_marks;
    World w = world_of(test_job_settings(model, JOB_STEP));
    w.set.dtype = BF16;
    if (scaling == SCALING_DELAYED) {
        with_marks = *w.set.config;
        with_marks.fp8_marks = true;
        w.set.config = &with_marks;
    }
    w.set.compile.fp8 = (Fp8Options){.names = "*",
                                     .compute = E4M3,
                                     .gradient = scaling == SCALING_BLOCK ? E4M3 : E5M2,
                                     .scaling = scaling,
                                     .experts = true,
                                     .code_weights = true};
    w.set.optim.clip = 0;   /* the norm adds pack by pack, and packs differ */
    w.set.optim.block = 64; /* homes begin anywhere in a weight */
    w.init = true;          /* programs read weights rounded to bf16 */
    w.steps = 3;
    DO(device_cpu_open(NULL, &w.device));
    return w;
}

/* Losses and all parts, to the bit; not the norm. */
static void expect_same(const char *name, const WorldResult *a, WorldResult *b)
{
    char what[128];
    for (int s = 0; s < WORLD_STEPS; s++) b->norm[s] = a->norm[s];
    if (!world_equal(a, b, what)) fail_msg("%s: %s", name, what);
}

static void run(const char *name, const World *w, WorldResult *out)
{
    if (world_run_job(w, out) != OK) fail_msg("%s: %s", name, err_text());
    int64_t sent = 0;
    for (int k = 0; k < N_COMM_KINDS; k++) sent += out->sent[k];
    if (sent != out->predicted && !w->validate) /* of the steps */
        fail_msg("%s: %lld bytes sent, %lld predicted", name, (long long)sent,
                 (long long)out->predicted);
}

/* Runs the layout with coded weights, and with weights quantized where they are read. */
static void same_bits(const char *name, World w)
{
    WorldResult coded, plain;
    const MeshSizes *m = &w.set.parallel.mesh;
    const bool gathers = w.set.parallel.zero > 0 && (m->dp_shard > 1 || m->cp > 1);
    run(name, &w, &coded);
    w.set.compile.fp8.code_weights = false;
    run(name, &w, &plain);
    expect_same(name, &plain, &coded);
    const int64_t sent[] = {coded.sent[COMM_ALL_GATHER], plain.sent[COMM_ALL_GATHER]};
    if (gathers && !(sent[0] < sent[1]))
        fail_msg("%s: %lld and %lld bytes", name, (long long)sent[0], (long long)sent[1]);
    size_t bytes[2] = {0};
    for (int r = 0; r < coded.ranks; r++) {
        bytes[0] += coded.bytes[r][ARENA_STATE];
        bytes[1] += plain.bytes[r][ARENA_STATE];
    }
    if (!(bytes[0] < bytes[1]))
        fail_msg("%s: states of %zu and %zu bytes", name, bytes[0], bytes[1]);
    world_result_close(&coded);
    world_result_close(&plain);
}

static void bits_are_those_of_quantized_weights(void **state)
{
    static const MeshSizes mesh[] = {{0},
                                     {.dp_shard = 3},
                                     {.tp = 2},
                                     {.cp = 2},
                                     {.pp = 2, .dp_shard = 2},
                                     {.tp = 3},
                                     {.dp_shard = 2, .tp = 2},
                                     {.dp_replicate = 2, .dp_shard = 2}};
    (void)state;
    for (int i = 0; i < 3 * 8 * 4; i++) {
        const Scaling scaling = (Scaling)(i / 32);
        const int m = i / 4 % 8, zero = i % 4;
        World w = world(i % 3 ? "llama" : "qwen2", scaling);
        char name[64];
        /* Coded q, k and v share a scale; over cp their GEMMs are apart, with one each. */
        if (scaling == SCALING_DELAYED && mesh[m].cp > 1) continue;
        snprintf(name, sizeof name, "scaling %d, mesh %d, zero %d", (int)scaling, m, zero);
        w.set.parallel.mesh = mesh[m];
        w.set.parallel.zero = zero;
        w.set.parallel.sequence = mesh[m].tp == 2;
        w.validate = i % 2;
        same_bits(name, w);
    }
}

/* Experts have scales of their own, of their rows and matrices; on other ranks too. */
static void experts_have_the_same_bits(void **state)
{
    static const MeshSizes mesh[] = {{0},
                                     {.dp_shard = 2},
                                     {.tp = 2},
                                     {.dp_shard = 2, .ep = 2},
                                     {.dp_shard = 4, .ep = 2},
                                     {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2},
                                     {.dp_shard = 2, .pp = 2}};
    (void)state;
    for (int i = 0; i < 3 * 7; i++) {
        World w = world(i % 2 ? "qwen2_moe" : "mixtral", (Scaling)(i / 7));
        ModelConfig config = *w.set.config;
        char name[64];
        snprintf(name, sizeof name, "experts, scaling %d, mesh %d", i / 7, i % 7);
        config.experts.n = 4;
        w.set.config = &config;
        w.set.parallel.mesh = mesh[i % 7];
        w.set.parallel.zero = i % 4;
        w.set.parallel.sequence = mesh[i % 7].tp > 1;
        w.steps = 2;
        same_bits(name, w);
    }
}

/* The grouped GEMMs do run in FP8, and their weights are coded. */
static void experts_run_in_fp8(void **state)
{
    World w = world("mixtral", SCALING_TENSOR), dense = world("mixtral", SCALING_TENSOR);
    WorldResult a, b;
    char what[128];
    (void)state;
    dense.set.compile.fp8.experts = false;
    run("experts", &w, &a);
    run("dense", &dense, &b);
    assert_false(world_equal(&a, &b, what));
    assert_true(a.bytes[0][ARENA_STATE] < b.bytes[0][ARENA_STATE]);
    for (int s = 0; s < w.steps; s++)
        if (fabs(a.loss[s] - b.loss[s]) > ldexp(b.loss[s], -5))
            fail_msg("step %d: loss %.6g, without %.6g", s, a.loss[s], b.loss[s]);
    world_result_close(&a);
    world_result_close(&b);
    world_peaks_are_exact("experts", w);
}

/* Recomputation, schedules, patterns that leave weights out, and ZeRO levels of single weights. */
static void options_do_not_matter(void **state)
{
    static const char *const patterns[] = {"mlp.*", "*q_proj*,*down_proj*"};
    (void)state;
    for (int i = 0; i < 3 * 6; i++) {
        World w = world("llama", (Scaling)(i / 6));
        char name[64];
        snprintf(name, sizeof name, "scaling %d, option %d", i / 6, i % 6);
        w.set.parallel.mesh.dp_shard = 2;
        w.set.parallel.zero = 3;
        if (i % 6 == 0) w.set.compile.recompute = RECOMPUTE_FULL;
        if (i % 6 == 1) w.set.compile.recompute = RECOMPUTE_SELECTIVE;
        if (i % 6 == 2) w.set.parallel.mesh.pp = 2, w.set.schedule = "zbv", w.set.micros = 4;
        if (i % 6 == 2) w.set.parallel.zero = 1;
        if (i % 6 == 3) w.set.parallel.zero = 1, w.set.parallel.zero_weights = "*k_proj*=3";
        if (i % 6 >= 4) w.set.compile.fp8.names = patterns[i % 2];
        same_bits(name, w);
    }
}

/* Device memory that the host cannot touch, and queues that run late. */
static void shadow_has_the_same_bits(void **state)
{
    (void)state;
    for (int scaling = SCALING_TENSOR; scaling <= SCALING_DELAYED; scaling++) {
        World w = world("llama", (Scaling)scaling);
        WorldResult host, device;
        w.device = &device_ref;
        w.set.parallel.mesh = (MeshSizes){.dp_shard = 2, .tp = 2};
        w.set.parallel.zero = 3;
        run("host", &w, &host);
        w.device = &device_shadow;
        shadow_set((uint64_t)scaling, SHADOW_COIN);
        run("shadow", &w, &device);
        char what[128];
        if (!world_equal(&host, &device, what)) fail_msg("scaling %d: %s", scaling, what);
        world_result_close(&host);
        world_result_close(&device);
    }
}

/* Elements of the weights of the layers' GEMMs, and of all others. */
static void count_elements(const World *w, int64_t *coded, int64_t *others)
{
    Arena a;
    Job job;
    DO(arena_open(&a, "count", ARENA_PLENTY));
    DO(job_compile(&w->set, &a, &job));
    *coded = *others = 0;
    for (int p = 0; p < job.model.n_packs; p++)
        *(pack_is_coded(&job.model.pack[p]) ? coded : others) += job.model.pack[p].count;
    arena_close(&a);
}

/* With n ranks a step sends (n - 1) x (coded weights, and 2 bytes for each other one) for each time
 * they are gathered, and 2 (n - 1) x 4 bytes for each scale. */
static void bytes_are_those_of_codes(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++)
        for (int zero = 0; zero <= 2; zero++) {
            World w = world("llama", SCALING_TENSOR), gradients = w;
            WorldResult r, plain;
            int64_t coded, others;
            enum { SCALES = 7 }; /* weights of a layer */
            w.steps = 1;
            w.set.parallel.mesh.dp_shard = n;
            w.set.parallel.zero = zero;
            count_elements(&w, &coded, &others);
            assert_true(coded > others / 4);
            run("codes", &w, &r);
            assert_int_equal(r.sent[COMM_ALL_GATHER], zero ? (n - 1) * (coded + 2 * others) : 0);
            gradients = w;
            gradients.set.compile.fp8.code_weights = false;
            run("gradients", &gradients, &plain);
            /* scales are equal on ranks that do not shard the weights */
            assert_int_equal(r.sent[COMM_ALL_REDUCE] - plain.sent[COMM_ALL_REDUCE],
                             zero ? 2 * (n - 1) * 4 * SCALES * w.set.config->n_layers : 0);
            world_result_close(&r);
            world_result_close(&plain);
        }
}

/* An infinite element, and a weight that is all 0: parts have the codes of whole weights. NaN and
 * cells of zeros are in test_kernels_codes.c. */
static void spoil(Rank *r)
{
    for (int pack = 0; pack < r->settings.program->model->n_packs; pack++)
        for (int i = 0; i < rank_pieces(r, pack); i++) {
            const RankPiece p = rank_piece(r, pack, i);
            const Tensor x = rank_piece_data(r, &p, PART_MASTER);
            const char *name = r->settings.program->model->param[p.param].name;
            for (int64_t k = 0; k < x.n[0]; k++) {
                const int64_t at = rank_piece_global(&p, k);
                if (strstr(name, "0.mlp.up_proj")) ((float *)x.data)[k] = 0;
                if (strstr(name, "1.mlp.down_proj") && at == 77) ((float *)x.data)[k] = INFINITY;
            }
        }
    DO(rank_publish(r));
}

static void odd_weights_have_the_same_codes(void **state)
{
    (void)state;
    for (int scaling = SCALING_TENSOR; scaling <= SCALING_BLOCK; scaling++) {
        World w = world("llama", (Scaling)scaling);
        w.set.parallel.mesh.dp_shard = 3;
        w.set.parallel.zero = 2;
        w.opened = spoil;
        same_bits("spoilt", w);
    }
}

static void memory_is_exact(void **state)
{
    (void)state;
    for (int scaling = SCALING_TENSOR; scaling <= SCALING_DELAYED; scaling++) {
        World w = world("llama", (Scaling)scaling);
        world_peaks_are_exact("one rank", w);
        w.set.parallel.mesh = (MeshSizes){.tp = 2, .dp_shard = 2};
        w.set.parallel.sequence = true;
        w.set.parallel.zero = 1;
        world_peaks_are_exact("tp", w);
        w.set.parallel = (ParallelSettings){.mesh = {.dp_shard = 2}, .zero = 3};
        world_peaks_are_exact("zero 3", w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_quantized_weights),
        cmocka_unit_test(experts_have_the_same_bits),
        cmocka_unit_test(experts_run_in_fp8),
        cmocka_unit_test(options_do_not_matter),
        cmocka_unit_test(shadow_has_the_same_bits),
        cmocka_unit_test(bytes_are_those_of_codes),
        cmocka_unit_test(odd_weights_have_the_same_codes),
        cmocka_unit_test(memory_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
