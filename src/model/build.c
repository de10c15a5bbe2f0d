/* build.c -- the parts that families share: rows, kinds, units. */
#include "model/build.h"

#include <stdio.h>

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

enum { KIND_EMBED, KIND_LAYER, KIND_HEAD };

static Err build_kinds(const FamilyBuilder *f, const Build *b, Model *m)
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

static Err check_batch(const ModelConfig *c, BatchShape batch)
{
    if (batch.sequences < 1 || batch.seq_len < 1)
        return err_fail(ERR_CONFIG,
                        "a micro-batch of %lld sequences of %lld tokens: both must be at least 1",
                        (long long)batch.sequences, (long long)batch.seq_len);
    if (batch.sequences > INT32_MAX / batch.seq_len)
        return err_fail(
            ERR_CONFIG,
            "a micro-batch of %lld sequences of %lld tokens: more than %d tokens, which is as far "
            "as positions count; set a smaller batch.micro or data.seq_len",
            (long long)batch.sequences, (long long)batch.seq_len, INT32_MAX);
    if (batch.seq_len > c->max_positions)
        return err_fail(
            ERR_CONFIG,
            "data.seq_len=%lld: %s has positions for %lld tokens; use a shorter sequence or set %s",
            (long long)batch.seq_len, c->name, (long long)c->max_positions,
            c->family == FAMILY_GPT2 ? "model.n_positions" : "model.max_position_embeddings");
    return OK;
}

Err model_build(const ModelConfig *c, DType dtype, BatchShape batch, Arena *arena, Model *out)
{
    const FamilyBuilder *f = c->family == FAMILY_GPT2 ? &gpt2_builder : &llama_builder;
    const int layers = (int)c->n_layers;
    Build b = {.config = c, .span = batch.seq_len};
    Model m;
    TRY(check_batch(c, batch));
    TRY(model_open(&m, c->name, layers + 2, 32 * (layers + 2), arena));
    m.dtype = dtype;
    m.rows = batch.sequences * batch.seq_len;
    m.width = c->width;
    if (c->window && c->window < b.span) b.span = c->window;
    b.rows = (Dim){m.rows, SLOT_ROWS, 0};
    TRY(build_kinds(f, &b, &m));
    TRY(model_add_unit(&m, KIND_EMBED, "embed", ""));
    for (int i = 0; i < layers; i++) {
        char name[32], prefix[64];
        snprintf(name, sizeof name, "layer.%d", i);
        snprintf(prefix, sizeof prefix, f->layer_prefix, i);
        TRY(model_add_unit(&m, KIND_LAYER, name, prefix));
    }
    TRY(model_add_unit(&m, KIND_HEAD, "head", ""));
    *out = m;
    return OK;
}
