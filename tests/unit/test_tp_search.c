/* test_tp_search.c -- the search for layouts of weights along tp: against all layouts, each placed
 * as a whole with its weights pinned, and on costs that are made to have a known answer. */
#include "place_test.h"

#include <math.h>

#include "compile/place.h"
#include "compile/tp_search.h"

/* The seconds of a unit whose weights are pinned so: the search of place over the whole graph. */
typedef struct {
    const Model *m;
    int kind;
    CompileOptions o;
    TpSearchOptions set;
    Arena arena;
    int tried, beamed;
} Bed;

/* Sizes that no op's fixed cost hides. */
static ModelConfig large(const char *name)
{
    ModelConfig c = *test_model(name);
    c.width *= 64;
    c.ff_width *= 64;
    c.head_size *= 64;
    c.vocab *= 512;
    c.experts.width *= 64;
    c.max_positions = 4096;
    return c;
}

/* The element price of the weights with these layouts. */
static double state_seconds(const Bed *b, const TpLayout *layout, int tp)
{
    const Graph *g = &b->m->kind[b->kind];
    double elements = 0;
    for (int i = 0; i < g->n_params; i++) {
        if (!tp_weight_is_open(g, i)) continue;
        const int bias = tp_weight_bias(g, i);
        const double count = (double)g->param[i].n[0] * (double)g->param[i].n[1];
        elements += layout[i] == TP_WHOLE ? count : count / tp;
        if (bias >= 0) elements += (double)g->param[bias].n[0] / (layout[i] == TP_OUTPUTS ? tp : 1);
    }
    return elements * b->set.element_s / b->set.micros;
}

static int tp_axis(const Mesh *m)
{
    int axis = 0;
    while (!(mesh_axes(m, VIEW_DENSE, "tp") >> axis & 1)) axis++;
    return axis;
}

static void sums(const Bed *b, PlaceContext *a)
{
    double *sum_s;
    DO(ARENA_NEW(a->arena, a->g->n_values + 1, &sum_s));
    for (Value v = 0; v < a->g->n_values; v++)
        if (a->g->value[v].role == ROLE_DPARAM)
            sum_s[v] = cost_transfer_seconds(a->rates, COMM_ALL_REDUCE, a->group,
                                             (double)dims_count(&a->g->value[v].dims) * 4) /
                       b->set.micros;
    a->sum_s = sum_s;
}

/* False if no placement has these layouts. */
static bool pinned_seconds(Bed *b, const TpLayout *layout, double *out)
{
    const Graph *unit = &b->m->kind[b->kind];
    const size_t mark = arena_mark(&b->arena);
    char rules[1024] = "";
    for (int i = 0; i < unit->n_params; i++)
        if (tp_weight_is_open(unit, i))
            snprintf(rules + strlen(rules), sizeof rules - strlen(rules), "%s%s/%s=%s",
                     rules[0] ? "," : "", unit->kind, unit->param[i].name,
                     tp_layout_name(layout[i]));
    const int tp = b->o.mesh->view[VIEW_DENSE].size[tp_axis(b->o.mesh)];
    const TpCheck check = {"rules", rules, b->o.strategy, b->m, tp, false, &b->arena};
    if (tp_weights_check(&check) != OK) return false;
    CompileOptions o = b->o;
    Strategy s;
    Graph g;
    PlaceContext *a;
    RowChoice *choice;
    unsigned *pinned;
    DO(tp_weights_strategy(b->o.strategy, b->m, rules, b->o.mesh, &b->arena, &s));
    o.strategy = &s;
    DO(graph_clone(unit, &b->arena, &g));
    DO(differentiate(&g));
    PlacedGraph p = {.g = &g, .mesh = o.mesh};
    DO(place_open(&p, &o, &b->arena, &pinned));
    DO(place_open_axis(&p, pinned, tp_axis(o.mesh), &o, &b->arena, &a));
    place_price_axis(a, b->set.rates);
    sums(b, a);
    DO(rows_open(a));
    DO(ARENA_NEW(&b->arena, g.n_nodes + 1, &choice));
    const Err err = place_choose(a, &choice);
    *out = a->seconds + state_seconds(b, layout, tp);
    b->tried += err == OK;
    b->beamed += err == OK && a->beamed; /* then the seconds may be too many */
    arena_rewind(&b->arena, mark);
    return err == OK;
}

