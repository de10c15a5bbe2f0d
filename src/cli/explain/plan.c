/* plan.c -- the first section of an explanation: the model, the plan, the rank's coordinates. */
#include "cli/explain/explain.h"

#include "cli/context_text.h"
#include "cli/tp_text.h"
#include "cli/units_text.h"
#include "job/batch.h"

static const char *optim_name(OptimKind kind) { return kind == OPTIM_ADAMW ? "adamw" : "sgd"; }

/* Prints "pp=1 dp=2 cp=1 tp=2: this is rank 3 of 4: dp 1, tp 1". */
static void mesh_text(const Facts *f, Text *t)
{
    const Mesh *m = &f->job->mesh;
    const View *v = &m->view[VIEW_DENSE];
    int coord[MAX_AXES];
    bool any = false;
    mesh_coords(m, VIEW_DENSE, f->job->linked.rank, coord);
    text_add(t, "  mesh       ");
    mesh_view_text(t, m, VIEW_DENSE);
    text_add(t, ": this is rank %d of %d", f->job->linked.rank, m->world);
    for (int i = 0; i < v->n_axes; i++) {
        if (v->size[i] == 1) continue;
        text_add(t, "%s%s %d", any ? ", " : ": ", v->name[i], coord[i]);
        any = true;
    }
    text_add(t, "\n");
}

/* Prints how much of the model travels over cp, if anything does. */
static void weights_text(const Facts *f, Text *t)
{
    const Model *m = &f->job->model;
    const Mesh *mesh = &f->job->mesh;
    int64_t count = 0;
    for (int p = 0; p < m->n_packs; p++)
        if (m->pack[p].view == VIEW_WEIGHT) count += m->pack[p].count;
    if (count == 0) return;
    text_add(t,
             "  weights    streamed over cp: each of %d ranks owns a part of %lld of the %lld "
             "parameters, and uses\n             the others in turn, at most two parts of a weight "
             "besides its own\n",
             mesh_parts(mesh, VIEW_DENSE, mesh_axes(mesh, VIEW_DENSE, "cp")), (long long)count,
             (long long)model_param_count(m));
}

/* The lines that depend on ZeRO: sharded tensors, times at which weights are gathered and gradients
 * reduced. */
static void zero_text(const Facts *f, Text *t)
{
    static const char *const shared[] = {"nothing is", "moments are", "moments and gradients are",
                                         "moments, gradients and weights are"};
    const ParallelSettings *p = &f->job->settings.parallel;
    const Mesh *m = &f->job->mesh;
    const unsigned axes = mesh_shard_axes(m, VIEW_DENSE);
    const bool each = f->job->switches[0].reduce == REDUCE_AFTER_EACH;
    char name[GROUP_TEXT_BYTES];
    text_add(t, "  zero       %d: %s sharded over %s, %d rank%s", p->zero, shared[p->zero],
             axes_text(m, axes, name), mesh_parts(m, VIEW_DENSE, axes),
             mesh_parts(m, VIEW_DENSE, axes) == 1 ? "" : "s");
    text_add(t, p->zero ? ", in whole blocks of %lld elements\n" : "\n",
             (long long)f->job->linked.block);
    if (p->zero == 3)
        text_add(t, "  gather     before each use; at most %d units at once (parallel.live)\n",
                 p->live ? p->live : 2);
    else
        text_add(t, "  gather     %s\n",
                 p->zero ? "once per step, kept until the last use"
                 : p->mesh.stream_weights
                     ? "never: every rank has all weights that are not streamed"
                     : "never: every rank has all weights");
    weights_text(f, t);
    text_add(t, "  reduce     gradients are reduced over ranks after %s micro-batch\n",
             each ? "each" : "the last");
    text_add(t, "  sequence   %s\n",
             p->sequence ? "tokens of the residual stream are sharded over tp"
                         : "ranks along tp have all tokens of the residual stream");
    text_add(t, "  regather   activations that F gathered are %s\n",
             p->keep_gathered ? "kept for the backward phases" : "gathered again");
    if (p->fold > 1)
        text_add(t, "  fold       sums in the order of %d data-parallel ranks\n", p->fold);
}

/* Lists the numbers that this rank's micro-batches have in the step. */
static void numbers_text(const Facts *f, const BatchSplit *split, Text *t)
{
    enum { SHOWN = 8 };
    const int64_t global = f->global;
    text_add(t, "             of the step's micro-batches 0 to %lld they are",
             (long long)(batch_room(split) / split->each - 1));
    for (int i = 0; i < split->micros; i++) {
        if (i == SHOWN && split->micros > SHOWN + 1) text_add(t, ", ..");
        if (i >= SHOWN && i < split->micros - 1) continue;
        text_add(t, "%s %lld", i ? "," : "",
                 (long long)(batch_part(split, global, i).first / split->each));
    }
    text_add(t, ": micro-batch j of dp rank r is j x %d + r\n", split->dp * split->fold);
}

