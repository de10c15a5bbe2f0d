/* layouts_cover.c -- the options of a layout, and the rows that are layouts. */
#include "verify/cover.h"
#include "verify/layouts.h"
#include "verify/mixed.h"

enum {
    REPLICATE,
    SHARD,
    CP,
    TP,
    STAGES,
    ZERO,
    EACH,
    SEQUENCE,
    KEEP,
    BY_COST,
    CONTEXT,
    TOKENS,
    CP_HEADS,
    MIXED,
    STREAM,
    EP,
    ETP,
    OPERATORS,
    ROUNDS,
    TP_WEIGHTS,
    N_OPTIONS
};

/* The ways to shard attention along one of several token dims. */
static const ContextKind along[] = {CONTEXT_DSP, CONTEXT_ULYSSES, CONTEXT_RING, CONTEXT_GATHER};

enum { N_ALONG = sizeof along / sizeof *along };

static ContextKind context_of(const int *value, const LayoutLimits *limits)
{
    if (!value[CP]) return CONTEXT_AUTO;
    return limits->frames ? along[value[CONTEXT]] : (ContextKind)(CONTEXT_GATHER + value[CONTEXT]);
}

/* Sizes of the mesh are value + 1; cp_heads=1 is left unset. */
static ParallelSettings settings_of(const int *value, const LayoutLimits *limits)
{
    return (ParallelSettings){
        .mesh = {.dp_replicate = value[REPLICATE] + 1,
                 .dp_shard = value[SHARD] + 1,
                 .cp = value[CP] + 1,
                 .cp_heads = value[CP_HEADS] ? value[CP_HEADS] + 1 : 0,
                 .tp = value[TP] + 1,
                 .pp = value[STAGES] + 1,
                 .stream_weights = value[STREAM],
                 .ep = value[EP] + 1,
                 .etp = value[ETP] + 1},
        .zero = value[ZERO],
        .reduce_each = value[EACH],
        .sequence = value[SEQUENCE],
        .keep_gathered = value[KEEP],
        .split = value[BY_COST] ? "cost" : NULL,
        .context = context_of(value, limits),
        .tokens = value[CP] && !limits->frames ? (TokenMap)(value[TOKENS] + 1) : TOKENS_AUTO,
        .units = value[MIXED] ? &layout_mixed_mark : NULL,
        .zero_weights = value[OPERATORS] ? layout_operators_mark : NULL,
        .rounds = value[ROUNDS],
        .expert_rows = value[ROUNDS] ? LAYOUT_ROUNDS_ROWS : 0,
        .tp_weights = value[TP_WEIGHTS] ? layout_tp_mark : NULL,
    };
}

/* True if every option of the layout has an effect. */
static bool is_plain(const ParallelSettings *p)
{
    const int dp = p->mesh.dp_replicate * p->mesh.dp_shard, cp = p->mesh.cp;
    if (layout_ranks(p) == 1) return false;
    if ((p->sequence || p->tp_weights) && p->mesh.tp == 1) return false;
    if (p->rounds && p->mesh.ep == 1) return false;
    if (p->keep_gathered && !p->sequence && cp == 1) return false;
    if (p->reduce_each && p->zero >= 2) return false;
    if (p->split && p->mesh.pp == 1) return false;
    if (p->mesh.dp_replicate > 1 && p->mesh.dp_shard == 1) return false;
    return dp * cp > 1 || (p->zero == 0 && !p->reduce_each &&
                           !p->zero_weights); /* one rank has no state to share */
}

/* True if there is a head for each of `parts` ranks, and tp leaves whole key heads. */
static bool shares_heads(int parts, const MeshSizes *m, const LayoutLimits *limits)
{
    return parts <= limits->heads / m->tp && limits->key_heads % m->tp == 0;
}

/* True if heads are sharded over a part of cp and tokens over the rest, or cp_heads is unset. */
static bool divides_cp(const ParallelSettings *p, const LayoutLimits *limits)
{
    const MeshSizes *m = &p->mesh;
    if (m->cp_heads == 0) return true;
    return m->cp_heads < m->cp && m->cp % m->cp_heads == 0 && p->context != CONTEXT_ULYSSES &&
           shares_heads(m->cp_heads, m, limits);
}

/* True if the ranks of experts divide a stage, and the experts of a layer are shared out evenly. */
static bool divides_experts(const ParallelSettings *p, const LayoutLimits *limits)
{
    const MeshSizes *m = &p->mesh;
    const int stage = m->dp_replicate * m->dp_shard * m->cp * m->tp;
    if (m->ep == 1 && m->etp == 1) return true;
    return stage % (m->ep * m->etp) == 0 && limits->experts % m->ep == 0;
}

/* True if weights are whole, or each rank along cp owns a row of every weight. */
static bool streams_weights(const MeshSizes *m, const LayoutLimits *limits)
{
    if (!m->stream_weights) return true;
    return m->cp > 1 && limits->key_heads % m->tp == 0 &&
           m->cp <= limits->key_heads / m->tp * limits->head_size;
}

static bool may(const void *context, const int *value, int n)
{
    const LayoutLimits *limits = context;
    int world = 1;
    for (int i = 0; i < n && i <= STAGES; i++) world *= value[i] + 1;
    if (world > limits->ranks) return false;
    if (n < N_OPTIONS) return true;
    const ParallelSettings p = settings_of(value, limits);
    if (!value[CP] && (value[TOKENS] || value[CONTEXT])) return false;
    if (p.context == CONTEXT_ULYSSES && !shares_heads(p.mesh.cp, &p.mesh, limits)) return false;
    if (p.context == CONTEXT_LIGHTSEQ && p.tokens != TOKENS_CONTIGUOUS) return false;
    if (!streams_weights(&p.mesh, limits)) return false;
    if (p.context == CONTEXT_TOKEN_RING && p.tokens == TOKENS_STRIPED) return false;
    return divides_cp(&p, limits) && divides_experts(&p, limits) && is_plain(&p);
}

Err layouts_covering(const LayoutLimits *limits, Arena *arena, ParallelSettings **out, int *n)
{
    const int ranks = limits->ranks;
    const bool clips = limits->frames > 0;
    const CoverSpace space = {
        .n = N_OPTIONS,
        .values = {[REPLICATE] = ranks,
                   [SHARD] = ranks,
                   [CP] = ranks,
                   [TP] = ranks,
                   [STAGES] = limits->stages,
                   [ZERO] = 4,
                   [EACH] = 2,
                   [SEQUENCE] = 2,
                   [KEEP] = 2,
                   [BY_COST] = 2,
                   [CONTEXT] = clips ? N_ALONG : N_CAUSAL_CONTEXTS - CONTEXT_GATHER,
                   [TOKENS] = clips ? 1 : N_TOKEN_MAPS - 1,
                   [CP_HEADS] = ranks > 3 && !clips ? ranks / 2 : 1,
                   [MIXED] = 2,
                   [STREAM] = 2,
                   [EP] = limits->experts > 0 ? ranks : 1,
                   [ETP] = limits->experts > 0 ? ranks : 1,
                   [OPERATORS] = 2,
                   [ROUNDS] = limits->experts > 0 ? 2 : 1,
                   [TP_WEIGHTS] = ranks > 1 ? 2 : 1},
        .may = may,
        .context = limits};
    int *row;
    TRY(cover_rows(&space, limits->strength, arena, &row, n));
    TRY(ARENA_NEW(arena, *n + 1, out));
    for (int i = 0; i < *n; i++) (*out)[i] = settings_of(&row[i * N_OPTIONS], limits);
    return OK;
}
