/* build.c -- the parts that all families share: parameters, the ends of a head, kinds and units.
 *
 *     Model   kind[]: graphs of embed, layer, head       unit[n_layers + 2]: (kind, name, prefix)
 *                                                        "layer.3", prefix "model.layers.3."
 *
 * Layers of one kind share one graph. A unit's prefix makes the parameter names of that graph
 * unique. */
#include "model/build.h"

#include <stdio.h>
#include <string.h>
#include "base/fp8.h"
#include "base/math.h"
#include "ir/pairs.h"

Value weight2(Graph *g, const char *name, int64_t out, int64_t in, double std)
{
    return graph_param(g, (ParamInfo){.name = name,
                                      .ndim = 2,
                                      .n = {out, in},
                                      .init = INIT_NORMAL,
                                      .std = std,
                                      .decay = true});
}

Value vector(Graph *g, const char *name, int64_t n, Init init)
{
    return graph_param(g, (ParamInfo){.name = name, .ndim = 1, .n = {n}, .init = init});
}

/* Gathers the requested rows of x [T, D] with the embedding op: x is its table, the row numbers [A]
 * are its tokens. */
Value head_in(Graph *g, const ModelBuilder *b)
{
    const Value x = stream_in(g, b->rows, b->config->width);
    return b->logit_rows.cap ? embedding(g, input(g, INPUT_LOGIT_ROWS, b->logit_rows), x) : x;
}

void head_out(Graph *g, const ModelBuilder *b, Value x, Value w)
{
    if (b->logit_rows.cap) {
        graph_name(g, stream_out(g, linear(g, x, w, NO_VALUE)), "logits");
        return;
    }
    const Value targets = input(g, INPUT_TARGETS, b->rows);
    token_loss(g, x, w, targets, input(g, INPUT_WEIGHTS, b->rows));
}

static const FamilyBuilder *builder_of(const ModelConfig *c)
{
    static const FamilyBuilder *const builder[N_FAMILIES] = {
        [FAMILY_GPT2] = &gpt2_builder,       [FAMILY_LLAMA] = &llama_builder,
        [FAMILY_MISTRAL] = &llama_builder,   [FAMILY_QWEN2] = &llama_builder,
        [FAMILY_QWEN3] = &llama_builder,     [FAMILY_MIXTRAL] = &llama_builder,
        [FAMILY_QWEN2_MOE] = &llama_builder, [FAMILY_QWEN3_MOE] = &llama_builder,
        [FAMILY_OLMOE] = &llama_builder,     [FAMILY_STDIT] = &stdit_builder,
        [FAMILY_DOTS1] = &llama_builder};
    return c->builder ? c->builder : builder[c->family];
}

/* The family's kind of unit u: the embedding, a layer or the head. */
static int family_kind(const FamilyBuilder *f, const ModelConfig *c, int u)
{
    if (u == 0) return 0;
    if (u == (int)c->n_layers + 1) return f->n_kinds - 1;
    return f->kind_of_layer ? f->kind_of_layer(c, u - 1) : 1;
}

/* The kinds of a model, as they are found: kind[k] is row `of[k]` of the family. */
typedef struct {
    const FamilyBuilder *f;
    int n, of[MAX_KINDS];
    Graph graph[MAX_KINDS];
} ModelKinds;

static int find_kind(const ModelKinds *kinds, int of)
{
    int k = 0;
    while (k < kinds->n && kinds->of[k] != of) k++;
    return k;
}

/* Builds the graphs of the kinds that the units have, in the order of their first units. */
/* The marks of delayed scaling (base/fp8.h), which the pass quantize reads and whose sums it
 * makes. */
static void add_marks(Graph *g)
{
    (void)graph_param(g, (ParamInfo){.name = "fp8.marks",
                                     .ndim = 1,
                                     .n = {FP8_SITES * FP8_BINS},
                                     .init = INIT_ZEROS,
                                     .rule = PARAM_BY_MARKS});
}

