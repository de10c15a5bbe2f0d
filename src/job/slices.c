/* slices.c -- counts flops by token and by pair, and cuts sequences by them. */
#include "job/slices.h"

#include <string.h>

#include "ir/pairs.h"

/* Adds the flops of a graph's nodes, times `units`. Extents are those of a micro-batch. */
static void add_graph(const Graph *g, double rows, double units, SliceCost *cost)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        Dims in[MAX_IN], out[MAX_OUT];
        if (n->n_in > MAX_IN) continue; /* a join is a view and costs nothing */
        for (int k = 0; k < n->n_in; k++) in[k] = g->value[n->in[k]].dims;
        for (int k = 0; k < n->n_out; k++) out[k] = g->value[n->out[k]].dims;
        const double flops = op_flops(n->op, &n->attr, n->n_in, in, n->n_out, out).all * units;
        if (op_attends(n->op))
            cost->pair += flops / attention_pairs(&n->attr.kernel, &in[0].dim[0], &in[1].dim[0], 0);
        else
            cost->token += flops / rows;
    }
}

Err model_slice_cost(const Model *m, const ModelConfig *c, Arena *temp, SliceCost *out)
{
    SliceCost cost = {0};
    const size_t mark = arena_mark(temp);
    for (int kind = 0; kind < m->n_kinds; kind++) {
        Graph g;
        double units = 0;
        for (int u = 0; u < m->n_units; u++) units += m->unit[u].kind == kind;
        TRY(graph_clone(&m->kind[kind], temp, &g));
        TRY(differentiate(&g));
        add_graph(&g, (double)m->rows, units, &cost);
    }
    arena_rewind(temp, mark);
    if (c->window > 0 && c->window < m->rows) {
        cost.token += cost.pair * (double)c->window;
        cost.pair = 0;
    }
    *out = cost;
    return OK;
}

/* Takes the cuts from the settings. */
static Err take_cuts(const Job *job, Arena *arena, SlicePlan *out)
{
    int64_t *cut;
    out->n = job->chunks.slices;
    TRY(ARENA_NEW(arena, out->n + 1, &cut));
    for (int q = 0; q <= out->n; q++) cut[q] = job->settings.parallel.cuts[q];
    out->cut = cut;
    return OK;
}

static Err whole(const Job *job, Arena *arena, SlicePlan *out)
{
    int64_t *cut;
    TRY(ARENA_NEW(arena, 2, &cut));
    cut[1] = job->model.rows;
    *out = (SlicePlan){.n = 1, .cut = cut};
    return OK;
}

/* ERR_CONFIG for sums over a micro-batch that a slice cannot compute alone: capacity, aux loss. */
static Err check_experts(const ExpertConfig *x)
{
    if (x->n == 0 || (x->aux_loss <= 0 && x->capacity <= 0)) return OK;
    return err_fail(ERR_CONFIG,
                    "slices of a sequence with %s=%g: the tokens of an expert are counted over a "
                    "whole micro-batch; set %s=0, or a schedule without slices",
                    x->aux_loss > 0 ? "optim.aux_loss" : "parallel.capacity",
                    x->aux_loss > 0 ? x->aux_loss : x->capacity,
                    x->aux_loss > 0 ? "optim.aux_loss" : "parallel.capacity");
}

Err job_slices(const Job *job, Arena *arena, SlicePlan *out)
{
    const JobSettings *set = &job->settings;
    const Schedule *s = &job->chunks;
    SliceCost cost;
    if (s->slices == 1) return whole(job, arena, out);
    TRY(check_experts(&set->config->experts));
    if (set->config->full_mask)
        return err_fail(ERR_CONFIG,
                        "parallel.slices=%d: %s has a full attention mask, so a slice depends on "
                        "later ones; set parallel.slices=1, or a schedule without slices",
                        s->slices, set->config->name);
    if (set->batch.sequences != 1)
        return err_fail(ERR_CONFIG,
                        "parallel.slices=%d with batch.micro=%lld: a slice is a part of one "
                        "sequence; set batch.micro=1 or parallel.slices=1",
                        s->slices, (long long)set->batch.sequences);
    if (set->parallel.cuts) return take_cuts(job, arena, out);
    TRY(model_slice_cost(&job->model, set->config, arena, &cost));
    const SliceRequest request = {.tokens = job->model.rows,
                                  .multiple = 1,
                                  .slices = s->slices,
                                  .stages = s->stages,
                                  .micros = s->micros};
    if (strcmp(job_schedule(set), "terapipe") == 0)
        return slices_planned(&cost, &request, arena, out);
    return slices_equal(&cost, &request, arena, out);
}
