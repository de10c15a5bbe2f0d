/* context.c -- the strategy of a job: tensor, sequence and context parallelism together.
 *
 * Ulysses shards heads over cp, or over the part cp_heads of it, within the heads that tp leaves to
 * a rank. */
#include <stdio.h>
#include "base/text.h"
#include "compile/tp_weights.h"
#include "job/job_parts.h"

/* True if tokens have several dims, and no mask: attention runs along one of them. */
static bool has_clips(const Job *job) { return job->settings.config->frames > 0; }

/* True if the ranks of cp share keys, not rows (compile/session.c): a call has few rows, in any
 * number. A call on clips has whole clips, which are sharded as in training. */
static bool shares_keys(const Job *job)
{
    return job->settings.kind == JOB_GENERATE && !has_clips(job);
}

/* The ranks over which heads are sharded by Ulysses; 1: none. */
static int heads_parts(const ParallelSettings *p, ContextKind kind)
{
    const int heads = p->mesh.cp_heads > 1 ? p->mesh.cp_heads : 1;
    return kind == CONTEXT_ULYSSES && p->mesh.cp > 1 ? p->mesh.cp : heads;
}

static Err check_heads(const Job *job, ContextKind kind)
{
    const ParallelSettings *p = &job->settings.parallel;
    const int parts = heads_parts(p, kind), tp = p->mesh.tp > 1 ? p->mesh.tp : 1;
    const int64_t heads = job->settings.config->n_heads, left = heads / tp;
    char ways_out[128];
    if (kind == CONTEXT_ULYSSES && p->mesh.cp_heads && p->mesh.cp_heads != p->mesh.cp)
        return err_fail(
            ERR_CONFIG,
            "mesh.cp_heads=%d with parallel.context=ulysses, which shards heads over "
            "all of mesh.cp=%d; leave mesh.cp_heads out, or set parallel.context=gather",
            p->mesh.cp_heads, p->mesh.cp);
    if (parts == 1 || parts <= left) return OK;
    if (has_clips(job))
        snprintf(ways_out, sizeof ways_out, "parallel.context=dsp, or mesh.cp=%d or less",
                 (int)left);
    else
        snprintf(ways_out, sizeof ways_out,
                 "mesh.cp_heads=%d, the largest part of mesh.cp=%d that works, and "
                 "parallel.context=gather",
                 mesh_largest_part(p->mesh.cp, left), p->mesh.cp);
    return err_fail(
        ERR_CONFIG,
        "%s=%d: the model has %lld heads, of which mesh.tp=%d leaves %lld to a rank; set %s",
        kind == CONTEXT_ULYSSES ? "parallel.context=ulysses with mesh.cp" : "mesh.cp_heads", parts,
        (long long)heads, tp, (long long)left, ways_out);
}

/* Gather and ring need several ranks that share no heads. */
static Err check_way(const ParallelSettings *p, ContextKind kind)
{
    const int cp = p->mesh.cp, less = mesh_largest_part(cp, cp - 1);
    if (p->mesh.cp_heads != cp || kind == CONTEXT_AUTO || kind == CONTEXT_ULYSSES) return OK;
    return err_fail(ERR_CONFIG,
                    "mesh.cp_heads=%d is all of mesh.cp, which leaves one rank to "
                    "parallel.context=%s; set parallel.context=ulysses, or mesh.cp_heads=%d%s",
                    cp, context_name(kind), less, less > 1 ? " or less" : "");
}

/* Key heads that tp replicates cannot be sharded further: the parts would begin within a group. */
static Err check_key_heads(const Job *job, ContextKind kind)
{
    const ParallelSettings *p = &job->settings.parallel;
    const int tp = p->mesh.tp > 1 ? p->mesh.tp : 1;
    const int64_t keys = job->settings.config->n_kv_heads;
    if (heads_parts(p, kind) == 1 || keys % tp == 0) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.context=%s with mesh.cp=%d: mesh.tp=%d does not divide the %lld key "
                    "heads, and their copies cannot be sharded again; set "
                    "parallel.context=gather without mesh.cp_heads, or a mesh.tp that divides them",
                    context_name(kind), p->mesh.cp, tp, (long long)keys);
}

/* A norm over all key heads needs each of them once. */
static Err check_norm(const Job *job)
{
    const ParallelSettings *p = &job->settings.parallel;
    const int tp = p->mesh.tp > 1 ? p->mesh.tp : 1;
    const int64_t keys = job->settings.config->n_kv_heads;
    if (!job->settings.config->q_norm || keys >= tp) return OK;
    return err_fail(ERR_CONFIG,
                    "mesh.tp=%d: %s normalizes its %lld key heads together, so tp cannot replicate "
                    "them; set mesh.tp=%lld or less",
                    tp, job->settings.config->name, (long long)keys, (long long)keys);
}

