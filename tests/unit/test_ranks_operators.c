/* test_ranks_operators.c -- one pack per operator, each with its own ZeRO level (OSDP): the bits of
 * packs that are not sharded, and of one pack per unit. */
#include "support/expect.h"

#include <math.h>
#include "support/world.h"

/* The parameters of the graph are in packs of their own. */
static void part_packs(Graph *g, bool apart)
{
    for (int i = 0; apart && i < g->n_params; i++) g->param[i].pack = (uint8_t)i;
}

/* With `siblings` two GEMMs read one x. In one pack they are fused, with sums in another order. */
static void build_layer(Graph *g, const ModelBuilder *b, bool apart, bool siblings)
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
    part_packs(g, apart);
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

static void layer_whole(Graph *g, const ModelBuilder *b) { build_layer(g, b, false, false); }
static void layer_apart(Graph *g, const ModelBuilder *b) { build_layer(g, b, true, false); }
static void pair_whole(Graph *g, const ModelBuilder *b) { build_layer(g, b, false, true); }
static void pair_apart(Graph *g, const ModelBuilder *b) { build_layer(g, b, true, true); }

static const UnitKind whole[] = {
    {"embed", build_embed}, {"layer", layer_whole}, {"head", build_head}};
static const UnitKind apart[] = {
    {"embed", build_embed}, {"layer", layer_apart}, {"head", build_head}};
static const UnitKind pairs[] = {
    {"embed", build_embed}, {"layer", pair_whole}, {"head", build_head}};
static const UnitKind parted[] = {
    {"embed", build_embed}, {"layer", pair_apart}, {"head", build_head}};
static const FamilyBuilder pair_by_unit = {pairs, 3, NULL, "layers.%d."};
static const FamilyBuilder pair_by_operator = {parted, 3, NULL, "layers.%d."};
static const FamilyBuilder by_unit = {whole, 3, NULL, "layers.%d."};
static const FamilyBuilder by_operator = {apart, 3, NULL, "layers.%d."};

enum { LAYERS = 2, PACKS = 2 + 4 * LAYERS };

static void run(const FamilyBuilder *family, const uint8_t *zero, WorldResult *out)
{
    ModelConfig c = *test_model("llama");
    World w = world_of(test_job_settings("llama", JOB_STEP));
    c.builder = family;
    c.n_layers = LAYERS;
    w.set.config = &c;
    w.set.micros = 1; /* sums of several have the order of their reductions */
    w.set.optim.clip = 0;
    w.set.parallel.mesh.dp_shard = 3;
    w.set.parallel.pack_zero = zero;
    if (world_run_job(&w, out) != OK) fail_msg("%s", err_text());
}

static void operators_have_levels(void **state)
{
    (void)state;
    static const uint8_t level[][PACKS] = {{0, 1, 2, 3, 0, 3, 2, 1, 0, 3},
                                           {3, 3, 0, 1, 2, 0, 3, 3, 1, 0},
                                           {1, 0, 3, 0, 3, 2, 2, 0, 3, 2}};
    static const uint8_t none[PACKS] = {0};
    WorldResult unit, one, mixed;
    char what[128];
    run(&by_unit, NULL, &unit);
    run(&by_operator, none, &one);
    for (int part = PART_MASTER; part < N_PARTS; part++)
        assert_true(world_differ(&unit, &one, (ParamPart)part) == 0);
    for (int s = 0; s < 5; s++) /* the norm is folded by pack */
        assert_true(fabs(unit.norm[s] - one.norm[s]) <= 1e-14 * one.norm[s]);
    for (size_t i = 0; i < sizeof level / sizeof level[0]; i++) {
        run(&by_operator, level[i], &mixed);
        if (!world_equal(&one, &mixed, what)) fail_msg("levels %zu: %s differ", i, what);
        assert_true(mixed.gathered > 0);
        world_result_close(&mixed);
    }
    world_result_close(&one);
    world_result_close(&unit);
}

/* Weights in two packs are not adjacent, so their GEMMs must not be fused. */
static void packs_are_not_fused(void **state)
{
    (void)state;
    WorldResult unit, one;
    run(&pair_by_unit, NULL, &unit);
    run(&pair_by_operator, NULL, &one);
    assert_true(world_differ_all(&unit, &one) <= 1e-12);
    world_result_close(&one);
    world_result_close(&unit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(operators_have_levels),
                                       cmocka_unit_test(packs_are_not_fused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