static Err build_kinds(const ModelBuilder *b, DType dtype, Arena *arena, ModelKinds *kinds)
{
    const ModelConfig *c = b->config;
    const FamilyBuilder *f = kinds->f;
    MUST(f->n_kinds >= 3 && f->n_kinds <= MAX_KINDS, "a family of %d kinds", f->n_kinds);
    for (int u = 0; u < (int)c->n_layers + 2; u++) {
        const int of = family_kind(f, c, u), k = find_kind(kinds, of);
        const bool end = u == 0 || u == (int)c->n_layers + 1;
        MUST(end || (of > 0 && of < f->n_kinds - 1), "layer %d has kind %d", u - 1, of);
        if (k < kinds->n) continue;
        graph_init(&kinds->graph[k], f->kind[of].name, dtype, arena);
        f->kind[of].build(&kinds->graph[k], b);
        if (c->fp8_marks && !end) add_marks(&kinds->graph[k]);
        TRY(graph_check(&kinds->graph[k]));
        kinds->of[kinds->n++] = of;
    }
    return OK;
}

/* Rows of experts have i32 numbers too. */
static Err check_choices(const ModelConfig *c, BatchShape batch)
{
    const int64_t tokens = batch.sequences * batch.seq_len;
    if (!model_has_experts(c) || tokens <= INT32_MAX / c->experts.chosen) return OK;
    return err_fail(ERR_CONFIG,
                    "a micro-batch of %lld sequences of %lld tokens, with %lld experts for each: "
                    "more than %d rows of experts, the limit of 32-bit row numbers; set a smaller "
                    "batch.micro or data.seq_len",
                    (long long)batch.sequences, (long long)batch.seq_len,
                    (long long)c->experts.chosen, INT32_MAX);
}

/* Positions and key ranges are i32 row numbers, so a micro-batch has at most INT32_MAX rows. */
static Err check_batch(const ModelConfig *c, BatchShape batch)
{
    if (batch.sequences < 1 || batch.seq_len < 1)
        return err_fail(ERR_CONFIG,
                        "a micro-batch of %lld sequences of %lld tokens: both must be at least 1",
                        (long long)batch.sequences, (long long)batch.seq_len);
    if (batch.sequences > INT32_MAX / batch.seq_len)
        return err_fail(ERR_CONFIG,
                        "a micro-batch of %lld sequences of %lld tokens: more than %d tokens, the "
                        "limit of 32-bit positions; set a smaller batch.micro or data.seq_len",
                        (long long)batch.sequences, (long long)batch.seq_len, INT32_MAX);
    TRY(check_choices(c, batch));
    if (c->frames && batch.seq_len != c->max_positions)
        return err_fail(ERR_CONFIG, "data.seq_len=%lld: a clip of %s has %lld tokens",
                        (long long)batch.seq_len, c->name, (long long)c->max_positions);
    if (batch.seq_len > c->max_positions)
        return err_fail(
            ERR_CONFIG,
            "data.seq_len=%lld: %s has positions for %lld tokens; use a shorter sequence or set %s",
            (long long)batch.seq_len, c->name, (long long)c->max_positions,
            c->family == FAMILY_GPT2 ? "model.n_positions" : "model.max_position_embeddings");
    return OK;
}

static Err add_units(const ModelConfig *c, const ModelKinds *kinds, Model *m)
{
    const FamilyBuilder *f = kinds->f;
    const int layers = (int)c->n_layers;
    TRY(model_add_unit(m, 0, "embed", ""));
    for (int i = 0; i < layers; i++) {
        char name[32], prefix[64];
        snprintf(name, sizeof name, "layer.%d", i);
        snprintf(prefix, sizeof prefix, f->layer_prefix, i);
        TRY(model_add_unit(m, find_kind(kinds, family_kind(f, c, i + 1)), name, prefix));
    }
    return model_add_unit(m, kinds->n - 1, "head", "");
}

