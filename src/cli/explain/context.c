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
 * printed. */
#include "cli/explain/explain.h"

#include "compile/context/check.h"

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
    const double keys = 2 * (double)(s->halves[PAYLOAD_KV] + s->halves[PAYLOAD_DKV]);
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

/* One line per row and per token map that it is defined for. */
static Err add_table(const Facts *f, ContextShape s, Arena *temp, Text *out)
{
    int n;
    const ContextRow *row = context_rows(&n);
    char forward[24], backward[24];
    text_add(out, "  %-12s %-11s %9s %9s  %s\n", "plan", "tokens", "forward", "backward",
             "elements that a rank sends per layer and micro-batch; work");
    for (int i = 0; i < n; i++)
        for (int tokens = 0; tokens < N_TOKEN_MAPS; tokens++) {
            const HalfBlock half = half_block(f, s.ranks);
            ContextPlan plan[2];
            ContextCounts counts[2];
            s.tokens = tokens;
            if (!(row[i].tokens >> tokens & 1)) continue;
            TRY(both_plans(&row[i], &s, temp, plan, counts));
            text_add(out, "  %-12s %-11s %9s %9s  busiest rank %.3f of the mean\n", row[i].name,
                     token_map_name(tokens),
                     text_count(elements_sent(&counts[0].sent, false, half, s.ranks), forward),
                     text_count(elements_sent(&counts[1].sent, true, half, s.ranks), backward),
                     counts[0].balance);
        }
    return OK;
}

/* The run's token map; if that is open, zigzag where the plan has it, else contiguous. */
static TokenMap tokens_of(const Job *job, const ContextRow *row)
{
    if (job->settings.parallel.tokens != TOKENS_AUTO) return job->tokens;
    return row->tokens >> TOKENS_ZIGZAG & 1 ? TOKENS_ZIGZAG : TOKENS_CONTIGUOUS;
}

Err explain_context_text(const Facts *f, const char *name, Arena *temp, Text *out)
{
    const MeshSizes *mesh = &f->job->settings.parallel.mesh;
    const bool chosen =
        f->job->search.heads; /* cp_heads, by auto: the plan is shown over all of cp */
    const int heads = mesh->cp_heads > 1 && !chosen ? mesh->cp_heads : 1;
    const int cp = mesh->cp > 1 ? mesh->cp : 1;
    const int ranks = cp / heads, given = f->job->settings.parallel.cp_inner;
    const int half = ranks % 2 ? ranks : ranks / 2; /* a double ring is shown on two hosts */
    ContextShape s = {.ranks = ranks, .inner = given ? given : half, .causal = true};
    const ContextRow *row;
    ContextPlan plan[2];
    ContextCounts counts[2];
    TRY(context_row(name, temp, &row));
    s.tokens = tokens_of(f->job, row);
    if (s.ranks == 1)
        return err_fail(
            ERR_CONFIG, "explain: --context %s: mesh.cp=%d and mesh.cp_heads=%d leave one rank; %s",
            name, cp, heads, cp > 1 ? "leave mesh.cp_heads out" : "set mesh.cp=2 or more");
    TRY(both_plans(row, &s, temp, plan, counts));
    text_add(out, "ATTENTION PLAN %s: %s\n  %d ranks of cp, %s tokens, causal mask\n", row->name,
             row->about, s.ranks, token_map_name(s.tokens));
    TRY(add_drawing(&plan[0], "forward", temp, out));
    TRY(add_drawing(&plan[1], "backward", temp, out));
    return add_table(f, s, temp, out);
}