/* The least seconds of all layouts. */
static double brute(Bed *b, TpLayout *layout, int param, TpLayout *best, double least)
{
    const Graph *g = &b->m->kind[b->kind];
    while (param < g->n_params && !tp_weight_is_open(g, param)) param++;
    if (param == g->n_params) {
        double s;
        if (!pinned_seconds(b, layout, &s) || s >= least) return least;
        memcpy(best, layout, (size_t)g->n_params * sizeof *layout);
        return s;
    }
    for (int l = 0; l < N_TP_LAYOUTS; l++) {
        layout[param] = (TpLayout)l;
        least = brute(b, layout, param + 1, best, least);
    }
    return least;
}

static int kind_of(const Model *m, const char *name)
{
    for (int k = 0; k < m->n_kinds; k++)
        if (strcmp(m->kind[k].kind, name) == 0) return k;
    fail_msg("no kind %s", name);
    return 0;
}

/* ---- against all layouts ---- */

typedef struct {
    const char *model, *kind;
    int tp;
    bool sequence;
    double micros, element_s, links; /* links: their seconds over those of the default rates */
} Case;

static CostRates rates_with(double links)
{
    CostRates r = *cost_default_rates();
    for (int i = 0; i < r.n_levels; i++) {
        r.level[i].Bps /= links;
        r.level[i].latency_s *= links;
    }
    return r;
}

static void equals_brute_force(void **state)
{
    (void)state;
    static const Case cases[] = {
        {"gpt2-untied", "layer", 2, false, 1, 0, 1},
        {"gpt2-untied", "layer", 2, true, 64, 1e-9, 30},
        {"llama", "layer", 3, true, 16, 0, 10}, /* copies of key heads */
        {"gpt2", "layer", 3, false, 2, 1e-10, 30},
        {"llama", "embed", 4, false, 2, 0, 1},
        {"llama", "head", 3, true, 2, 0, 0.1},
    };
    int differ = 0; /* cases whose answer is not Megatron's */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        const Mesh mesh = mesh_tp(c->tp);
        const CostRates rates = rates_with(c->links);
        const ModelConfig config = large(c->model);
        const Strategy s = strategy_with_heads(c->sequence ? &strategy_tp_sequence : &strategy_tp,
                                               config.n_heads, config.n_kv_heads, config.head_size);
        TpLayout layout[64] = {0}, best[64] = {0};
        TpSearchResult r;
        double seconds;
        Model m;
        Bed b = {.m = &m,
                 .o = {.strategy = &s, .mesh = &mesh, .backward = true},
                 .set = {.rates = &rates, .micros = c->micros, .element_s = c->element_s}};
        DO(arena_open(&b.arena, "bed", (size_t)1 << 34));
        DO(model_build(&config, F32, (BatchShape){1, 4096}, &b.arena, &m));
        b.kind = kind_of(&m, c->kind);
        const double least = brute(&b, layout, 0, best, (double)INFINITY);
        DO(tp_search(&m.kind[b.kind], &b.o, &b.set, &b.arena, &r));
        DO(tp_search_seconds(&m.kind[b.kind], &b.o, &b.set, best, &b.arena, &seconds));
        assert_true(r.exact && b.tried > 20 * b.beamed);
        if (fabs(r.seconds / least - 1) > 1e-9 || fabs(seconds / least - 1) > 1e-9)
            fail_msg("case %d: %.9g, all layouts %.9g, the best of them %.9g", (int)i, r.seconds,
                     least, seconds);
        differ += r.seconds < r.megatron_s;
        arena_close(&b.arena);
    }
    assert_in_range(differ, 3, 6);
}