/* The last micro-batches of a rank may be short or empty: batch.global need not be a multiple. */
static void micro_text(const Facts *f, Text *t)
{
    const BatchSplit split = batch_split(f->job);
    int short_ones = 0, empty = 0;
    for (int i = 0; i < split.micros; i++) {
        const int64_t n = batch_part(&split, f->global, i).n;
        short_ones += n > 0 && n < split.each;
        empty += n == 0;
    }
    text_add(t, "  micro      %d micro-batch%s of %lld %s%s: %lld tokens each", split.micros,
             split.micros == 1 ? "" : "es", (long long)split.each,
             f->model->frames > 0 ? "clip" : "sequence", split.each == 1 ? "" : "s",
             (long long)f->tokens_micro);
    if (short_ones) text_add(t, ", the last one fewer");
    if (empty) text_add(t, ", %d without tokens", empty);
    text_add(t, "\n");
    numbers_text(f, &split, t);
}

/* Slices have different lengths: later tokens attend to more keys, so later slices are shorter. */
static void slices_text(const Facts *f, Text *t)
{
    enum { SHOWN = 16 };
    const LinkedProgram *lp = &f->job->linked;
    if (lp->slices == 1) return;
    text_add(t, "  slices     %d of each sequence:", lp->slices);
    for (int q = 0; q < lp->slices && q < SHOWN; q++)
        text_add(t, " %lld", (long long)(lp->slice_at[q + 1] - lp->slice_at[q]));
    text_add(t, "%s tokens\n", lp->slices > SHOWN ? " .." : "");
}

/* How even causal attention is: the work of the busiest rank over the mean, with each token map.
 * Under Ulysses a rank attends over all tokens of its heads, so the map has no effect. */
static Err balance_text(const Job *job, Arena *temp, Text *t)
{
    const BatchShape *batch = &job->settings.batch;
    const int64_t window = job->settings.config->window;
    const double heads = context_heads_balance(job);
    text_add(t, "             causal attention of the busiest rank over the mean");
    if (window > 0) text_add(t, ", within windows of %lld tokens", (long long)window);
    if (job->context == CONTEXT_ULYSSES) {
        text_add(t, ": %.3f with any map, by heads\n", heads);
        return OK;
    }
    for (int i = TOKENS_CONTIGUOUS; i < N_TOKEN_MAPS; i++) {
        const SpanMap *map;
        TRY(tokens_map(temp, (TokenMap)i, batch->sequences, batch->seq_len,
                       job->strategy.tokens->n_parts, &map));
        text_add(t, "%s %s %.3f", i > TOKENS_CONTIGUOUS ? "," : ":", token_map_name((TokenMap)i),
                 heads * tokens_causal_balance(map, batch->seq_len, window));
    }
    text_add(t, "\n");
    return OK;
}

static Err cp_text(const Facts *f, Arena *temp, Text *t)
{
    const Job *job = f->job;
    const bool clips = job->settings.config->frames > 0;
    const HeldSpans *rows = &job->linked.input_rows[clips ? INPUT_CLIPS : INPUT_TOKENS];
    if (!job->strategy.tokens) return OK;
    text_add(t, "  context    ");
    context_text(job, t);
    text_add(t, "\n");
    context_table_text(job, "             ", t);
    text_add(t, "  tokens     ");
    context_tokens_text(job, t);
    text_add(t, ": this one has %lld of each micro-batch's %lld\n", (long long)rows->count,
             (long long)job->model.rows);
    return job->settings.config->full_mask ? OK : balance_text(job, temp, t);
}

static Err plan_text(const Facts *f, Arena *temp, Text *t)
{
    const JobSettings *s = &f->job->settings;
    text_add(t, "\nPLAN\n");
    mesh_text(f, t);
    explain_experts_text(f->job, t);
    text_add(t, "  device     %s, %s; sums and statistics in %s\n", f->device, dtype_name(s->dtype),
             dtype_name(dtype_wide(s->dtype)));
    fp8_text(s, t);
    text_add(t, "  batch      %lld %s of %lld tokens: %lld tokens per step\n", (long long)f->global,
             f->model->frames > 0 ? "clips" : "sequences", (long long)s->batch.seq_len,
             (long long)f->tokens_step);
    micro_text(f, t);
    TRY(cp_text(f, temp, t));
    slices_text(f, t);
    if (!s->parallel.units && !s->parallel.zero_weights) zero_text(f, t);
    tp_text(f->job, t);
    units_text(f->job, t);
    text_add(t, "  schedule   %s\n", s->schedule);
    if (!s->parallel.units) {
        const UnitOptions here = facts_options_here(f);
        text_add(t, "  recompute  %s%s\n", job_recompute_text(&here),
                 s->n_stage_rules ? " on this stage" : "");
        text_add(t, "  offload    %s\n",
                 s->compile.offload_names ? s->compile.offload_names : "none");
    }
    text_add(t, "  optimizer  %s, lr %g, weight decay %g, clip %g\n", optim_name(s->optim.kind),
             f->lr, s->optim.weight_decay, s->optim.clip);
    return OK;
}

Err explain_plan_text(const Facts *f, Arena *temp, Text *t)
{
    const int64_t count = model_param_count(&f->job->model);
    char a[24];
    text_add(t, "MODEL\n");
    model_config_print(f->model, t);
    text_add(t, "  %s parameters (%lld)\n", text_count((double)count, a), (long long)count);
    return plan_text(f, temp, t);
}
