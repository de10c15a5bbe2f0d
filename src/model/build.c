/* build.c -- the parts that all families share: parameters, the ends of a head, kinds and units.
 *
 *     Model   kind[3]: graphs of embed, layer, head      unit[n_layers + 2]: (kind, name, prefix)
 *                                                        "layer.3", prefix "model.layers.3."
 *
 * All layers share one graph. A unit's prefix makes the parameter names of that graph unique. */
#include "model/build.h"

#include <stdio.h>
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

/* Indices of Model.kind; all families have these three. */
enum { KIND_EMBED, KIND_LAYER, KIND_HEAD };

static Err build_kinds(const FamilyBuilder *f, const ModelBuilder *b, Model *m)
{
    static const char *const name[] = {"embed", "layer", "head"};
    for (int k = 0; k < 3; k++) graph_init(&m->kind[k], name[k], m->dtype, m->arena);
    m->n_kinds = 3;
    f->embed(&m->kind[KIND_EMBED], b);
    f->layer(&m->kind[KIND_LAYER], b);
    f->head(&m->kind[KIND_HEAD], b);
    for (int k = 0; k < 3; k++) TRY(graph_check(&m->kind[k]));
    return OK;
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
    if (batch.seq_len > c->max_positions)
        return err_fail(
            ERR_CONFIG,
            "data.seq_len=%lld: %s has positions for %lld tokens; use a shorter sequence or set %s",
            (long long)batch.seq_len, c->name, (long long)c->max_positions,
            c->family == FAMILY_GPT2 ? "model.n_positions" : "model.max_position_embeddings");
    return OK;
}

static Err build_units(const ModelConfig *c, const ModelBuilder *b, Model *m)
{
    const FamilyBuilder *f = c->family == FAMILY_GPT2 ? &gpt2_builder : &llama_builder;
    TRY(build_kinds(f, b, m));
    TRY(model_add_unit(m, KIND_EMBED, "embed", ""));
    for (int i = 0; i < (int)c->n_layers; i++) {
        char name[32], prefix[64];
        snprintf(name, sizeof name, "layer.%d", i);
        snprintf(prefix, sizeof prefix, f->layer_prefix, i);
        TRY(model_add_unit(m, KIND_LAYER, name, prefix));
    }
    return model_add_unit(m, KIND_HEAD, "head", "");
}

static Err open_model(const ModelConfig *c, DType dtype, int64_t rows, Arena *arena, Model *m)
{
    const int layers = (int)c->n_layers;
    TRY(model_open(m, c->name, layers + 2, 32 * (layers + 2), arena));
    m->dtype = dtype;
    m->rows = rows;
    m->width = c->width;
    return OK;
}

/* Sets the sequence length by which the pairs of attention are counted (ir/pairs.h). */
static void mark_sequences(Model *m, int64_t seq_len)
{
    for (int k = 0; k < m->n_kinds; k++)
        for (int i = 0; i < m->kind[k].n_nodes; i++) {
            Node *n = &m->kind[k].node[i];
            if (op_attends(n->op)) n->attr.kernel.attention.sequence = seq_len;
        }
}

Err model_build(const ModelConfig *c, DType dtype, BatchShape batch, Arena *arena, Model *out)
{
    ModelBuilder b = {.config = c, .span = batch.seq_len};
    Model m;
    TRY(check_batch(c, batch));
    TRY(open_model(c, dtype, batch.sequences * batch.seq_len, arena, &m));
    if (c->window) b.span = min_i64(b.span, c->window);
    b.rows = dim_rows(m.rows, SLOT_ROWS);
    TRY(build_units(c, &b, &m));
    mark_sequences(&m, batch.seq_len);
    *out = m;
    return OK;
}

static Err check_session(const ModelConfig *c, const SessionShape *s)
{
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
    TRY(open_model(c, dtype, shape->rows, arena, &m));
    m.logit_rows = shape->logit_rows;
    if (c->window) b.span = min_i64(b.span, c->window);
    b.rows = dim_rows(m.rows, SLOT_ROWS);
    b.logit_rows = dim_rows(m.logit_rows, SLOT_LOGIT_ROWS);
    TRY(build_units(c, &b, &m));
    *out = m;
    return OK;
}
