/* test_unit_options.c -- options of single units: recomputation, offload, ZeRO, sequence and
 * context parallelism that differ from layer to layer. Recomputation, offload and ZeRO keep the
 * bits of the uniform run with the same order of sums; other strategies agree with one rank within
 * 1e-10. Memory is exact to the byte in each case. */
#include "support/expect.h"

#include <stdio.h>
#include <string.h>
#include "support/world.h"

enum { LAYERS = 5, UNITS = LAYERS + 2 };

static ModelConfig config;

static World world(void)
{
    World w = world_of(test_job_settings("llama", JOB_STEP));
    config = *test_model("llama");
    config.n_layers = LAYERS;
    w.set.config = &config;
    w.set.micros = 3;
    w.set.optim.clip = 0.4;
    w.steps = 2;
    w.validate = true;
    return w;
}

static void all_alike(const World *w, UnitOptions *units)
{
    for (int u = 0; u < UNITS; u++) units[u] = job_unit_options(&w->set, u);
}

static void run(const char *name, const World *w, WorldResult *out)
{
    if (world_run_job(w, out) != OK) fail_msg("%s: %s", name, err_text());
}

static void expect_bits(const char *name, const World *uniform, const World *mixed)
{
    WorldResult a, b;
    char what[128];
    run(name, uniform, &a);
    run(name, mixed, &b);
    if (!world_equal(&a, &b, what)) fail_msg("%s: %s", name, what);
    world_result_close(&a);
    world_result_close(&b);
    world_peaks_are_exact(name, *mixed);
}

static void expect_near(const char *name, const World *mixed)
{
    World one = world();
    const MeshSizes *m = &mixed->set.parallel.mesh;
    WorldResult a, b;
    one.set.micros = mixed->set.micros * (m->dp_shard ? m->dp_shard : 1);
    run(name, &one, &a);
    run(name, mixed, &b);
    const double off = world_differ_all(&a, &b);
    if (!(off <= 1e-10)) fail_msg("%s: off by %g", name, off);
    world_result_close(&a);
    world_result_close(&b);
    world_peaks_are_exact(name, *mixed);
}

/* Layers recompute nothing, cheap ops, everything, named values; some offload. */
static void mix_recompute(const World *w, UnitOptions *units, int from)
{
    all_alike(w, units);
    for (int i = 0; i < LAYERS; i++) {
        UnitOptions *o = &units[1 + i];
        o->recompute = (Recompute)((i + from) % 4);
        if (o->recompute == RECOMPUTE_NAMED) o->recompute_names = "mlp.*";
        if (i == 4 - from % 2 && o->recompute != RECOMPUTE_FULL) o->offload_names = "mid";
    }
}

static const struct {
    const char *schedule;
    MeshSizes mesh;
    int zero;
} places[] = {
    {"1f1b", {0}, 0},          {"gpipe", {.dp_shard = 2}, 3},
    {"1f1b", {.pp = 2}, 0},    {"gpipe", {.pp = 3, .tp = 2}, 0},
    {"zbv", {.pp = 2}, 0},     {"interleaved", {.pp = 2, .dp_shard = 2}, 1},
    {"seq1f1b", {.pp = 2}, 0}, {"1f1b", {.cp = 2}, 2},
};

/* Ranges of layers end within stages and chunks. */
static void recompute_by_layer(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        UnitOptions units[UNITS];
        char name[64];
        World uniform = world();
        uniform.set.schedule = places[i].schedule;
        uniform.set.micros = 4;
        uniform.set.parallel.mesh = places[i].mesh;
        uniform.set.parallel.zero = places[i].zero;
        World mixed = uniform;
        mix_recompute(&uniform, units, (int)i);
        mixed.set.parallel.units = units;
        snprintf(name, sizeof name, "recompute, place %d", (int)i);
        expect_bits(name, &uniform, &mixed);
    }
}

/* As many layers recompute everything as the memory of the others needs: bytes are between those of
 * the uniform runs, and each layer that recomputes saves the same number of them. */
