/* context.c -- `sheaf explain --context NAME`: an attention plan for the cp ranks of the run.
 *
 *     $ sheaf explain run.yaml mesh.cp=2 --context ring
 *     ATTENTION PLAN ring: keys travel from neighbour to neighbour; holds two blocks
 *       2 ranks of cp, contiguous tokens, causal mask
 *       forward
 *         rank 0 | kv0>1,kv1<1 0x0 0x1
 *         rank 1 | kv1>0,kv0<0 1x1 1x0
 *
 * followed by the backward plan and by what all plans send. The checker proves each before it is
 * printed. With --svg FILE the plan is drawn over time. */
#include "cli/explain/explain.h"

#include <stdio.h>

#include "cli/new_file.h"
#include "compile/context/check.h"
#include "job/context_svg.h"

/* Elements of the model's queries and keys in half a block, one layer. */
typedef struct {
    double queries, keys;
} HalfBlock;

static HalfBlock half_block(const Facts *f, int ranks)
{
    const double tokens = (double)f->tokens_micro / ranks / 2;
    const ModelConfig *m = f->model;
    return (HalfBlock){tokens * (double)(m->n_heads * m->head_size),
                       tokens * (double)(m->n_kv_heads * m->head_size)};
}

/* Elements that a rank sends on average. lse and delta, one number per head, are left out. */
static double elements_sent(const ContextSent *s, bool backward, HalfBlock half, int ranks)
{
    double keys = 2 * (double)(s->halves[PAYLOAD_KV] + s->halves[PAYLOAD_DKV]);
    for (int i = PAYLOAD_K; i <= PAYLOAD_DV; i++) keys += (double)s->halves[i];
    const double queries = (backward ? 2 : 1) * (double)s->halves[PAYLOAD_Q] +
                           (double)(s->halves[PAYLOAD_O] + s->halves[PAYLOAD_DQ]);
    return (keys * half.keys + queries * half.queries) / ranks;
}

static Err add_drawing(const ContextPlan *p, const char *title, Arena *temp, Text *out)
{
    const char *drawing;
    TRY(context_draw(p, "    ", temp, &drawing));
    text_add(out, "  %s\n%s", title, drawing);
    return OK;
}

static Err both_plans(const ContextRow *row, const ContextShape *s, Arena *temp,
                      ContextPlan plan[2], ContextCounts counts[2])
{
    TRY(context_plan(row, s, temp, &plan[0]));
    TRY(context_check(&plan[0], temp, &counts[0]));
    TRY(context_backward(&plan[0], temp, &plan[1]));
    return context_check(&plan[1], temp, &counts[1]);
}

/* The line of one plan, if it is defined for the shape and the heads of the model. */
static Err add_row(const Facts *f, const ContextRow *row, const ContextShape *s, Arena *temp,
                   Text *out)
{
    const HalfBlock half = half_block(f, s->ranks);
    char forward[24], backward[24];
    ContextPlan plan[2];
    ContextCounts counts[2];
    if (context_row_check(row, s, temp) != OK ||
        context_row_heads(row, f->model->n_heads, f->model->n_kv_heads) != OK)
        return OK;
    TRY(both_plans(row, s, temp, plan, counts));
    text_add(out, "  %-12s %-11s %9s %9s  busiest rank %.3f of the mean\n", row->name,
             token_map_name(s->tokens),
             text_count(elements_sent(&counts[0].sent, false, half, s->ranks), forward),
             text_count(elements_sent(&counts[1].sent, true, half, s->ranks), backward),
             counts[0].balance);
    return OK;
}

/* One line per row and per token map that it is defined for, of those that the model can have. */
static Err add_table(const Facts *f, ContextShape s, Arena *temp, Text *out)
{
    int n;
    s.causal = !f->model->full_mask;
    const ContextRow *row = context_rows(&n);
    text_add(out, "  %-12s %-11s %9s %9s  %s\n", "plan", "tokens", "forward", "backward",
             "elements that a rank sends per layer and micro-batch; work");
    for (int i = 0; i < n; i++)
        for (int tokens = 0; tokens < N_TOKEN_MAPS; tokens++) {
            const size_t mark = arena_mark(temp);
            s.tokens = tokens;
            TRY(add_row(f, &row[i], &s, temp, out));
            arena_rewind(temp, mark);
        }
    return OK;
}

/* The run's token map; if that is open, zigzag where the plan has it, else contiguous. */
static TokenMap tokens_of(const Job *job, const ContextRow *row)
{
    if (job->settings.parallel.tokens != TOKENS_AUTO) return job->tokens;
    return row->tokens >> TOKENS_ZIGZAG & 1 ? TOKENS_ZIGZAG : TOKENS_CONTIGUOUS;
}

