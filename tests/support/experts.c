/* experts.c -- the graphs of the family with experts, and their sharding. */
#include "support/experts.h"

#include <string.h>
#include "compile/strategy.h"
#include "support/models.h"

static Value normed(Graph *g, const ModelBuilder *b, Value x)
{
    return rmsnorm(g, x, vector(g, "norm.weight", b->config->width, INIT_ONES),
                   b->config->norm_eps);
}

static Value expert2(Graph *g, const char *name, int64_t out, int64_t in)
{
    const Value w = weight2(g, name, out, in, 0.1);
    g->param[g->n_params - 1].view = VIEW_EXPERT;
    return w;
}

static void embed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    stream_out(g, embedding(g, input(g, INPUT_TOKENS, b->rows),
                            weight2(g, "embed.weight", c->vocab, c->width, 0.1)));
}

static void dense(Graph *g, const ModelBuilder *b)
{
    const int64_t width = b->config->width;
    const Value x = stream_in(g, b->rows, width), a = normed(g, b, x);
    stream_out(g, add(g, x, linear(g, a, weight2(g, "w.weight", width, width, 0.1), NO_VALUE)));
}

/* U comes before the norm's weight: packs are not in the order of parameters. */
static void expert(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, b->rows, c->width);
    const Value up = expert2(g, "up.weight", c->ff_width, c->width), a = normed(g, b, x);
    const Value down = expert2(g, "down.weight", c->width, c->ff_width);
    stream_out(g, add(g, x, linear(g, gelu(g, linear(g, a, up, NO_VALUE)), down, NO_VALUE)));
}

static void head(Graph *g, const ModelBuilder *b)
{
    const Value x = head_in(g, b);
    head_out(g, b, normed(g, b, x),
             weight2(g, "lm_head.weight", b->config->vocab, b->config->width, 0.1));
}

static int kind_of_layer(const ModelConfig *c, int layer)
{
    (void)c;
    return 1 + layer % 2;
}

static const UnitKind kinds[] = {
    {"embed", embed}, {"dense", dense}, {"expert", expert}, {"head", head}};
static const FamilyBuilder family = {kinds, 4, kind_of_layer, "layers.%d."};

ModelConfig experts_config(int64_t ff_width)
{
    ModelConfig c = *test_model("llama");
    c.name = "experts";
    c.builder = &family;
    c.n_layers = 4;
    c.ff_width = ff_width;
    return c;
}

int experts_dim(const Param *p)
{
    if (p->info.view != VIEW_EXPERT) return -1;
    return strstr(p->name, "up.weight") ? 0 : 1;
}

void experts_widen(Model *m, int ep)
{
    for (int p = 0; p < m->n_packs; p++)
        for (int i = 0; m->pack[p].view == VIEW_EXPERT && i < m->pack[p].n_params; i++) {
            Param *q = &m->param[m->pack[p].param[i]];
            m->pack[p].count += (ep - 1) * q->count;
            m->unit[m->pack[p].unit].count += (ep - 1) * q->count;
            q->count *= ep;
            q->info.n[experts_dim(q)] *= ep;
        }
}

Err experts_shard(Job *job, Arena *arena)
{
    const JobSettings *set = &job->settings;
    const int ep = set->parallel.mesh.ep ? set->parallel.mesh.ep : 1;
    const unsigned axis = mesh_axes(&job->mesh, VIEW_EXPERT, "ep");
    Layout *use;
    experts_widen(&job->model, ep);
    TRY(strategy_use(&job->strategy, &job->model, &job->mesh, arena, &use));
    for (int p = 0; p < job->model.n_params && ep > 1; p++)
        if (experts_dim(&job->model.param[p]) >= 0)
            use[p] = layout_cut(use[p], experts_dim(&job->model.param[p]), axis, 1);
    return job_link(job, &job->programs, use, arena);
}
