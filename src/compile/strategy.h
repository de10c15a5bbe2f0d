/* strategy.h -- a table from names to layouts.
 *
 *   {"*.q_proj.weight", "tp", 0, BY_HEAD}     every parameter of that name is sharded along dim 0
 *                                             over axis tp, in whole heads
 *
 * Rows match parameters and named values of units; the first match per axis wins. A row is a pin:
 * place honors it, gives the gradient the same layout, and chooses freely between pins. Megatron's
 * tensor parallelism, sequence parallelism and the vocabulary-parallel loss are rows, not code.
 * Strategies compose: the rows of one are followed by those of its base. */
#ifndef COMPILE_STRATEGY_H
#define COMPILE_STRATEGY_H

#include "ir/unit.h"
#include "layout/layout.h"
#include "layout/mesh.h"

/* The indivisible unit. Key heads are where they are read: several parts may hold one. Tokens are
 * cut by the strategy's token map. BY_READER: elements are key heads, and the parts are those of
 * the heads that read them. BY_NOTHING: the value is whole on the axis, whatever later rows say. */
typedef enum { BY_ONE, BY_HEAD, BY_KEY_HEAD, BY_TOKENS, BY_READER, BY_NOTHING } CutBy;

/* A pattern matches a name within the unit; * matches anything. "attention:k" matches the value
 * that the op attention reads as its operand k, whatever its name; "along:k" the same of attention
 * along a token dim that the strategy's tokens cut, so that its sequences are on several ranks.
 * "temporal/x" matches x in units of kind temporal only: kinds may differ in the layout of their
 * streams. */
typedef struct {
    const char *pattern;
    const char *axis; /* of the view that the parameter declares; of the dense one for values */
    int dim;          /* the dim that is sharded */
    CutBy by;
} StrategyRow;

typedef struct Strategy {
    const char *name;
    const StrategyRow *row;
    int n;
    int64_t heads, key_heads, head_size; /* of the model; 0 if no row is by heads */
    /* The rows of a micro-batch over the first axis of cp (layout/tokens.h), borrowed; further axes
     * cut its parts evenly. NULL: the even rule for all axes. */
    const SpanMap *tokens;
    const struct Strategy *base; /* whose rows follow these; NULL: none */
    bool switches;   /* rows may be sharded along another of their dims where nothing is pinned */
    bool by_seconds; /* values are placed along tp by seconds, as along cp; else by bytes */
} Strategy;

/* Megatron's tensor parallelism over heads, feed-forward and vocabulary. */
extern const Strategy strategy_tp;
/* The same, with the stream sharded by tokens between the GEMMs (sequence parallelism). */
extern const Strategy strategy_tp_sequence;

/* Both with the choices of a router by tokens over tp, for experts that are sharded over axes of
 * their own (compile/route.c). */
extern const Strategy strategy_tp_dispatch, strategy_tp_sequence_dispatch;

/* How attention is sharded over cp. The stream is always sharded by tokens there. */
typedef enum {
    CONTEXT_AUTO,    /* the cheaper one */
    CONTEXT_GATHER,  /* keys and values are all-gathered; each rank has the queries of its tokens */
    CONTEXT_ULYSSES, /* all-to-all from tokens to heads before attention, and back after it */
    /* Attention plans (compile/context/plan.h), whose names are those of their rows: */
    CONTEXT_RING,
    CONTEXT_DOUBLE_RING,
    CONTEXT_LIGHTSEQ,
    CONTEXT_TOKEN_RING,
    N_CAUSAL_CONTEXTS, /* the ways before it are defined for a causal mask */
    CONTEXT_RSA = N_CAUSAL_CONTEXTS,
    CONTEXT_DSP, /* of clips: the token dim that attention does not run along is sharded */
    N_CONTEXTS
} ContextKind;
const char *context_name(ContextKind kind);
/* Local. True for attention plans. */
static inline bool context_is_plan(ContextKind kind)
{
    return kind >= CONTEXT_RING && kind < CONTEXT_DSP;
}
/* Local. True for ways to shard attention along one of several token dims. */
static inline bool context_is_along(ContextKind kind)
{
    return kind == CONTEXT_AUTO || kind == CONTEXT_GATHER || kind == CONTEXT_ULYSSES ||
           kind == CONTEXT_RING || kind == CONTEXT_DSP;
}
/* Local. True for plans that move queries. Their ranks have the key ranges of all tokens, and the
 * shares of a sequence in the order of the ranks. */
static inline bool context_moves_queries(ContextKind kind)
{
    return kind == CONTEXT_LIGHTSEQ || kind == CONTEXT_TOKEN_RING;
}

/* Local. The strategy `base` with context parallelism on the cp axes of the mesh. On a mesh with
 * cp_ring and cp_heads, heads are sharded over cp_heads, and `kind` is for cp_ring. */
Strategy strategy_with_context(const Strategy *base, ContextKind kind, const Mesh *mesh);
/* Local. The same for models of clips, whose stream is sharded by frames. */
Strategy strategy_with_clips(const Strategy *base, ContextKind kind, const Mesh *mesh);
/* Local. The strategy `base` with the key ranges of all tokens on every rank, for units that share
 * inputs with units under Ulysses. `base` must outlive it. */
Strategy strategy_with_whole_ranges(const Strategy *base);
/* Local. The strategy for a model with these heads. */
Strategy strategy_with_heads(const Strategy *s, int64_t heads, int64_t key_heads,
                             int64_t head_size);

/* Local. pin[v]: the strategy's layout of value v on this mesh; pinned[v]: the axes for which it
 * holds. A row on one axis leaves the others free. Parameters and inputs are pinned on all axes, as
 * are the streams x, y and their gradients: units meet there. Gradients of pinned values have the
 * same pin; gradients of parameters have none. ERR_CONFIG if a row cannot be honored. */
Err strategy_pins(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout **pin,
                  unsigned **pinned);
/* Local. The layout in which units with this graph write the stream y. */
Err strategy_stream(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout *out);
/* Local. The layout with its cuts in the order in which they nest: tokens are cut over cp first and
 * over tp within that, heads over tp first and over cp within that. token_dim: 0, but 1 of a
 * transposed value. */
Layout strategy_nested(Layout l, const Mesh *mesh, int token_dim);
int strategy_token_dim(const Dims *d);
/* Local. True if a row shards the parameter over the axis `weight` of a mesh that has it. */
bool strategy_streams_weight(const Strategy *s, const Graph *g, int param);
/* Local. The part of a streamed weight that each rank owns: of the rows that tp leaves. */
Layout strategy_weight_cut(const Mesh *mesh);
/* Local. The layout in which programs use parameter `index` of the graph. */
Err strategy_param(const Strategy *s, const Graph *g, int index, const Mesh *mesh, Arena *arena,
                   Layout *out);
/* Local. The layout in which programs use each parameter of the model. ERR_CONFIG if units that
 * hold one parameter would have it in different layouts. */
Err strategy_use(const Strategy *s, const Model *m, const Mesh *mesh, Arena *arena, Layout **use);

#endif