/* ---- known answers ---- */

/* A layer of llama3-8b, without pins of weights. */
static void layouts_of(const Case *c, int64_t key_heads, TpLayout *out, double *gain)
{
    ModelConfig config = *test_model("llama");
    TpSearchResult r;
    Model m;
    Arena arena;
    DO(arena_open(&arena, "model", (size_t)1 << 30));
    config.n_heads = 32;
    config.n_kv_heads = key_heads;
    config.head_size = 128;
    config.width = 4096;
    config.ff_width = 14336;
    config.max_positions = 8192;
    DO(model_build(&config, BF16, (BatchShape){1, 8192}, &arena, &m));
    const Mesh mesh = mesh_tp(c->tp);
    const CostRates rates = rates_with(c->links);
    const Strategy s =
        strategy_with_heads(c->sequence ? &strategy_tp_sequence : &strategy_tp, 32, key_heads, 128);
    const CompileOptions o = {.strategy = &s, .mesh = &mesh, .backward = true};
    const TpSearchOptions set = {.rates = &rates, .micros = c->micros, .element_s = c->element_s};
    const Graph *layer = &m.kind[kind_of(&m, "layer")];
    int n = 0;
    DO(tp_search(layer, &o, &set, &arena, &r));
    assert_true(r.exact);
    for (int i = 0; i < layer->n_params; i++)
        if (tp_weight_is_open(layer, i)) out[n++] = r.layout[i];
    assert_int_equal(n, 7);
    *gain = r.megatron_s / r.seconds;
    arena_close(&arena);
}

enum { Q, K, V, O, GATE, UP, DOWN };

static void megatron_is_found(void **state)
{
    (void)state;
    static const TpLayout megatron[] = {TP_OUTPUTS, TP_OUTPUTS, TP_OUTPUTS, TP_INPUTS,
                                        TP_OUTPUTS, TP_OUTPUTS, TP_INPUTS};
    for (int tp = 2; tp <= 8; tp *= 2)
        for (int sequence = 0; sequence < 2; sequence++) {
            TpLayout l[7];
            double gain;
            layouts_of(&(Case){.tp = tp, .sequence = sequence, .micros = 1, .links = 1}, 8, l,
                       &gain);
            assert_memory_equal(l, megatron, sizeof l);
            assert_true(gain == 1);
        }
}

/* On slow links, whole weights: gradients are summed once a step, activations are not gathered. A
 * price for their memory makes them shards again. */
static void slow_links_make_weights_whole(void **state)
{
    (void)state;
    TpLayout l[7];
    double gain;
    Case c = {.tp = 4, .sequence = true, .micros = 64, .links = 30};
    layouts_of(&c, 8, l, &gain);
    for (int i = 0; i < 7; i++) assert_int_equal(l[i], TP_WHOLE);
    assert_true(gain > 2);
    c.element_s = 1e-6; /* of 16 bytes: 66 s of a step for a GiB */
    layouts_of(&c, 8, l, &gain);
    for (int i = 0; i < 7; i++) assert_int_not_equal(l[i], TP_WHOLE);
}

/* Between the two, the feed-forward part has whole weights and tokens of its own; attention, whose
 * heads are sharded in any case, has Megatron's. */
static void parts_differ(void **state)
{
    (void)state;
    static const TpLayout want[] = {TP_OUTPUTS, TP_OUTPUTS, TP_OUTPUTS, TP_INPUTS,
                                    TP_WHOLE,   TP_WHOLE,   TP_WHOLE};
    TpLayout l[7];
    double gain;
    layouts_of(&(Case){.tp = 4, .sequence = true, .micros = 64, .links = 2, .element_s = 8e-11}, 8,
               l, &gain);
    assert_memory_equal(l, want, sizeof l);
    assert_true(gain > 1.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_brute_force), cmocka_unit_test(megatron_is_found),
        cmocka_unit_test(slow_links_make_weights_whole), cmocka_unit_test(parts_differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
