/* test_pass_place_layout.c -- the part of each rank and its offset, against a direct count:
 * heads and the key heads that they read, feed-forward, vocabulary; and that programs hold
 * parameters as strategy_use does. */
#include "place_test.h"

#include "compile/place.h"

/* [lo, hi) of n for one of p parts: the first n % p have one more. */
typedef struct {
    int64_t lo, hi;
} Part;

static Part part_of(int64_t n, int p, int k)
{
    Part s = {0, 0};
    for (int i = 0; i <= k; i++) {
        s.lo = s.hi;
        s.hi += n / p + (i < n % p);
    }
    return s;
}

static int64_t length(Part s) { return s.hi - s.lo; }

/* Key heads that heads [lo, hi) read, `group` to each. */
static Part keys_of(Part heads, int64_t group)
{
    Part keys = {heads.lo / group, heads.lo / group};
    for (int64_t h = heads.lo; h < heads.hi; h++) keys.hi = h / group + 1;
    return keys;
}

static const ValueInfo *value_named(const Graph *g, const char *name)
{
    for (Value v = 0; v < g->n_values; v++)
        if (strcmp(g->value[v].name, name) == 0) return &g->value[v];
    fail_msg("no value %s", name);
    return NULL;
}

static void expect_dims(const Graph *g, const char *name, int64_t n0, int64_t n1)
{
    const Dims *d = &value_named(g, name)->dims;
    if (d->dim[0].cap != n0 || (d->ndim > 1 && d->dim[1].cap != n1))
        fail_msg("%s is [%lld,%lld], not [%lld,%lld]", name, (long long)d->dim[0].cap,
                 (long long)d->dim[1].cap, (long long)n0, (long long)n1);
}

static void expect_heads(const Graph *g, int64_t group, int64_t head_at)
{
    int found = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        if (n->op != OP_attention && n->op != OP_attention_dx) continue;
        assert_int_equal(n->attr.kernel.attention.group, group);
        assert_int_equal(n->attr.kernel.attention.head_at, head_at);
        found++;
    }
    assert_int_equal(found, 2);
}

static void try_layer(const ModelBed *m, int tp, bool sequence)
{
    const ModelConfig *c = &m->config;
    const CompileOptions o = {.backward = true, .strategy = sequence ? &m->sequence : &m->plain};
    const int64_t group = c->n_heads / c->n_kv_heads, size = c->head_size;
    const bool gpt2 = c->family == FAMILY_GPT2;
    const char *before = gpt2 ? "attn" : "self_attn";
    char name[64];
    Ranks r;
    ranks_open(&r, &m->model.kind[1], &o, tp);
    for (int k = 0; k < tp; k++) {
        const Part heads = part_of(c->n_heads, tp, k), keys = keys_of(heads, group);
        const int64_t ff = length(part_of(c->ff_width, tp, k));
        const int64_t rows = sequence ? length(part_of(ROWS, tp, k)) : ROWS;
        const Graph *g = &r.placed[k];
        snprintf(name, sizeof name, "%s.q_proj.weight", before);
        expect_dims(g, name, length(heads) * size, c->width);
        snprintf(name, sizeof name, "%s.k_proj.weight", before);
        expect_dims(g, name, length(keys) * size, c->width);
        snprintf(name, sizeof name, "%s.%s_proj.weight", before, gpt2 ? "c" : "o");
        expect_dims(g, name, c->width, length(heads) * size);
        expect_dims(g, gpt2 ? "mlp.c_fc.weight" : "mlp.gate_proj.weight", ff, c->width);
        expect_dims(g, gpt2 ? "mlp.c_proj.weight" : "mlp.down_proj.weight", c->width, ff);
        expect_dims(g, "attn.k", ROWS, length(keys));
        expect_dims(g, "x", rows, c->width);
        expect_dims(g, "d.mid", rows, c->width);
        assert_int_equal(value_named(g, "x")->dims.dim[0].from,
                         sequence ? part_of(ROWS, tp, k).lo : 0);
        expect_heads(g, group, length(heads) ? heads.lo - keys.lo * group : 0);
    }
    ranks_close(&r);
}

static void test_layers(void **state)
{
    (void)state;
    const ModelConfig wide = wide_model();
    static const int tps[] = {2, 3, 5, 8};
    ModelConfig six = wide;
    ModelBed eight, uneven, three;
    six.n_heads = 6;
    six.n_kv_heads = 3; /* as many as parts or more, and still cut within a group */
    model_bed_open(&eight, &wide);
    model_bed_open(&uneven, &six);
    model_bed_open(&three, test_model("gpt2"));
    for (size_t i = 0; i < sizeof tps / sizeof *tps; i++) try_layer(&eight, tps[i], i % 2);
    for (int tp = 2; tp <= 4; tp++) try_layer(&uneven, tp, tp % 2);
    try_layer(&three, 2, true);
    try_layer(&three, 4, false); /* rank 3 has no heads */
    model_bed_close(&eight);
    model_bed_close(&uneven);
    model_bed_close(&three);
}

