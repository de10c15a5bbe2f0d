/* test_ranks_operators.c -- weights with ZeRO levels of their own (OSDP): the bits of one pack per
 * unit that is not sharded. */
#include "support/expect.h"

#include <math.h>
#include <stdio.h>
#include "support/world.h"

/* With `siblings` two GEMMs read one x. In one pack they are fused, with sums in another order. */
static void build_layer(Graph *g, const ModelBuilder *b, bool siblings)
{
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, b->rows, c->width);
    const Value a = rmsnorm(g, x, vector(g, "norm.weight", c->width, INIT_ONES), c->norm_eps);
    const Value up = linear(g, a, weight2(g, "up.weight", c->ff_width, c->width, 0.1), NO_VALUE);
    Value h = NO_VALUE;
    if (!siblings) h = gelu(g, up);
    if (siblings)
        h = swiglu(g, up,
                   linear(g, a, weight2(g, "gate.weight", c->ff_width, c->width, 0.1), NO_VALUE));
    h = linear(g, h, weight2(g, "mid.weight", c->ff_width, c->ff_width, 0.1), NO_VALUE);
    const Value down = weight2(g, "down.weight", c->width, c->ff_width, 0.1);
    stream_out(g, add(g, x, linear(g, h, down, NO_VALUE)));
}

static void build_embed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    stream_out(g, embedding(g, input(g, INPUT_TOKENS, b->rows),
                            weight2(g, "embed.weight", c->vocab, c->width, 0.1)));
}

/* The embedding's weights are tied: the head has them in the pack of another unit. */
static void build_head(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = head_in(g, b);
    const Value a = rmsnorm(g, x, vector(g, "last.weight", c->width, INIT_ONES), c->norm_eps);
    head_out(g, b, a, weight2(g, "embed.weight", c->vocab, c->width, 0.1));
}

static void build_plain(Graph *g, const ModelBuilder *b) { build_layer(g, b, false); }
static void build_pair(Graph *g, const ModelBuilder *b) { build_layer(g, b, true); }

static const UnitKind plain[] = {
    {"embed", build_embed}, {"layer", build_plain}, {"head", build_head}};
static const UnitKind pairs[] = {
    {"embed", build_embed}, {"layer", build_pair}, {"head", build_head}};
static const FamilyBuilder of_plain = {plain, 3, NULL, "layers.%d."};
static const FamilyBuilder of_pairs = {pairs, 3, NULL, "layers.%d."};

enum { LAYERS = 2, WEIGHTS = 4, LEVELS = 2 + WEIGHTS * LAYERS };

/* Units whose weights have these levels, in the order of the model; NULL: ZeRO 0 by unit. */
static void set_levels(const int *level, ParallelSettings *p)
{
    static const char *const weight[WEIGHTS] = {"norm", "up", "mid", "down"};
    static UnitOptions unit[LAYERS + 2];
    static char rules[LAYERS][128];
    memset(unit, 0, sizeof unit);
    p->units = unit;
    if (!level) return;
    unit[0].zero = level[0];
    unit[LAYERS + 1].zero = level[LEVELS - 1];
    for (int l = 0; l < LAYERS; l++) {
        int n = 0;
        for (int k = 0; k < WEIGHTS; k++)
            n += snprintf(rules[l] + n, sizeof rules[l] - (size_t)n, "%s%s.weight=%d", k ? "," : "",
                          weight[k], level[1 + l * WEIGHTS + k]);
        unit[1 + l].zero_weights = rules[l];
    }
}

static void run(const FamilyBuilder *family, const int *level, WorldResult *out)
{
    ModelConfig c = *test_model("llama");
    World w = world_of(test_job_settings("llama", JOB_STEP));
    c.builder = family;
    c.n_layers = LAYERS;
    w.set.config = &c;
    w.set.micros = 1; /* sums of several have the order of their reductions */
    w.set.optim.clip = 0;
    w.set.parallel.mesh.dp_shard = 3;
    set_levels(level, &w.set.parallel);
    if (world_run_job(&w, out) != OK) fail_msg("%s", err_text());
}

/* Weights, moments and losses have the bits of one pack per unit; the norm is folded by pack. */
static void equals_unit(const WorldResult *unit, const WorldResult *mixed)
{
    for (int part = PART_MASTER; part < N_PARTS; part++)
        assert_true(world_differ(unit, mixed, (ParamPart)part) == 0);
    for (int s = 0; s < 5; s++)
        assert_true(fabs(unit->norm[s] - mixed->norm[s]) <= 1e-14 * unit->norm[s]);
}

static void operators_have_levels(void **state)
{
    (void)state;
    static const int level[][LEVELS] = {{0, 1, 2, 3, 0, 3, 2, 1, 0, 3},
                                        {3, 3, 0, 1, 2, 0, 3, 3, 1, 0},
                                        {1, 0, 3, 0, 3, 2, 2, 0, 3, 2}};
    WorldResult unit, mixed;
    run(&of_plain, NULL, &unit);
    for (size_t i = 0; i < sizeof level / sizeof level[0]; i++) {
        run(&of_plain, level[i], &mixed);
        equals_unit(&unit, &mixed);
        assert_true(mixed.gathered > 0);
        world_result_close(&mixed);
    }
    world_result_close(&unit);
}

/* Weights in two packs are not adjacent, so their GEMMs must not be fused: not in a layer where
 * both have one level either, since layers of a kind share a program. */
static void packs_are_not_fused(void **state)
{
    (void)state;
    static const int level[] = {0, 0, 3, 0, 0, 0, 1, 1, 1, 0};
    WorldResult unit, mixed;
    run(&of_pairs, NULL, &unit);
    run(&of_pairs, level, &mixed);
    assert_true(world_differ_all(&unit, &mixed) <= 1e-12);
    world_result_close(&mixed);
    world_result_close(&unit);
}

/* A rule that names no weight or no level, or that decides nothing, is refused. */
static void bad_rules_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"mpl.*=3", "run.yaml:7: parallel.zero_weights=mpl.*: matches no weight"},
        {"mlp.*=3,mlp.down_proj.*=1", "the first one decides"},
        {"mlp.*", "a ZeRO level from 0 to 3"},
        {"mlp.*=4", "a ZeRO level from 0 to 3"}};
    Arena arena;
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        JobSettings set = test_job_settings("llama", JOB_STEP);
        Job *job;
        set.parallel.mesh.dp_shard = 2;
        set.parallel.zero_weights = bad[i][0];
        set.origin.zero_weights = "run.yaml:7";
        DO(ARENA_NEW(&arena, 1, &job));
        expect_error(bad[i][0], job_share(&set, &arena, job), ERR_CONFIG, bad[i][1]);
    }
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(operators_have_levels),
                                       cmocka_unit_test(packs_are_not_fused),
                                       cmocka_unit_test(bad_rules_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
