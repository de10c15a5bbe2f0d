/* context.c -- the strategy of a job: tensor, sequence and context parallelism together.
 *
 * Ulysses shards heads over cp, or over the part cp_heads of it, within the heads that tp leaves to
 * a rank. */
#include "base/text.h"
#include "job/job_parts.h"

/* The ranks over which heads are sharded by Ulysses; 1: none. */
static int heads_parts(const ParallelSettings *p)
{
    const int heads = p->mesh.cp_heads > 1 ? p->mesh.cp_heads : 1;
    return p->context == CONTEXT_ULYSSES && p->mesh.cp > 1 ? p->mesh.cp : heads;
}

static Err check_heads(const Job *job)
{
    const ParallelSettings *p = &job->settings.parallel;
    const int parts = heads_parts(p), tp = p->mesh.tp > 1 ? p->mesh.tp : 1;
    const int64_t heads = job->settings.config->n_heads, left = heads / tp;
    if (p->context == CONTEXT_ULYSSES && p->mesh.cp_heads && p->mesh.cp_heads != p->mesh.cp)
        return err_fail(
            ERR_CONFIG,
            "mesh.cp_heads=%d with parallel.context=ulysses, which shards heads over "
            "all of mesh.cp=%d; leave mesh.cp_heads out, or set parallel.context=gather",
            p->mesh.cp_heads, p->mesh.cp);
    if (parts == 1 || parts <= left) return OK;
    return err_fail(ERR_CONFIG,
                    "%s=%d: the model has %lld heads, of which mesh.tp=%d leaves %lld to a rank; "
                    "set mesh.cp_heads=%d, the largest part of mesh.cp=%d that works, and "
                    "parallel.context=gather",
                    p->context == CONTEXT_ULYSSES ? "parallel.context=ulysses with mesh.cp"
                                                  : "mesh.cp_heads",
                    parts, (long long)heads, tp, (long long)left,
                    mesh_largest_part(p->mesh.cp, left), p->mesh.cp);
}

/* Gather and ring need several ranks that share no heads. */
static Err check_way(const ParallelSettings *p)
{
    const int cp = p->mesh.cp, less = mesh_largest_part(cp, cp - 1);
    if (p->mesh.cp_heads != cp || p->context == CONTEXT_AUTO || p->context == CONTEXT_ULYSSES)
        return OK;
    return err_fail(ERR_CONFIG,
                    "mesh.cp_heads=%d is all of mesh.cp, which leaves one rank to "
                    "parallel.context=%s; set parallel.context=ulysses, or mesh.cp_heads=%d%s",
                    cp, context_name(p->context), less, less > 1 ? " or less" : "");
}

/* Key heads that tp replicates cannot be sharded further: the parts would begin within a group. */
static Err check_key_heads(const Job *job)
{
    const ParallelSettings *p = &job->settings.parallel;
    const int tp = p->mesh.tp > 1 ? p->mesh.tp : 1;
    const int64_t keys = job->settings.config->n_kv_heads;
    if (heads_parts(p) == 1 || keys % tp == 0) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.context=%s with mesh.cp=%d: mesh.tp=%d does not divide the %lld key "
                    "heads, and their copies cannot be sharded again; set "
                    "parallel.context=gather without mesh.cp_heads, or a mesh.tp that divides them",
                    context_name(p->context), p->mesh.cp, tp, (long long)keys);
}

/* Why AUTO cannot choose Ulysses; NULL: it can. */
static Err ulysses_obstacle(const Job *job, Arena *arena, const char **why)
{
    const MeshSizes *m = &job->settings.parallel.mesh;
    const ModelConfig *c = job->settings.config;
    const int tp = m->tp > 1 ? m->tp : 1;
    const int64_t left = c->n_heads / tp;
    Text t = text_in(arena);
    *why = NULL;
    if (m->cp <= left && c->n_kv_heads % tp == 0) return OK;
    if (m->cp > left)
        text_add(&t, "ulysses needs a head for each rank, and %lld are left to mesh.cp=%d",
                 (long long)left, m->cp);
    else
        text_add(&t, "ulysses needs a mesh.tp that divides the %lld key heads, not %d",
                 (long long)c->n_kv_heads, tp);
    return text_done(&t, why);
}

/* Causal work is even with zigzag; after an all-to-all to heads every rank has all tokens, and
 * contiguous ones are stored in fewer pieces. */
static TokenMap choose_tokens(const Job *job)
{
    const TokenMap wanted = job->settings.parallel.tokens;
    if (wanted != TOKENS_AUTO) return wanted;
    return job->context == CONTEXT_ULYSSES ? TOKENS_CONTIGUOUS : TOKENS_ZIGZAG;
}

/* Maps the rows of a micro-batch. Calls of a session have any rows, which are cut evenly. */
static Err map_tokens(Job *job, Arena *arena)
{
    const unsigned cp = mesh_axes(&job->mesh, VIEW_DENSE, "cp");
    const int parts = mesh_parts(&job->mesh, VIEW_DENSE, cp & -cp);
    const BatchShape *batch = &job->settings.batch;
    job->tokens = choose_tokens(job);
    if (job->settings.kind == JOB_GENERATE || parts == 1) return OK;
    return tokens_map(arena, job->tokens, batch->sequences, batch->seq_len, parts,
                      &job->strategy.tokens);
}

/* Sets the strategy for one way to shard attention. */
static Err set_strategy(Job *job, ContextKind kind, Arena *arena)
{
    const ModelConfig *c = job->settings.config;
    const Strategy *base = job->settings.parallel.sequence ? &strategy_tp_sequence : &strategy_tp;
    /* The ranks of a session share keys, not the few rows of a call (compile/session.c). */
    const Strategy context =
        job->settings.kind == JOB_GENERATE ? *base : strategy_with_context(base, kind, &job->mesh);
    job->context = kind;
    job->context_plan = NULL;
    if (kind == CONTEXT_RING) TRY(context_row(context_name(kind), arena, &job->context_plan));
    job->strategy = strategy_with_heads(&context, c->n_heads, c->n_kv_heads, c->head_size);
    return map_tokens(job, arena);
}

/* Chooses the way with the fewest seconds; the first of equals. */
static Err choose_context(Job *job, Arena *arena)
{
    ContextKind best = CONTEXT_GATHER;
    TRY(ulysses_obstacle(job, arena, &job->no_ulysses));
    if (job->no_ulysses) return set_strategy(job, CONTEXT_GATHER, arena);
    for (ContextKind kind = CONTEXT_GATHER; kind <= CONTEXT_ULYSSES; kind++) {
        double *seconds = &job->context_seconds[kind];
        TRY(set_strategy(job, kind, arena));
        TRY(job_context_seconds(job, seconds));
        if (*seconds < job->context_seconds[best]) best = kind;
    }
    return set_strategy(job, best, arena);
}

Err job_choose_strategy(Job *job, Arena *arena)
{
    const ParallelSettings *p = &job->settings.parallel;
    const bool session = job->settings.kind == JOB_GENERATE;
    if (session || p->mesh.cp <= 1) return set_strategy(job, CONTEXT_GATHER, arena);
    TRY(check_way(p));
    TRY(check_heads(job));
    TRY(check_key_heads(job));
    if (p->mesh.cp_heads == p->mesh.cp) return set_strategy(job, CONTEXT_ULYSSES, arena);
    if (p->context == CONTEXT_AUTO && p->mesh.cp_heads == 0) return choose_context(job, arena);
    const bool open = p->context == CONTEXT_AUTO; /* keys are gathered over cp, or cp_ring */
    return set_strategy(job, open ? CONTEXT_GATHER : p->context, arena);
}
