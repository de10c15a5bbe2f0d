/* facts.c -- work of a rank: instructions, flops and bytes by phase, kind and step. */
#include "plan/facts.h"

#include "job/batch.h"

static void add_work(Work *sum, const Work *w)
{
    sum->instructions += w->instructions;
    sum->flops += w->flops;
    sum->flops_recomputed += w->flops_recomputed;
    sum->bytes += w->bytes;
    sum->bytes_copied += w->bytes_copied;
    sum->bytes_sent += w->bytes_sent;
}

static Work phase_work(const Program *p, Phase phase, int rank)
{
    Work w = {0};
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        const Instr *in = &p->instr[i];
        w.instructions++;
        *(in->recomputed ? &w.flops_recomputed : &w.flops) += in->flops;
        if (op_transfers(in->op)) {
            const Transfer t = instr_transfer(p, in);
            w.bytes_sent += transfer_sent(&t, rank);
        } else {
            *(in->queue == QUEUE_COMPUTE ? &w.bytes : &w.bytes_copied) += instr_bytes(in);
        }
    }
    return w;
}

/* Adds the work of one RUN. Its flops are those of its slice. */
static void add_run(Work *sum, const LinkedProgram *lp, const LinkedAction *l, const Program *p)
{
    const Phase phase = (Phase)l->action.phase;
    Work w = phase_work(p, phase, lp->rank);
    w.flops = w.flops_recomputed = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        *(p->instr[i].recomputed ? &w.flops_recomputed : &w.flops) +=
            linked_flops(lp, l, p, &p->instr[i]);
    add_work(sum, &w);
}

/* The head computes gradients in F too, so forward flops are counted in programs without
 * backward. */
static Err forward_flops(Facts *f, Arena *arena)
{
    const LinkedProgram *lp = &f->job->linked;
    CompileOptions o = job_options(f->job);
    Work sum = {0};
    o.backward = false;
    for (int k = 0; k < lp->model->n_kinds; k++)
        for (int q = 0; q < lp->slices; q++) {
            Program forward;
            if (lp->slices > 1) o.slice_rows = lp->slice_at[q + 1] - lp->slice_at[q];
            TRY(compile_unit(&lp->model->kind[k], &o, NULL, NULL, arena, &forward));
            for (int i = 0; i < lp->n; i++) {
                const Action *a = &lp->list[i].action;
                if (a->kind == A_RUN && a->phase == PHASE_F && a->slice == q &&
                    lp->model->unit[a->unit].kind == k)
                    add_run(&sum, lp, &lp->list[i], &forward);
            }
        }
    f->flops_forward = sum.flops;
    return OK;
}

static void count_units(Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    for (int u = lp->model->n_units - 1; u >= 0; u--) {
        const int kind = lp->model->unit[u].kind;
        const bool here = unit_is_here(lp, u);
        f->units_of[kind]++;
        f->units_here[kind] += here;
        if (here || f->units_here[kind] == 0) f->first_unit[kind] = u;
    }
}

/* tokens * (6 N + 12 L d T) / ranks, with the tokens that all ranks have room for. */
static double formula(const Facts *f)
{
    const ModelConfig *c = f->model;
    const BatchSplit split = batch_split(f->job);
    const double per_token = 6.0 * (double)model_param_count(&f->job->model) +
                             12.0 * c->n_layers * (double)(c->n_heads * c->head_size) *
                                 (double)f->job->settings.batch.seq_len;
    return per_token * (double)(batch_room(&split) * f->job->settings.batch.seq_len) /
           f->job->mesh.world;
}

Err facts_gather(Facts *f, Arena *arena)
{
    const LinkedProgram *lp = &f->job->linked;
    count_units(f);
    for (int k = 0; k < lp->model->n_kinds; k++)
        for (int p = 0; p < N_PHASES; p++)
            f->of[k][p] = phase_work(&lp->program[k], (Phase)p, lp->rank);
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        if (l->program) add_run(&f->step, lp, l, l->program);
    }
    TRY(forward_flops(f, arena));
    f->tokens_micro = lp->model->rows;
    f->tokens_step = f->global * f->job->settings.batch.seq_len;
    f->flops_formula = formula(f);
    TRY(facts_params(f, arena));
    TRY(facts_memory(f, arena));
    TRY(facts_transfers(f));
    return facts_pipeline(f, arena);
}