/* Bit k: some layer shards attention by ContextKind k. */
static unsigned contexts_used(const Job *job)
{
    unsigned used = 0;
    for (int u = 1; u < job->model.n_units - 1; u++) {
        const ContextKind kind = job_unit_options(&job->settings, u).context;
        used |= 1u << (kind == CONTEXT_AUTO ? job->context : kind);
    }
    return used;
}

/* The ranks along cp that share no heads. */
static int ring_ranks(const Job *job)
{
    const unsigned cp = mesh_axes(&job->mesh, VIEW_DENSE, "cp");
    const unsigned heads = mesh_axes(&job->mesh, VIEW_DENSE, "cp_heads");
    return mesh_parts(&job->mesh, VIEW_DENSE, cp & ~heads);
}

/* Makes the choice of one plan and checks that it is defined for these ranks and tokens. */
static Err set_plan(const Job *job, ContextKind kind, Arena *arena, ContextChoice *out)
{
    const int ring = ring_ranks(job);
    ContextChoice c = {.tokens = job->tokens, .seq_len = job->settings.batch.seq_len};
    ContextPlan plan;
    c.inner =
        job_context_inner(&job->settings.parallel, ring, job->settings.parallel.mesh.cp / ring);
    TRY(context_row(context_name(kind), arena, &c.row));
    const ModelConfig *m = job->settings.config;
    const ContextShape shape = {ring, c.inner, job->tokens, !m->full_mask};
    if (context_row_heads(c.row, m->n_heads, m->n_kv_heads) != OK ||
        context_plan(c.row, &shape, arena, &plan) != OK)
        return err_fail(ERR_CONFIG, "parallel.context=%s", err_text());
    *out = c;
    return OK;
}

/* The plans of all ways that some unit has. */
static Err set_plans(Job *job, Arena *arena)
{
    const unsigned used = shares_keys(job) || ring_ranks(job) == 1 ? 0 : contexts_used(job);
    if (has_clips(job)) /* compile/context_along.c is its plan */
        return used >> CONTEXT_RING & 1
                   ? context_row("ring", arena, &job->context_plan[CONTEXT_RING].row)
                   : OK;
    for (ContextKind kind = CONTEXT_RING; kind < N_CONTEXTS; kind++)
        if (used >> kind & 1 && context_is_plan(kind))
            TRY(set_plan(job, kind, arena, &job->context_plan[kind]));
    return OK;
}

/* Maps the rows of a micro-batch. */
static Err map_tokens(Job *job, Arena *arena)
{
    const unsigned cp = mesh_axes(&job->mesh, VIEW_DENSE, "cp");
    const int parts = mesh_parts(&job->mesh, VIEW_DENSE, cp & -cp);
    const BatchShape *batch = &job->settings.batch;
    const bool keys = shares_keys(job);
    job->tokens = job_context_tokens(job->settings.parallel.tokens,
                                     keys ? 1u << job->context : contexts_used(job));
    if (keys || parts == 1) return OK;
    const ModelConfig *c = job->settings.config;
    if (has_clips(job)) job->tokens = TOKENS_CONTIGUOUS; /* whole frames */
    if (has_clips(job))
        return tokens_by_frames(arena, batch->sequences, c->frames, c->places, parts,
                                &job->strategy.tokens);
    if (contexts_used(job) & (1u << CONTEXT_LIGHTSEQ | 1u << CONTEXT_TOKEN_RING))
        return tokens_map_in_order(arena, job->tokens, batch->sequences, batch->seq_len, parts,
                                   &job->strategy.tokens);
    return tokens_map(arena, job->tokens, batch->sequences, batch->seq_len, parts,
                      &job->strategy.tokens);
}

static Err strategy_for(const Job *job, bool sequence, ContextKind kind, Arena *arena,
                        Strategy *out)
{
    const ModelConfig *c = job->settings.config;
    const bool experts = job_shards_experts(&job->settings.parallel.mesh);
    const Strategy *base = sequence ? &strategy_tp_sequence : &strategy_tp;
    if (experts) base = sequence ? &strategy_tp_sequence_dispatch : &strategy_tp_dispatch;
    const Strategy context = shares_keys(job) ? *base
                             : has_clips(job) ? strategy_with_clips(base, kind, &job->mesh)
                                              : strategy_with_context(base, kind, &job->mesh);
    *out = strategy_with_heads(&context, c->n_heads, c->n_kv_heads, c->head_size);
    if (!job->settings.parallel.tp_weights) return OK;
    return tp_weights_strategy(out, &job->model, job->settings.parallel.tp_weights, &job->mesh,
                               arena, out);
}

/* Sets the strategy for one way to shard attention. */
static Err set_strategy(Job *job, ContextKind kind, Arena *arena)
{
    job->context = kind;
    TRY(strategy_for(job, job->settings.parallel.sequence, kind, arena, &job->strategy));
    TRY(map_tokens(job, arena));
    return set_plans(job, arena);
}

/* Makes the strategies of units with other options. All of them lay parameters out alike, and all
 * inputs: Ulysses and plans that move queries read the key ranges of all tokens, and then every
 * rank has them. */
