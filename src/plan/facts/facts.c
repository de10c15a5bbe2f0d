/* facts.c -- work of a rank: instructions, flops and bytes by phase, kind and step. */
#include "plan/facts/facts.h"

#include <string.h>
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
    const ProgramTable *t = &lp->programs;
    Work sum = {0};
    for (int v = 0; v < t->n_variants; v++)
        for (int c = 0; c < t->n_classes; c++) {
            CompileOptions o = job_options(f->job, c, v);
            Program forward;
            o.backward = false;
            TRY(compile_unit(&lp->model->kind[t->kind_of[c]], &o, NULL, NULL, arena, &forward));
            for (int i = 0; i < lp->n; i++) {
                const LinkedAction *l = &lp->list[i];
                if (l->program == &t->program[v * t->n_classes + c] && l->action.phase == PHASE_F)
                    add_run(&sum, lp, l, &forward);
            }
        }
    f->flops_forward = sum.flops;
    return OK;
}

/* True if other units of the class's kind are in another class. */
static bool is_part_of_kind(const ProgramTable *t, int class)
{
    for (int c = 0; c < t->n_classes; c++)
        if (c != class && t->kind_of[c] == t->kind_of[class]) return true;
    return false;
}

/* "layer", or "layer.0-7,12" if layers are in several classes. */
static Err label_of(const LinkedProgram *lp, int class, Arena *arena, const char **out)
{
    const ProgramTable *p = &lp->programs;
    const Unit *unit = lp->model->unit;
    const char *kind = lp->model->kind[p->kind_of[class]].kind;
    Text t = text_in(arena);
    bool any = false;
    for (int u = 0, last; u < lp->model->n_units && is_part_of_kind(p, class); u = last + 1) {
        last = u;
        if (p->class_of[u] != class) continue;
        while (last + 1 < lp->model->n_units && p->class_of[last + 1] == class) last++;
        const char *end = strrchr(unit[last].name, '.');
        text_add(&t, "%s%s", any ? "," : "", any ? strrchr(unit[u].name, '.') + 1 : unit[u].name);
        if (last > u) text_add(&t, "-%s", end ? end + 1 : unit[last].name);
        any = true;
    }
    if (!any) text_add(&t, "%s", kind);
    return text_done(&t, out);
}

static Err count_classes(Facts *f, Arena *arena)
{
    const LinkedProgram *lp = &f->job->linked;
    const ProgramTable *t = &lp->programs;
    TRY(ARENA_NEW(arena, t->n_classes, &f->class));
    for (int u = lp->model->n_units - 1; u >= 0; u--) {
        ClassFacts *c = &f->class[t->class_of[u]];
        const bool here = unit_is_here(lp, u);
        c->units++;
        c->here += here;
        if (here || c->here == 0) c->first = u;
    }
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].program)
            f->class[t->class_of[lp->list[i].action.unit]].runs[lp->list[i].action.phase]++;
    for (int c = 0; c < t->n_classes; c++) {
        TRY(label_of(lp, c, arena, &f->class[c].label));
        for (int p = 0; p < N_PHASES; p++)
            f->class[c].phase[p] = phase_work(&t->program[c], (Phase)p, lp->rank);
    }
    return OK;
}

/* Parameters of experts that a token does not choose. */
static double unchosen(const ModelConfig *c)
{
    const ExpertConfig *x = &c->experts;
    double layers = 0;
    for (int64_t i = 0; i < c->n_layers; i++) layers += layer_has_experts(c, i);
    return layers * (double)(x->n - x->chosen) * 3 * (double)(x->width * c->width);
}

/* tokens * (6 N + 12 L d T) / ranks, with the tokens that all ranks have room for. N leaves out the
 * experts that a token does not choose. */
static double formula(const Facts *f)
{
    const ModelConfig *c = f->model;
    const BatchSplit split = batch_split(f->job);
    const double params = (double)model_param_count(&f->job->model) - unchosen(c);
    const double per_token = 6.0 * params + 12.0 * c->n_layers *
                                                (double)(c->n_heads * c->head_size) *
                                                (double)f->job->settings.batch.seq_len;
    return per_token * (double)(batch_room(&split) * f->job->settings.batch.seq_len) /
           f->job->mesh.world;
}

Err facts_gather(Facts *f, Arena *arena)
{
    const LinkedProgram *lp = &f->job->linked;
    TRY(count_classes(f, arena));
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
    TRY(linked_channels(&f->job->linked, arena, &f->channels));
    return facts_pipeline(f, arena);
}
