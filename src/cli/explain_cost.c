/* explain_cost.c -- the last page of an explanation: bytes that are there, flops that are done. */
#include <stdio.h>
#include <string.h>
#include "cli/explain.h"
#include "schedule/textform.h"

static void bytes_line(Text *t, const char *arena, const char *scope, const char *what,
                       size_t bytes)
{
    char human[24];
    text_add(t, "  %-6s %-8s %-46s %16zu  %10s\n", arena, scope, what, bytes,
             text_bytes((int64_t)bytes, human));
}

/* The work arena: its peak, and what lives where it is highest. */
static void work_text(const LinkedProgram *lp, int slices, Text *t)
{
    static const struct {
        Region region;
        const char *scope, *what;
    } row[] = {
        {REGION_FRAME_I, "frame", "kept from F for I"},
        {REGION_FRAME_W, "frame", "kept from F for W"},
        {REGION_CARRY, "frame", "carried from I to W"},
        {REGION_Y, "frame", "stream between units (y, read as x)"},
        {REGION_DX, "frame", "gradient of the stream (dx, read as dy)"},
        {REGION_SCRATCH, "scratch", "within the phase that runs"},
    };
    char action[ACTION_TEXT_BYTES], what[128];
    bytes_line(t, "work", "", "the peak: by lifetimes, packed", lp->bytes[ARENA_WORK]);
    bytes_line(t, "", "", "  the least that any packing needs", lp->live[ARENA_WORK]);
    if (lp->n == 0) return;
    action_text(&lp->list[lp->peak_at].action, slices, action);
    snprintf(what, sizeof what, "of which, at %s (action %d of %d):", action, lp->peak_at + 1,
             lp->n);
    text_add(t, "  %-6s %-8s   %s\n", "", "", what);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (!lp->peak_region[row[i].region]) continue;
        snprintf(what, sizeof what, "    %s", row[i].what);
        bytes_line(t, "", row[i].scope, what, lp->peak_region[row[i].region]);
    }
}

static void memory_text(const Facts *f, Text *t)
{
    const LinkedProgram *lp = &f->job->linked;
    char what[64];
    text_add(t, "\nMEMORY of rank 0, in bytes\n  %-6s %-8s %s\n", "arena", "scope", "what");
    bytes_line(t, "state", "state", "weights", f->weights);
    if (lp->n_moments) bytes_line(t, "", "state", "moments of the optimizer", f->moments);
    bytes_line(t, "step", "step", "sums of gradients", f->gradients);
    snprintf(what, sizeof what, "inputs of %d micro-batch%s", lp->micros,
             lp->micros == 1 ? "" : "es");
    bytes_line(t, "", "step", what, f->inputs);
    bytes_line(t, "", "step", "losses and the norm", f->other);
    work_text(lp, f->job->units.slices, t);
    bytes_line(t, "host", "frame", "offloaded, in the host's memory", lp->bytes[ARENA_HOST]);
    bytes_line(t, "all", "", "known before the run, and all that it takes", f->total);
}

static void flops_line(Text *t, const char *what, double flops, double of)
{
    char human[24];
    text_add(t, "  %-46s %20.0f  %8s", what, flops, text_count(flops, human));
    if (of > 0) text_add(t, "  %5.1f%%", 100.0 * flops / of);
    text_add(t, "\n");
}

static void flops_text(const Facts *f, Text *t)
{
    const Work *w = &f->step;
    const double all = w->flops + w->flops_again;
    text_add(t, "\nFLOPS of a step, every row live\n");
    flops_line(t, "forward", f->flops_forward, all);
    flops_line(t, "backward", w->flops - f->flops_forward, all);
    flops_line(t, "recomputed", w->flops_again, all);
    flops_line(t, "all", all, 0);
    flops_line(t, "for comparison: tokens x (6 N + 12 L d T)", f->flops_formula, 0);
    text_add(t,
             "    N parameters, L layers, d width of the heads together, T tokens of a sequence\n");
}

/* Per kind and phase, for those that the list runs. */
static void runs_text(const Facts *f, Text *t)
{
    const LinkedProgram *lp = &f->job->linked;
    int runs[MAX_KINDS][N_PHASES] = {{0}};
    char a[24], b[24], c[24], d[24];
    for (int i = 0; i < lp->n; i++) {
        const Action *x = &lp->list[i].action;
        if (x->kind == A_RUN) runs[lp->model->unit[x->unit].kind][x->phase]++;
    }
    text_add(t, "\nWORK of a step, by program\n  %-8s %-5s %8s %14s %12s %14s %14s\n", "kind",
             "phase", "runs", "flops each", "recomputed", "bytes each", "copied each");
    for (int k = 0; k < lp->model->n_kinds; k++)
        for (int p = 0; p < N_PHASES; p++) {
            const Work *w = &f->of[k][p];
            if (!runs[k][p]) continue;
            text_add(t, "  %-8s %-5s %8d %14s %12s %14s %14s\n", lp->model->kind[k].kind,
                     phase_name((Phase)p), runs[k][p], text_count(w->flops, a),
                     text_count(w->flops_again, b), text_bytes((int64_t)w->bytes, c),
                     text_bytes((int64_t)w->bytes_copied, d));
        }
    text_add(t, "  %-8s %-5s %8s %14s %12s %14s %14s\n", "all", "", "",
             text_count(f->step.flops, a), text_count(f->step.flops_again, b),
             text_bytes((int64_t)f->step.bytes, c), text_bytes((int64_t)f->step.bytes_copied, d));
    text_add(t, "    bytes: read and written by instructions on compute; copied: to the host and "
                "back\n");
}

/* Units of one kind whose packs come and go alike, in one line. */
static void gathers_text(const Facts *f, Text *t)
{
    const Model *m = &f->job->model;
    const GatherCount *count = f->job->gathers;
    GatherCount all = {0};
    for (int u = 0; u < m->n_units; u++) {
        all.uses += count[u].uses;
        all.gathers += count[u].gathers;
        all.saved += count[u].saved;
    }
    if (all.uses == 0) return; /* every pack lies whole on the rank */
    text_add(t, "\nGATHERS of a step: parameters from the ranks that share them\n");
    text_add(t, "  %-24s %8s %8s %12s\n", "unit", "uses", "gathers", "still there");
    for (int u = 0, last; u < m->n_units; u = last + 1) {
        char name[64];
        for (last = u; last + 1 < m->n_units && m->unit[last + 1].kind == m->unit[u].kind &&
                       memcmp(&count[last + 1], &count[u], sizeof *count) == 0;)
            last++;
        snprintf(name, sizeof name, last > u ? "%s to %s" : "%s", m->unit[u].name,
                 m->unit[last].name);
        text_add(t, "  %-24s %8d %8d %12d%s\n", name, count[u].uses, count[u].gathers,
                 count[u].saved, last > u ? "  each" : "");
    }
    text_add(t, "  %-24s %8d %8d %12d\n", "all", all.uses, all.gathers, all.saved);
}

void explain_cost_text(const Facts *f, Text *t)
{
    memory_text(f, t);
    gathers_text(f, t);
    runs_text(f, t);
    flops_text(f, t);
}