/* The plan that is shown: for the ranks that heads leave, on two hosts if it has inner rings. */
static Err find_shape(const Facts *f, const char *name, Arena *temp, const ContextRow **row,
                      ContextShape *out)
{
    const MeshSizes *mesh = &f->job->settings.parallel.mesh;
    const bool chosen = f->job->search.heads; /* cp_heads, by auto: the plan is that of all of cp */
    const int heads = mesh->cp_heads > 1 && !chosen ? mesh->cp_heads : 1;
    const int cp = mesh->cp > 1 ? mesh->cp : 1;
    const int ranks = cp / heads, given = f->job->settings.parallel.cp_inner;
    const int half = ranks % 2 ? ranks : ranks / 2;
    if (f->model->frames > 0)
        return err_fail(ERR_CONFIG,
                        "explain: --context draws plans along tokens of one dim, and %s attends "
                        "along frames and along places; leave it out (docs/DSP.md)",
                        f->model->name);
    if (context_row(name, temp, row) != OK)
        return err_fail(ERR_CONFIG, "explain: --context: %s", err_text());
    if (context_row_heads(*row, f->model->n_heads, f->model->n_kv_heads) != OK)
        return err_fail(ERR_CONFIG, "explain: --context %s", err_text());
    *out = (ContextShape){.ranks = ranks,
                          .inner = given ? given : half,
                          .causal = !(*row)->passes && !f->model->full_mask};
    out->tokens = tokens_of(f->job, *row);
    if (ranks > 1 && context_row_check(*row, out, temp) != OK)
        return err_fail(ERR_CONFIG, "explain: --context %s", err_text());
    if (ranks > 1) return OK;
    return err_fail(ERR_CONFIG,
                    "explain: --context %s: mesh.cp=%d and mesh.cp_heads=%d leave one rank; %s",
                    name, cp, heads, cp > 1 ? "leave mesh.cp_heads out" : "set mesh.cp=2 or more");
}

Err explain_context_text(const Facts *f, const char *name, Arena *temp, Text *out)
{
    ContextShape s;
    const ContextRow *row;
    ContextPlan plan[2];
    ContextCounts counts[2];
    TRY(find_shape(f, name, temp, &row, &s));
    TRY(both_plans(row, &s, temp, plan, counts));
    text_add(out, "ATTENTION PLAN %s: %s\n  %d ranks of cp, %s tokens, %s mask\n", row->name,
             row->about, s.ranks, token_map_name(s.tokens), s.causal ? "causal" : "full");
    TRY(add_drawing(&plan[0], "forward", temp, out));
    TRY(add_drawing(&plan[1], "backward", temp, out));
    if (row->passes && !f->model->full_mask) {
        char forward[24], backward[24];
        const HalfBlock half = half_block(f, s.ranks);
        text_add(out, "  a rank sends %s elements forward and %s backward\n",
                 text_count(elements_sent(&counts[0].sent, false, half, s.ranks), forward),
                 text_count(elements_sent(&counts[1].sent, true, half, s.ranks), backward));
        text_add(out, "  the plans for the causal mask of this model:\n");
    }
    return add_table(f, s, temp, out);
}

/* A machine whose attention takes one second for half of the pairs of two blocks, and whose links
 * take one for the keys of a block. */
static void drawing_rates(const Facts *f, int ranks, CostRates *r, ContextLoad *l)
{
    const ModelConfig *m = f->model;
    const BatchShape *b = &f->job->settings.batch;
    *l = (ContextLoad){.rates = r,
                       .dtype = f->job->model.dtype,
                       .stride = 1,
                       .sequences = (double)b->sequences,
                       .seq_len = (double)b->seq_len,
                       .window = (double)m->window,
                       .heads = (double)m->n_heads,
                       .key_heads = (double)m->n_kv_heads,
                       .head_width = (double)m->head_size};
    const double block = l->seq_len / ranks;
    *r = (CostRates){.memory_Bps = 1e30, .host_Bps = 1e30, .n_levels = 1};
    for (int t = 0; t < N_DTYPES; t++) {
        r->flops_per_s[WORK_ATTENTION][t] =
            2 * l->heads * l->head_width * block * block * l->sequences;
        r->flops_per_s[WORK_GEMM][t] = r->flops_per_s[WORK_POINTWISE][t] = 1e30;
    }
    r->level[0].Bps =
        2 * l->sequences * block * l->key_heads * l->head_width * (double)dtype_bytes(l->dtype);
}

Err explain_context_svg(const Facts *f, const char *name, const char *path, Arena *temp)
{
    ContextShape s;
    const ContextRow *row;
    ContextPlan plan[2];
    ContextCounts counts[2];
    CostRates rates;
    ContextLoad load;
    const char *picture;
    char title[256];
    TRY(find_shape(f, name, temp, &row, &s));
    TRY(both_plans(row, &s, temp, plan, counts));
    drawing_rates(f, s.ranks, &rates, &load);
    snprintf(title, sizeof title, "%s, %d ranks, %s tokens: a hop of keys takes a visit", row->name,
             s.ranks, token_map_name(s.tokens));
    TRY(context_svg(plan, &load, title, temp, &picture));
    return new_file_write("--svg", path, picture);
}