static void memory_falls_by_layer(void **state)
{
    size_t work[LAYERS + 1];
    UnitOptions units[UNITS];
    (void)state;
    for (int n = 0; n <= LAYERS; n++) {
        static Job job;
        Arena a;
        World w = world();
        w.set.schedule = "gpipe";
        all_alike(&w, units);
        for (int i = 0; i < n; i++) units[1 + i].recompute = RECOMPUTE_FULL;
        w.set.parallel.units = units;
        DO(arena_open(&a, "memory", ARENA_PLENTY));
        DO(job_compile(&w.set, &a, &job));
        assert_int_equal(job.programs.n_classes, n == 0 || n == LAYERS ? 3 : 4);
        const Program *none = programs_of_unit(&job.programs, LAYERS);
        const Program *full = programs_of_unit(&job.programs, 1);
        work[n] = job.linked.bytes[ARENA_WORK];
        if (n > 1 && n < LAYERS) {
            const size_t saved = none->bytes[REGION_FRAME_I] + none->bytes[REGION_FRAME_W] -
                                 full->bytes[REGION_FRAME_I] - full->bytes[REGION_FRAME_W];
            assert_int_equal(work[n - 1] - work[n], saved * (size_t)w.set.micros);
        }
        arena_close(&a);
    }
    for (int n = 0; n < LAYERS; n++) assert_true(work[n] > work[n + 1]);
}

static const int levels[][UNITS] = {
    {0, 3, 3, 1, 1, 0, 2}, {3, 0, 1, 2, 3, 0, 1}, {1, 1, 1, 0, 0, 0, 3}, {2, 3, 2, 3, 0, 1, 0}};

/* The bits of ZeRO 0 with the same reductions: levels 2 and 3 reduce after each micro-batch. */
static void zero_by_layer(void **state)
{
    static const MeshSizes meshes[] = {
        {.dp_shard = 2}, {.dp_shard = 3}, {.dp_shard = 2, .tp = 2}, {.dp_shard = 2, .pp = 2}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        UnitOptions plain[UNITS], units[UNITS];
        char name[64];
        World uniform = world();
        uniform.set.parallel.mesh = meshes[i];
        World mixed = uniform;
        all_alike(&uniform, plain);
        all_alike(&uniform, units);
        for (int u = 0; u < UNITS; u++) {
            units[u].zero = levels[i][u];
            plain[u].reduce_each = levels[i][u] >= 2;
        }
        uniform.set.parallel.units = plain;
        mixed.set.parallel.units = units;
        snprintf(name, sizeof name, "zero, mesh %d", i);
        expect_bits(name, &uniform, &mixed);
    }
}

/* The state of a unit has the size that it has in the uniform run of its level. */
static void state_follows_levels(void **state)
{
    size_t of[4][UNITS]; /* bytes of the home by level and unit */
    (void)state;
    for (int run = 0; run < 5; run++) {
        static Job job;
        Arena a;
        UnitOptions units[UNITS];
        World w = world();
        w.set.parallel.mesh.dp_shard = 3;
        w.set.parallel.rank = 1;
        all_alike(&w, units);
        for (int u = 0; u < UNITS; u++) units[u].zero = run < 4 ? run : levels[1][u];
        w.set.parallel.units = units;
        DO(arena_open(&a, "state", ARENA_PLENTY));
        DO(job_compile(&w.set, &a, &job));
        for (int u = 0; u < UNITS; u++) {
            const Span shard = job.linked.pack[u].mine.shard;
            if (run < 4)
                of[run][u] = (size_t)(shard.hi - shard.lo);
            else
                assert_int_equal(of[levels[1][u]][u], shard.hi - shard.lo);
            assert_int_equal(job.switches[u].sharded, units[u].zero > 0);
        }
        arena_close(&a);
    }
}

/* Units that shard the stream by tokens follow and precede units that do not. */
static void sequence_by_layer(void **state)
{
    (void)state;
    for (int bits = 1; bits < 1 << UNITS; bits = 3 * bits + 2) {
        UnitOptions units[UNITS];
        char name[64];
        World w = world();
        w.set.parallel.mesh.tp = bits % 3 ? 2 : 3;
        w.set.parallel.mesh.pp = bits % 5 ? 1 : 2;
        all_alike(&w, units);
        for (int u = 0; u < UNITS; u++) {
            units[u].sequence = bits >> u & 1;
            units[u].recompute = (Recompute)((u + bits) % 3);
            units[u].keep_gathered = u % 2;
        }
        w.set.parallel.units = units;
        snprintf(name, sizeof name, "sequence, units 0x%x", (unsigned)bits);
        expect_near(name, &w);
    }
}

