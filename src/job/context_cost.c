/* context_cost.c -- the seconds of the layers under a way to shard attention over cp.
 *
 * The layers are compiled for every rank along cp, and their instructions and transfers are priced
 * by cost/cost.h at fixed rates. The busiest rank counts, since the others wait for it: with
 * contiguous tokens it is the last one, with heads that do not divide one of the first. So the
 * choice depends on the job alone: not on the machine, and not on the rank. Transfers count in
 * full, whether or not they overlap. */
#include "cost/cost.h"
#include "job/job_parts.h"
#include "schedule/traffic.h"

static bool has_attention(const Graph *g)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i].op == OP_attention) return true;
    return false;
}

static double instr_seconds(const CostRates *rates, const Program *p, const Instr *in)
{
    if (!op_transfers(in->op)) return cost_instr_seconds(rates, p, in);
    const Transfer t = instr_transfer(p, in);
    const int64_t count = t.from.count > t.to.count ? t.from.count : t.to.count;
    return cost_transfer_seconds(rates, t.kind, cost_group(rates, t.group),
                                 (double)count * (double)dtype_bytes(t.from.dtype));
}

/* Forward and backward of a kind of unit on a rank. */
static Err kind_seconds(const Job *job, int kind, int rank, Arena *temp, double *seconds)
{
    const CostRates *rates = cost_default_rates();
    const size_t mark = arena_mark(temp);
    const CompileOptions *set = &job->settings.compile;
    const UnitOptions unit = {.recompute = set->recompute,
                              .recompute_names = set->recompute_names,
                              .keep_gathered = job->settings.parallel.keep_gathered};
    CompileOptions o = job_compile_options(job, &unit);
    Program p;
    o.rank = rank;
    o.backward = true;
    o.strategy = &job->strategy;
    o.context = job->context_plan[job->context];
    TRY(compile_unit(&job->model.kind[kind], &o, NULL, NULL, temp, &p));
    *seconds = 0;
    for (int i = 0; i < p.n_instr; i++)
        if (p.instr[i].phase == PHASE_F || p.instr[i].phase == PHASE_B)
            *seconds += instr_seconds(rates, &p, &p.instr[i]);
    arena_rewind(temp, mark);
    return OK;
}

static Err rank_seconds(const Job *job, int rank, Arena *temp, double *seconds)
{
    *seconds = 0;
    for (int k = 0; k < job->model.n_kinds; k++) {
        double each = 0;
        int units = 0;
        if (!has_attention(&job->model.kind[k])) continue;
        for (int u = 0; u < job->model.n_units; u++) units += job->model.unit[u].kind == k;
        TRY(kind_seconds(job, k, rank, temp, &each));
        *seconds += each * units;
    }
    return OK;
}

Err job_context_seconds(const Job *job, double *seconds)
{
    const unsigned cp = mesh_axes(&job->mesh, VIEW_DENSE, "cp");
    const int parts = mesh_parts(&job->mesh, VIEW_DENSE, cp);
    Arena temp;
    Err err = arena_open(&temp, "context cost", (size_t)1 << 32);
    *seconds = 0;
    TRY(err);
    for (int i = 0; i < parts && err == OK; i++) {
        double here = 0;
        err = rank_seconds(job, mesh_move(&job->mesh, VIEW_DENSE, cp, i, 0), &temp, &here);
        if (here > *seconds) *seconds = here;
    }
    arena_close(&temp);
    return err;
}
