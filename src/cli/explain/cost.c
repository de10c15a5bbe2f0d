/* cost.c -- the last section of an explanation: flops and memory traffic of a step. */
#include <stdio.h>
#include <string.h>
#include "base/math.h"
#include "cli/explain/explain.h"

static void flops_line(Text *t, const char *what, double flops, double of)
{
    char human[24];
    text_add(t, "  %-50s %20.0f  %8s", what, flops, text_count(flops, human));
    if (of > 0) text_add(t, "  %5.1f%%", 100.0 * flops / of);
    text_add(t, "\n");
}

/* The formula 6 N + 12 L d T counts no recomputation and no causal masking; it is the usual
 * estimate to compare the exact count with. */
static void flops_text(const Facts *f, Text *t)
{
    const Work *w = &f->step;
    const double all = w->flops + w->flops_recomputed;
    text_add(t, "\nFLOPS of a step on rank %d, with full micro-batches\n", f->job->linked.rank);
    flops_line(t, "forward", f->flops_forward, all);
    flops_line(t, "backward", w->flops - f->flops_forward, all);
    flops_line(t, "recomputed", w->flops_recomputed, all);
    flops_line(t, "all", all, 0);
    flops_line(t, "for comparison: tokens x (6 N + 12 L d T) / ranks", f->flops_formula, 0);
    const ExpertConfig *x = &f->model->experts;
    text_add(t, "    tokens per step, N parameters, L layers, d total width of the heads, T tokens "
                "per sequence;\n    work that ranks along tp repeat counts once\n");
    if (model_has_experts(f->model))
        text_add(t, "    N has %lld of the %lld experts of a layer%s\n", (long long)x->chosen,
                 (long long)x->n,
                 job_shards_experts(&f->job->settings.parallel.mesh)
                     ? "; forward and backward count the rooms for their rows full"
                     : "");
}

typedef struct {
    Text *t;
    int label; /* columns of the labels */
} WorkTable;

static void work_line(const WorkTable *table, const char *label, Phase phase, int64_t runs,
                      const Work *w)
{
    char a[24], b[24], c[24], d[24], e[24], n[24] = "";
    if (runs) snprintf(n, sizeof n, "%lld", (long long)runs);
    text_add(table->t, "  %-*s %-5s %8s %14s %12s %14s %14s %14s\n", table->label, label,
             phase < N_PHASES ? phase_name(phase) : "", n, text_count(w->flops, a),
             text_count(w->flops_recomputed, b), text_bytes((int64_t)w->bytes, c),
             text_bytes((int64_t)w->bytes_copied, d), text_bytes((int64_t)w->bytes_sent, e));
}

/* One line for each class and phase that the action list runs. */
static void runs_text(const Facts *f, Text *t)
{
    const int n = f->job->programs.n_classes;
    WorkTable table = {t, 8};
    for (int c = 0; c < n; c++) table.label = max_int(table.label, (int)strlen(f->class[c].label));
    text_add(t, "\nWORK of a step, by program\n  %-*s %-5s %8s %14s %12s %14s %14s %14s\n",
             table.label, "kind", "phase", "runs", "flops each", "recomputed", "bytes each",
             "copied each", "sent each");
    for (int c = 0; c < n; c++)
        for (int p = 0; p < N_PHASES; p++)
            if (f->class[c].runs[p])
                work_line(&table, f->class[c].label, (Phase)p, f->class[c].runs[p],
                          &f->class[c].phase[p]);
    work_line(&table, "all", N_PHASES, 0, &f->step);
    text_add(t, "    bytes: memory traffic of compute instructions; copied: to and from the host; "
                "sent: to other ranks\n");
}

void explain_cost_text(const Facts *f, Text *t)
{
    runs_text(f, t);
    flops_text(f, t);
}