static Err build_units(const ModelBuilder *b, DType dtype, Arena *arena, Model *m)
{
    const ModelConfig *c = b->config;
    ModelKinds kinds = {.f = builder_of(c)};
    int params = 0;
    TRY(build_kinds(b, dtype, arena, &kinds));
    for (int u = 0; u < (int)c->n_layers + 2; u++)
        params += kinds.graph[find_kind(&kinds, family_kind(kinds.f, c, u))].n_params;
    TRY(model_open(m, c->name, (int)c->n_layers + 2, params, arena));
    m->dtype = dtype;
    m->rows = b->rows.cap;
    m->logit_rows = b->logit_rows.cap;
    m->width = c->width;
    m->n_kinds = kinds.n;
    memcpy(m->kind, kinds.graph, (size_t)kinds.n * sizeof *m->kind);
    return add_units(c, &kinds, m);
}

/* Sets the sequence length and the mask by which pairs of attention are counted (ir/pairs.h). */
static void mark_sequences(Model *m, int64_t seq_len, bool full)
{
    for (int k = 0; k < m->n_kinds; k++)
        for (int i = 0; i < m->kind[k].n_nodes; i++) {
            Node *n = &m->kind[k].node[i];
            if (!op_attends(n->op)) continue;
            n->attr.kernel.attention.sequence = seq_len;
            n->attr.kernel.attention.full = full;
        }
}

/* Clips have fixed shapes: a loader gives weight 0 to the clips that a short batch lacks. */
static void set_clips(ModelBuilder *b, int64_t clips)
{
    b->clips = dim_of(clips);
    b->rows = dim_of(clips * b->config->max_positions);
}

Err model_build(const ModelConfig *c, DType dtype, BatchShape batch, Arena *arena, Model *out)
{
    ModelBuilder b = {.config = c, .span = batch.seq_len};
    Model m;
    TRY(check_batch(c, batch));
    if (c->window) b.span = min_i64(b.span, c->window);
    b.rows = dim_rows(batch.sequences * batch.seq_len, SLOT_ROWS);
    if (c->frames) set_clips(&b, batch.sequences);
    TRY(build_units(&b, dtype, arena, &m));
    if (!c->frames) mark_sequences(&m, batch.seq_len, c->full_mask);
    *out = m;
    return OK;
}

static Err check_session(const ModelConfig *c, const SessionShape *s)
{
    if (c->full_mask && !c->frames)
        return err_fail(ERR_CONFIG,
                        "%s has a full attention mask: a token depends on later ones, so text "
                        "cannot be generated token by token",
                        c->name);
    if (s->rows < 1 || s->sequences < 1 || s->context < 1 || s->logit_rows < 1 ||
        s->logit_rows > s->rows)
        return err_fail(ERR_CONFIG,
                        "a session of %lld sequences of %lld tokens, in calls of %lld rows with "
                        "logits of %lld of them: each must be at least 1, and logits at most rows",
                        (long long)s->sequences, (long long)s->context, (long long)s->rows,
                        (long long)s->logit_rows);
    if (s->sequences > INT32_MAX / s->context)
        return err_fail(ERR_CONFIG,
                        "a session of %lld sequences of %lld tokens: more than %d tokens in all, "
                        "the limit of 32-bit positions; set fewer sequences or a shorter context",
                        (long long)s->sequences, (long long)s->context, INT32_MAX);
    if (s->context > c->max_positions)
        return err_fail(ERR_CONFIG, "a context of %lld tokens: %s has positions for %lld",
                        (long long)s->context, c->name, (long long)c->max_positions);
    return OK;
}

Err model_build_session(const ModelConfig *c, DType dtype, const SessionShape *shape, Arena *arena,
                        Model *out)
{
    ModelBuilder b = {.config = c, .span = shape->context};
    Model m;
    TRY(check_session(c, shape));
    if (c->window) b.span = min_i64(b.span, c->window);
    b.rows = dim_rows(shape->rows, SLOT_ROWS);
    b.logit_rows = dim_rows(shape->logit_rows, SLOT_LOGIT_ROWS);
    if (c->frames) {
        MUST(!shape->cached && shape->rows == shape->sequences * c->max_positions,
             "a session of clips has all rows of its clips in a call");
        set_clips(&b, shape->sequences);
    }
    TRY(build_units(&b, dtype, arena, &m));
    *out = m;
    return OK;
}
