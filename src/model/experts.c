/* experts.c -- the mixture of experts of Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE and Dots1: a router
 * sends each token to K of E gated feed-forward parts.
 *
 *   T rows, D width, E experts, K choices of a token, F width of an expert, S of the shared one
 *
 *   a [T,D] -+- gate [T,E] - route - choices [T,K], gates [T,K] ------------------+
 *            +- permute [TK,D] - gate, up [TK,F] - swiglu - down [TK,D] - unpermute -(+)- [T,D]
 *            +- shared expert [T,D] -(x sigmoid(shared gate))-----------------------^
 *
 * The weights of all experts of a layer are one parameter [E,F,D]; files store them apart. */
#include "model/build.h"

#include <stdlib.h>

/* The weights [E,out,in] of all experts. */
static Value stack(Graph *g, const ModelConfig *c, const char *name, int64_t out, int64_t in)
{
    return graph_param(g, (ParamInfo){.name = name,
                                      .ndim = 3,
                                      .n = {c->experts.n, out, in},
                                      .init = INIT_NORMAL,
                                      .std = c->init_std,
                                      .decay = true,
                                      .view = (uint8_t)c->experts.view});
}

static Attr route_attr(const ExpertConfig *x)
{
    return (Attr){.route = {.score = x->score,
                            .renormalize = x->renormalize,
                            .groups = (int32_t)x->groups,
                            .chosen_groups = (int32_t)x->chosen_groups,
                            .group_best = (int32_t)x->group_best,
                            .scaling = x->scaling,
                            .aux = x->aux_loss,
                            .z = x->z_loss}};
}

/* The bias of the choice of experts. It is in a pack of its own, because its rule is another. */
static Value selection_bias(Graph *g, int64_t experts)
{
    return graph_param(g, (ParamInfo){.name = "mlp.gate.e_score_correction_bias",
                                      .ndim = 1,
                                      .n = {experts},
                                      .init = INIT_ZEROS,
                                      .rule = PARAM_BY_SIGN});
}

static Value shared_expert(Graph *g, const ModelBuilder *b, Value a);

/* sum over the K experts of each row: gate * down(silu(gate_proj(a)) * up_proj(a)). *shared: the
 * output of the shared expert, or NO_VALUE. It is computed while rows travel to their experts. */
static Value routed_experts(Graph *g, const ModelBuilder *b, Value a, Value *shared)
{
    const ModelConfig *c = b->config;
    const ExpertConfig *x = &c->experts;
    const int64_t D = c->width, F = x->width, E = x->n;
    const Attr route_by = route_attr(x);
    const Attr limit = {.limit = {x->capacity, E, x->drop_by_gate}};
    const Value router = weight2(g, "mlp.gate.weight", E, D, c->init_std);
    const Value logits = graph_name(g, linear_wide(g, a, router), "moe.logits");
    const Value bias = x->bias ? selection_bias(g, E) : NO_VALUE;
    const Routing r = route(g, logits, bias, x->chosen, &route_by);
    const Value kept = x->capacity > 0 ? limit_choices(g, &r, &limit) : r.expert;
    const RowAssignment rows = assign_rows(g, kept, E);
    graph_name(g, r.gate, "moe.gates");
    graph_name(g, r.expert, "moe.experts");
    graph_name(g, r.load, "moe.load");
    graph_name(g, rows.at, "moe.at");
    const Value wg = stack(g, c, "mlp.experts.gate_proj.weight", F, D);
    const Value wu = stack(g, c, "mlp.experts.up_proj.weight", F, D);
    const Value wd = stack(g, c, "mlp.experts.down_proj.weight", D, F);
    const Value in = graph_name(g, permute(g, a, rows.at, NO_VALUE), "moe.rows");
    *shared = x->shared_width ? shared_expert(g, b, a) : NO_VALUE;
    const Value gate = graph_name(g, grouped_linear(g, in, wg, rows.offsets), "moe.gate");
    const Value up = graph_name(g, grouped_linear(g, in, wu, rows.offsets), "moe.up");
    const Value h = graph_name(g, grouped_swiglu(g, gate, up, rows.offsets), "moe.act");
    const Value out = graph_name(g, grouped_linear(g, h, wd, rows.offsets), "moe.out");
    return unpermute(g, rows.at, out, r.gate);
}

/* The expert that every row has; in Qwen2-MoE times the sigmoid of one number per row. */
static Value shared_expert(Graph *g, const ModelBuilder *b, Value a)
{
    const ModelConfig *c = b->config;
    const int64_t D = c->width, S = c->experts.shared_width;
    const Value wg = weight2(g, "mlp.shared_expert.gate_proj.weight", S, D, c->init_std);
    const Value wu = weight2(g, "mlp.shared_expert.up_proj.weight", S, D, c->init_std);
    const Value h = swiglu(g, linear(g, a, wg, NO_VALUE), linear(g, a, wu, NO_VALUE));
    const Value wd = weight2(g, "mlp.shared_expert.down_proj.weight", D, S, c->init_std);
    const Value y = linear(g, graph_name(g, h, "shared.act"), wd, NO_VALUE);
    if (!c->experts.shared_gate) return y;
    const Value ws = weight2(g, "mlp.shared_expert_gate.weight", 1, D, c->init_std);
    return sigmoid_gate(g, y, linear(g, a, ws, NO_VALUE));
}

Value mixture_of_experts(Graph *g, const ModelBuilder *b, Value a)
{
    Value shared;
    const Value y = routed_experts(g, b, a, &shared);
    return b->config->experts.shared_width ? add(g, y, shared) : y;
}

/* True if the list "0,5" has the number. */
static bool is_listed(const char *list, int64_t number)
{
    for (char *end; list && *list; list = *end == ',' ? end + 1 : end)
        if (strtoll(list, &end, 10) == number) return true;
    return false;
}

bool layer_has_experts(const ModelConfig *c, int64_t layer)
{
    const ExpertConfig *x = &c->experts;
    if (x->n == 0 || layer < x->dense_first || is_listed(x->dense_layers, layer)) return false;
    return x->sparse_step <= 1 || (layer + 1) % x->sparse_step == 0;
}

bool model_has_experts(const ModelConfig *c)
{
    for (int64_t i = 0; i < c->n_layers; i++)
        if (layer_has_experts(c, i)) return true;
    return false;
}
