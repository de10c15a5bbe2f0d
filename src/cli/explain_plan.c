/* explain_plan.c -- the first page of an explanation: the model, the plan, the units. */
#include "cli/explain.h"

#include <stdio.h>

static const char *optim_name(OptimKind kind) { return kind == OPTIM_ADAMW ? "adamw" : "sgd"; }

static void plan_text(const Facts *f, Text *t)
{
    const Config *c = f->config;
    const JobSettings *s = &f->job->settings;
    text_add(t, "\nPLAN\n  mesh       ");
    mesh_view_text(t, &f->job->mesh, VIEW_DENSE);
    text_add(t, ": this is rank 0 of %d\n", f->job->mesh.world);
    text_add(t, "  device     %s, %s; sums and statistics in %s\n", f->device, dtype_name(s->dtype),
             dtype_name(dtype_wide(s->dtype)));
    text_add(t, "  batch      %lld sequences of %lld tokens: %lld tokens a step\n",
             (long long)c->batch_global, (long long)c->data_seq_len, (long long)f->tokens_step);
    text_add(t, "  micro      %d micro-batch%s of %lld sequence%s: %lld tokens each%s\n", s->micros,
             s->micros == 1 ? "" : "es", (long long)s->batch.sequences,
             s->batch.sequences == 1 ? "" : "s", (long long)f->tokens_micro,
             f->tokens_micro * s->micros > f->tokens_step ? ", the last one fewer" : "");
    text_add(t, "  schedule   %s\n", s->schedule);
    text_add(t, "  recompute  %s\n", recompute_text(&s->compile));
    text_add(t, "  offload    %s\n", s->compile.offload_names ? s->compile.offload_names : "none");
    text_add(t, "  optimizer  %s, lr %g, weight decay %g, clip %g\n", optim_name(s->optim.kind),
             c->optim_lr, s->optim.weight_decay, s->optim.clip);
}

static int first_unit(const Model *m, int kind)
{
    int u = 0;
    while (m->unit[u].kind != kind) u++;
    return u;
}

static void units_table(const Facts *f, Text *t)
{
    const Model *m = &f->job->model;
    char name[48], a[24], b[24];
    text_add(t, "\nUNITS\n  %-14s %12s %14s %14s\n", "unit", "parameters", "elements", "weights");
    for (int k = 0; k < m->n_kinds; k++) {
        const Unit *u = &m->unit[first_unit(m, k)];
        snprintf(name, sizeof name, f->units_of[k] > 1 ? "%s x %d" : "%s", m->kind[k].kind,
                 f->units_of[k]);
        text_add(t, "  %-14s %12d %14s %14s%s\n", name, u->n_params,
                 text_count((double)u->pack_count, a),
                 text_bytes(u->pack_count * (int64_t)dtype_bytes(m->dtype), b),
                 f->units_of[k] > 1 ? " each" : "");
    }
    text_add(t, "  %-14s %12d %14s %14s\n", "all", m->n_params,
             text_count((double)model_param_count(m), a), text_bytes((int64_t)f->weights, b));
}

static void params_table(const Facts *f, int kind, Text *t)
{
    const Model *m = &f->job->model;
    const int unit = first_unit(m, kind);
    text_add(t, "\n  parameters of %s%s\n", m->kind[kind].kind,
             f->units_of[kind] > 1 ? " (each)" : "");
    for (int i = 0; i < m->unit[unit].n_params; i++) {
        const Param *p = &m->param[m->unit[unit].param[i]];
        char count[24], shape[64];
        if (p->info.ndim == 2)
            snprintf(shape, sizeof shape, "[%lld,%lld]", (long long)p->info.n[0],
                     (long long)p->info.n[1]);
        else
            snprintf(shape, sizeof shape, "[%lld]", (long long)p->info.n[0]);
        text_add(t, "    %-36s %-16s %10s%s%s%s\n", m->kind[kind].param[i].name, shape,
                 text_count((double)p->count, count), p->info.decay ? "  decays" : "",
                 p->holder[0] == unit ? "" : "  the same as in ",
                 p->holder[0] == unit ? "" : m->unit[p->holder[0]].name);
    }
}

void explain_plan_text(const Facts *f, Text *t)
{
    const int64_t count = model_param_count(&f->job->model);
    char a[24];
    text_add(t, "MODEL\n");
    model_config_print(f->model, t);
    text_add(t, "  %s parameters (%lld)\n", text_count((double)count, a), (long long)count);
    plan_text(f, t);
    units_table(f, t);
    for (int k = 0; k < f->job->model.n_kinds; k++)
        if (f->only < 0 || f->only == k) params_table(f, k, t);
}