/* The first vocabulary entry of a rank, in every op that has it. */
static void expect_base(const Graph *g, int64_t base, int ops)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        const bool counts = n->op == OP_embedding || n->op == OP_embedding_dw ||
                            n->op == OP_row_sums || n->op == OP_loss_dx;
        if (!counts) continue;
        assert_int_equal(n->attr.kernel.vocab.base, base);
        ops--;
    }
    assert_int_equal(ops, 0);
}

static void test_vocabulary(void **state)
{
    (void)state;
    const ModelConfig wide = wide_model();
    ModelBed m;
    model_bed_open(&m, &wide);
    for (int tp = 2; tp <= 4; tp++)
        for (int variant = 0; variant < 4; variant++) {
            const bool head = variant / 2;
            const CompileOptions o = {.backward = true,
                                      .strategy = variant % 2 ? &m.sequence : &m.plain};
            Ranks r;
            ranks_open(&r, &m.model.kind[head ? 2 : 0], &o, tp);
            for (int k = 0; k < tp; k++) {
                const Part words = part_of(50257, tp, k);
                expect_base(&r.placed[k], words.lo, 2);
                expect_dims(&r.placed[k], head ? "lm_head.weight" : "model.embed_tokens.weight",
                            length(words), m.config.width);
            }
            ranks_close(&r);
        }
    model_bed_close(&m);
}

/* Parameters of the placed units against strategy_use; element by element, every one is held. */
static void expect_use(const ModelBed *m, const Ranks *r, int unit, const Layout *use)
{
    const Unit *u = &m->model.unit[unit];
    for (int k = 0; k < r->n; k++) {
        const Graph *g = &r->placed[k];
        for (Value v = 0; v < g->n_values; v++) {
            if (g->value[v].role != ROLE_PARAM) continue;
            const Layout *l = &use[u->param[g->value[v].index]];
            const ParamInfo *info = &m->model.kind[u->kind].param[g->value[v].index];
            Dims dims = {.ndim = info->ndim};
            for (int i = 0; i < info->ndim; i++) dims.dim[i] = dim_of(info->n[i]);
            assert_true(layout_equal(l, &g->value[v].layout));
            dims = local_dims(&dims, l, &r->mesh, k);
            for (int i = 0; i < info->ndim; i++)
                assert_int_equal(dims.dim[i].cap, g->value[v].dims.dim[i].cap);
        }
    }
}

/* True if the gradient is a sum over tp. That of a norm of heads is, since each rank has some
 * heads; under sequence parallelism also those of replicated parameters that tokens add to: norms,
 * biases of a sum. */
static bool is_sum_over_tp(const char *name, bool sequence)
{
    if (strstr(name, "q_norm") || strstr(name, "k_norm")) return true;
    return sequence && (strstr(name, "norm") || strstr(name, "ln_") || strstr(name, "c_proj.bias"));
}

static void expect_partial(const Ranks *r, unsigned tp, bool sequence)
{
    for (int k = 0; k < r->n; k++) {
        const Program *p = &r->program[k];
        for (int i = 0; i < p->n_out; i++) {
            const char *name = p->tensor[p->out[i].tensor].name;
            if (p->out[i].partial != (is_sum_over_tp(name, sequence) ? tp : 0))
                fail_msg("%s of %s%s is a sum over axes %x", name, p->kind,
                         sequence ? ", sequence" : "", p->out[i].partial);
        }
        assert_int_equal(p->loss_partial, 0);
    }
}

static void test_parameters(void **state)
{
    (void)state;
    static const char *const name[] = {"gpt2", "llama", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        ModelBed m;
        model_bed_open(&m, test_model(name[i]));
        for (int sequence = 0; sequence < 2; sequence++) {
            const int tp = 3 + sequence;
            const Mesh mesh = mesh_tp(tp);
            const CompileOptions o = {.backward = true,
                                      .strategy = sequence ? &m.sequence : &m.plain};
            Layout *use;
            DO(strategy_use(o.strategy, &m.model, &mesh, &m.arena, &use));
            for (int unit = 0; unit < m.model.n_units; unit++) {
                Ranks r;
                if (unit == 2) continue; /* as unit 1 */
                ranks_open(&r, &m.model.kind[m.model.unit[unit].kind], &o, tp);
                expect_use(&m, &r, unit, use);
                expect_partial(&r, mesh_axes(&mesh, VIEW_DENSE, "tp"), sequence);
                ranks_close(&r);
            }
        }
        model_bed_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layers),
                                       cmocka_unit_test(test_vocabulary),
                                       cmocka_unit_test(test_parameters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
