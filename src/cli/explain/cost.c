/* cost.c -- the last section of an explanation: flops and memory traffic of a step. */
#include <stdio.h>
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
    text_add(t, "    tokens per step, N parameters, L layers, d total width of the heads, T tokens "
                "per sequence;\n    work that ranks along tp repeat counts once\n");
}

static void work_line(Text *t, const char *kind, Phase phase, int runs, const Work *w)
{
    char a[24], b[24], c[24], d[24], e[24], n[12] = "";
    if (runs) snprintf(n, sizeof n, "%d", runs);
    text_add(t, "  %-8s %-5s %8s %14s %12s %14s %14s %14s\n", kind,
             phase < N_PHASES ? phase_name(phase) : "", n, text_count(w->flops, a),
             text_count(w->flops_recomputed, b), text_bytes((int64_t)w->bytes, c),
             text_bytes((int64_t)w->bytes_copied, d), text_bytes((int64_t)w->bytes_sent, e));
}

/* One line for each kind and phase that the action list runs. */
static void runs_text(const Facts *f, Text *t)
{
    const LinkedProgram *lp = &f->job->linked;
    int runs[MAX_KINDS][N_PHASES] = {{0}};
    for (int i = 0; i < lp->n; i++) {
        const Action *x = &lp->list[i].action;
        if (x->kind == A_RUN) runs[lp->model->unit[x->unit].kind][x->phase]++;
    }
    text_add(t, "\nWORK of a step, by program\n  %-8s %-5s %8s %14s %12s %14s %14s %14s\n", "kind",
             "phase", "runs", "flops each", "recomputed", "bytes each", "copied each", "sent each");
    for (int k = 0; k < lp->model->n_kinds; k++)
        for (int p = 0; p < N_PHASES; p++)
            if (runs[k][p])
                work_line(t, lp->model->kind[k].kind, (Phase)p, runs[k][p], &f->of[k][p]);
    work_line(t, "all", N_PHASES, 0, &f->step);
    text_add(t, "    bytes: memory traffic of compute instructions; copied: to and from the host; "
                "sent: to other ranks\n");
}

void explain_cost_text(const Facts *f, Text *t)
{
    runs_text(f, t);
    flops_text(f, t);
}
