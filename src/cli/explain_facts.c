/* explain_facts.c -- sums over a compiled job. */
#include "cli/explain.h"

static void add_work(Work *sum, const Work *w)
{
    sum->instructions += w->instructions;
    sum->flops += w->flops;
    sum->flops_again += w->flops_again;
    sum->bytes += w->bytes;
    sum->bytes_copied += w->bytes_copied;
}

static Work phase_work(const Program *p, Phase phase)
{
    Work w = {0};
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        const Instr *in = &p->instr[i];
        w.instructions++;
        *(in->again ? &w.flops_again : &w.flops) += in->flops;
        *(in->queue == QUEUE_COMPUTE ? &w.bytes : &w.bytes_copied) += instr_bytes(in);
    }
    return w;
}

/* A head computes gradients in F too, so what is forward shows only where nothing else is. */
static Err forward_flops(Facts *f, Arena *arena)
{
    const Model *m = &f->job->model;
    CompileOptions o = job_options(f->job);
    o.backward = false;
    for (int k = 0; k < m->n_kinds; k++) {
        Program p;
        TRY(compile_unit(&m->kind[k], &o, NULL, NULL, arena, &p));
        f->flops_forward += phase_work(&p, PHASE_F).flops * f->units_of[k] * f->job->linked.micros;
    }
    return OK;
}

static void gather_memory(Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    const DType dtype = lp->model->dtype;
    for (int u = 0; u < lp->model->n_units; u++) {
        const size_t count = (size_t)lp->model->unit[u].pack_count;
        const size_t wide = align_up(count * dtype_bytes(dtype_wide(dtype)));
        f->weights += align_up(count * dtype_bytes(dtype));
        f->moments += (size_t)lp->n_moments * wide;
        f->gradients += wide;
    }
    f->inputs = lp->input_stride * (size_t)lp->micros;
    f->other = lp->bytes[ARENA_STEP] - f->gradients - f->inputs;
    for (int a = 0; a < N_ARENAS; a++) f->total += lp->bytes[a];
}

Err facts_gather(Facts *f, Arena *arena)
{
    const LinkedProgram *lp = &f->job->linked;
    const ModelConfig *c = f->model;
    for (int u = 0; u < lp->model->n_units; u++) f->units_of[lp->model->unit[u].kind]++;
    for (int k = 0; k < lp->model->n_kinds; k++)
        for (int p = 0; p < N_PHASES; p++) f->of[k][p] = phase_work(&lp->program[k], (Phase)p);
    for (int i = 0; i < lp->n; i++) {
        const Action *a = &lp->list[i].action;
        if (a->kind == A_RUN) add_work(&f->step, &f->of[lp->model->unit[a->unit].kind][a->phase]);
    }
    TRY(forward_flops(f, arena));
    f->tokens_micro = lp->model->rows;
    f->tokens_step = f->config->batch_global * f->config->data_seq_len;
    f->flops_formula = (6.0 * (double)model_param_count(lp->model) +
                        12.0 * (double)c->n_layers * (double)(c->n_heads * c->head_size) *
                            (double)f->config->data_seq_len) *
                       (double)f->tokens_micro * lp->micros;
    gather_memory(f);
    return OK;
}

const char *recompute_text(const CompileOptions *o)
{
    static const char *const name[] = {"none", "selective", "full"};
    return o->recompute == RECOMPUTE_NAMED ? o->recompute_names : name[o->recompute];
}