static Err set_strategies(Job *job, Arena *arena)
{
    const unsigned used = contexts_used(job);
    const unsigned all = 1u << CONTEXT_ULYSSES | 1u << CONTEXT_LIGHTSEQ | 1u << CONTEXT_TOKEN_RING;
    const bool whole = (used & all) && (used & ~all) && job->mesh.world > 1;
    Strategy *inner;
    TRY(ARENA_NEW(arena, 2 * N_CONTEXTS, &inner));
    TRY(ARENA_NEW(arena, 2 * N_CONTEXTS, &job->strategy_of));
    for (int i = 0; i < 2 * N_CONTEXTS; i++) {
        TRY(strategy_for(job, i >= N_CONTEXTS, (ContextKind)(i % N_CONTEXTS), arena, &inner[i]));
        inner[i].tokens = job->strategy.tokens;
        job->strategy_of[i] = whole ? strategy_with_whole_ranges(&inner[i]) : inner[i];
    }
    return OK;
}

/* Of a model of clips. */
static Err check_clips(const Job *job, ContextKind kind)
{
    const ParallelSettings *p = &job->settings.parallel;
    if (!context_is_along(kind))
        return err_fail(ERR_CONFIG,
                        "parallel.context=%s: %s attends along frames and along places, without a "
                        "mask; set dsp, ulysses, ring, gather, or auto, which is dsp",
                        context_name(kind), job->settings.config->name);
    if (p->mesh.cp_heads > 1)
        return err_fail(ERR_CONFIG,
                        "mesh.cp_heads=%d: heads of a model of clips are sharded over all of "
                        "mesh.cp, or not at all; leave it out, or set parallel.context=ulysses",
                        p->mesh.cp_heads);
    if (p->tokens == TOKENS_AUTO) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.tokens=%s: a model of clips is sharded by frames; leave it out",
                    token_map_name(p->tokens));
}

/* The checks of every way that some unit has. */
static Err check_ways(const Job *job)
{
    const ParallelSettings *p = &job->settings.parallel;
    for (int u = -1; u < job->model.n_units; u++) {
        const ContextKind kind = u < 0 ? p->context : job_unit_options(&job->settings, u).context;
        if (u > 0 && kind == job_unit_options(&job->settings, u - 1).context) continue;
        if (has_clips(job)) TRY(check_clips(job, kind));
        if (!has_clips(job) && kind == CONTEXT_DSP)
            return err_fail(ERR_CONFIG,
                            "parallel.context=dsp: tokens of %s have one dim; it needs a model of "
                            "clips, such as stdit-tiny",
                            job->settings.config->name);
        TRY(check_way(p, kind));
        TRY(check_heads(job, kind));
        TRY(check_key_heads(job, kind));
    }
    return OK;
}

/* The way of the job; auto also chooses mesh.cp_heads. */
static Err choose(Job *job, Arena *arena, ContextKind *kind)
{
    ParallelSettings *p = &job->settings.parallel;
    *kind = CONTEXT_GATHER;
    TRY(check_norm(job));
    if (shares_keys(job) || p->mesh.cp <= 1) return OK;
    TRY(check_ways(job));
    *kind = p->mesh.cp_heads == p->mesh.cp ? CONTEXT_ULYSSES : p->context;
    if (has_clips(job)) {
        if (*kind == CONTEXT_AUTO) *kind = CONTEXT_DSP; /* it sends least */
        return OK;
    }
    TRY(job_choose_context(&job->settings, arena, &job->search));
    if (job->search.n == 0) return OK;
    *kind = job->search.list[job->search.best].kind;
    if (p->mesh.cp_heads == 0) p->mesh.cp_heads = context_heads(&job->search, p->mesh.cp);
    return OK;
}

static Err check_tp_weights(const Job *job, Arena *arena)
{
    const ModelConfig *c = job->settings.config;
    const Strategy s = strategy_with_heads(&strategy_tp, c->n_heads, c->n_kv_heads, c->head_size);
    char key[WRITTEN_KEY_BYTES];
    job_written_key(job->settings.origin.tp_weights, "parallel.tp_weights", key);
    return tp_weights_check(&(TpCheck){
        .key = key,
        .rules = job->settings.parallel.tp_weights,
        .s = &s,
        .m = &job->model,
        .tp = mesh_parts(&job->mesh, VIEW_DENSE, mesh_axes(&job->mesh, VIEW_DENSE, "tp")),
        .keeps_heads = tp_weights_keep_heads(&job->mesh),
        .temp = arena});
}

Err job_choose_strategy(Job *job, Arena *arena)
{
    ContextKind kind;
    TRY(mesh_sized(&job->settings.parallel.mesh, &job->mesh));
    TRY(choose(job, arena, &kind));
    TRY(mesh_sized(&job->settings.parallel.mesh, &job->mesh));
    TRY(check_tp_weights(job, arena));
    TRY(set_strategy(job, kind, arena));
    return set_strategies(job, arena);
}