/* Every way to shard attention next to every other, with the token maps that AUTO chooses. */
static void context_by_layer(void **state)
{
    static const ContextKind kinds[][LAYERS] = {
        {CONTEXT_GATHER, CONTEXT_RING, CONTEXT_RING, CONTEXT_GATHER, CONTEXT_AUTO},
        {CONTEXT_ULYSSES, CONTEXT_RING, CONTEXT_GATHER, CONTEXT_ULYSSES, CONTEXT_RING},
        {CONTEXT_ULYSSES, CONTEXT_ULYSSES, CONTEXT_ULYSSES, CONTEXT_ULYSSES, CONTEXT_ULYSSES},
        {CONTEXT_RING, CONTEXT_LIGHTSEQ, CONTEXT_TOKEN_RING, CONTEXT_ULYSSES, CONTEXT_DOUBLE_RING},
        {CONTEXT_TOKEN_RING, CONTEXT_GATHER, CONTEXT_RING, CONTEXT_AUTO, CONTEXT_TOKEN_RING}};
    enum { N_MIXES = sizeof kinds / sizeof *kinds };
    (void)state;
    for (int i = 0; i < 2 * N_MIXES; i++) {
        UnitOptions units[UNITS];
        char name[64];
        World w = world();
        /* Documents of the test cross sequences, which no plan that leaves out pairs can have. */
        const int64_t sequences = i % N_MIXES < 3 ? 2 : 1;
        w.set.batch.sequences = sequences;
        w.set.parallel.mesh.cp = 2;
        w.set.parallel.mesh.tp = 1 + i / N_MIXES;
        w.set.parallel.mesh.pp = 1 + i % 2;
        all_alike(&w, units);
        for (int l = 0; l < LAYERS; l++) units[1 + l].context = kinds[i % N_MIXES][l];
        for (int u = 0; u < UNITS; u++) units[u].zero = (u + i) % 4;
        w.set.parallel.units = units;
        snprintf(name, sizeof name, "context %d", i);
        World one = world();
        one.set.batch.sequences = sequences;
        WorldResult a, b;
        run(name, &one, &a);
        run(name, &w, &b);
        const double off = world_differ_all(&a, &b);
        if (!(off <= 1e-10)) fail_msg("%s: off by %g", name, off);
        world_result_close(&a);
        world_result_close(&b);
    }
}

/* A stage that stores frames of another stage has the sizes of that stage's layers. */
static void evicted_frames(void **state)
{
    (void)state;
    for (int by_stage = 0; by_stage < 2; by_stage++) {
        UnitOptions units[UNITS];
        World uniform = world();
        uniform.set.micros = 6;
        uniform.set.parallel.mesh.pp = 6;
        uniform.validate = false;
        World mixed = uniform;
        mix_recompute(&uniform, units, 1);
        mixed.set.parallel.evict = true;
        if (by_stage) {
            mixed.set.stage[0] = (StageRecompute){RECOMPUTE_FULL, 1, 2};
            mixed.set.n_stage_rules = 1;
        } else {
            mixed.set.parallel.units = units;
        }
        expect_bits("evict", &uniform, &mixed);
    }
}

static void bad_options(void **state)
{
    UnitOptions units[UNITS];
    World w = world();
    static Job job;
    Arena a;
    (void)state;
    DO(arena_open(&a, "bad", ARENA_PLENTY));
    all_alike(&w, units);
    w.set.parallel.units = units;
    units[2].zero = 4;
    expect_error("zero", job_compile(&w.set, &a, &job), ERR_CONFIG, "levels are 0 to 3");
    units[2].zero = 0;
    units[3].recompute = RECOMPUTE_NAMED;
    units[3].recompute_names = "mlp.act,nothing";
    expect_error("name", job_compile(&w.set, &a, &job), ERR_CONFIG, "nothing");
    units[3].recompute_names = "logits";
    assert_int_equal(job_compile(&w.set, &a, &job), ERR_CONFIG); /* no layer has it */
    units[3].recompute = RECOMPUTE_FULL;
    units[3].offload_names = "mlp.act";
    expect_error("offload", job_compile(&w.set, &a, &job), ERR_CONFIG,
                 "with parallel.recompute=full nothing is kept");
    units[3].offload_names = NULL;
    w.set.n_stage_rules = 1;
    expect_error("stages", job_compile(&w.set, &a, &job), ERR_CONFIG, "rules for stages");
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recompute_by_layer), cmocka_unit_test(memory_falls_by_layer),
        cmocka_unit_test(zero_by_layer),      cmocka_unit_test(state_follows_levels),
        cmocka_unit_test(sequence_by_layer),  cmocka_unit_test(context_by_layer),
        cmocka_unit_test(evicted_frames),     cmocka_unit_test(bad_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
