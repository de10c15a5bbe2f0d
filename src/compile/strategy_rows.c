/* strategy_rows.c -- the rows of the strategies: tensor, sequence and context parallelism. */
#include "compile/strategy.h"

/* Tensor parallelism of heads, feed-forward and vocabulary: column-parallel weights are sharded
 * along dim 0, row-parallel ones along dim 1. Stacks of experts [e,o,i] have the same dims one
 * later. */
static const StrategyRow tensor_rows[] = {
    {"*experts.gate_proj.weight", "tp", 1, BY_ONE},
    {"*experts.up_proj.weight", "tp", 1, BY_ONE},
    {"*experts.down_proj.weight", "tp", 2, BY_ONE},
    /* in the expert view, whose axes are others */
    {"*experts.*.weight", "ep", 0, BY_ONE},
    {"*experts.gate_proj.weight", "etp", 1, BY_ONE},
    {"*experts.up_proj.weight", "etp", 1, BY_ONE},
    {"*experts.down_proj.weight", "etp", 2, BY_ONE},
    {"*q_proj.weight", "tp", 0, BY_HEAD},
    {"*k_proj.weight", "tp", 0, BY_KEY_HEAD},
    {"*v_proj.weight", "tp", 0, BY_KEY_HEAD},
    {"*q_proj.bias", "tp", 0, BY_HEAD},
    {"*k_proj.bias", "tp", 0, BY_KEY_HEAD},
    {"*v_proj.bias", "tp", 0, BY_KEY_HEAD},
    {"*o_proj.weight", "tp", 1, BY_HEAD},
    {"attn.c_proj.weight", "tp", 1, BY_HEAD},
    {"*gate_proj.weight", "tp", 0, BY_ONE},
    {"*up_proj.weight", "tp", 0, BY_ONE},
    {"*gate_proj.bias", "tp", 0, BY_ONE},
    {"*up_proj.bias", "tp", 0, BY_ONE},
    {"*down_proj.weight", "tp", 1, BY_ONE},
    {"mlp.c_fc.weight", "tp", 0, BY_ONE},
    {"mlp.c_fc.bias", "tp", 0, BY_ONE},
    {"mlp.c_proj.weight", "tp", 1, BY_ONE},
    {"*embed_tokens.weight", "tp", 0, BY_ONE},
    {"wte.weight", "tp", 0, BY_ONE},
    {"lm_head.weight", "tp", 0, BY_ONE},
    /* Over cp too, where the mesh has the weight view (compile/weights.c): weights of GEMMs whose
     * rows are tokens. */
    {"*experts.*", "weight", 0, BY_NOTHING},
    {"cross_attn.k_proj.weight", "weight", 0, BY_NOTHING}, /* of states of a text */
    {"cross_attn.v_proj.weight", "weight", 0, BY_NOTHING},
    {"*q_proj.weight", "weight", 0, BY_ONE},
    {"*k_proj.weight", "weight", 0, BY_ONE},
    {"*v_proj.weight", "weight", 0, BY_ONE},
    {"*o_proj.weight", "weight", 0, BY_ONE},
    {"attn.c_proj.weight", "weight", 0, BY_ONE},
    {"*gate_proj.weight", "weight", 0, BY_ONE},
    {"*up_proj.weight", "weight", 0, BY_ONE},
    {"*down_proj.weight", "weight", 0, BY_ONE},
    {"mlp.c_fc.weight", "weight", 0, BY_ONE},
    {"mlp.c_proj.weight", "weight", 0, BY_ONE},
};

/* Sequence parallelism: the stream and the outputs of norms are sharded by tokens. They are
 * all-gathered before a GEMM, and its partial sums are reduce-scattered after. */
static const StrategyRow sequence_rows[] = {
    {"x", "tp", 0, BY_ONE},
    {"*.in", "tp", 0, BY_ONE},
    {"mid", "tp", 0, BY_ONE},
    {"y", "tp", 0, BY_ONE},
};

/* Context parallelism: the stream, the inputs and the choices of routers are sharded by tokens,
 * whatever attention does. */
// clang-format off
#define OVER_CP(name) {name, "cp", 0, BY_TOKENS}
#define STREAM_ROWS                                                                                \
    OVER_CP("x"), OVER_CP("*.in"), OVER_CP("mid"), OVER_CP("y"), OVER_CP("tokens"),                \
    OVER_CP("targets"), OVER_CP("positions"), OVER_CP("weights"), OVER_CP("moe.logits"),           \
    OVER_CP("moe.gates"), OVER_CP("moe.experts"), OVER_CP("moe.at")
// clang-format on

/* Attention reads keys of all tokens: they are made by tokens and all-gathered, and their gradients
 * are reduce-scattered. The first rows are for plans, whose queries must be by tokens too. The
 * last one is not for plans that move queries: there a rank needs the ranges of others. */
static const StrategyRow ring_rows[] = {
    {"attention:q", "cp", 0, BY_TOKENS},
    {"attention:o", "cp", 0, BY_TOKENS},
    {"attention:k", "cp", 0, BY_TOKENS},
    {"attention:v", "cp", 0, BY_TOKENS},
    STREAM_ROWS,
    {"ranges", "cp", 0, BY_TOKENS},
};

/* Ulysses: q, k, v go from tokens to heads by an all-to-all, and the output goes back. Attention
 * reads the key ranges of all tokens. */
static const StrategyRow ulysses_rows[] = {
    {"attention:q", "cp", 1, BY_ONE},
    {"attention:k", "cp", 1, BY_READER},
    {"attention:v", "cp", 1, BY_READER},
    {"attention:o", "cp", 1, BY_ONE},
    STREAM_ROWS,
};

/* Both: heads within cp_heads, keys of all tokens over cp_ring. */
static const StrategyRow hybrid_rows[] = {
    {"attention:q", "cp_ring", 0, BY_TOKENS},
    {"attention:o", "cp_ring", 0, BY_TOKENS},
    {"attention:q", "cp_heads", 1, BY_ONE},
    {"attention:k", "cp_heads", 1, BY_READER},
    {"attention:v", "cp_heads", 1, BY_READER},
    {"attention:o", "cp_heads", 1, BY_ONE},
    {"attention:k", "cp_ring", 0, BY_TOKENS},
    {"attention:v", "cp_ring", 0, BY_TOKENS},
    STREAM_ROWS,
    {"ranges", "cp_ring", 0, BY_TOKENS},
};

/* Models of clips: tokens have a frame and one or two places, and the stream is sharded by frames.
 * Attention within a frame is local. */
#define CLIP_ROWS                                                                                  \
    OVER_CP("x"), OVER_CP("y"), OVER_CP("tokens"), OVER_CP("targets"), OVER_CP("positions"),       \
        OVER_CP("weights"), OVER_CP("clips"), OVER_CP("frames"), OVER_CP("noised"),                \
        OVER_CP("velocity"), OVER_CP("text_ranges")

/* Attention along frames has some places of all frames: the search switches the rows of the stream
 * to them before it, and back after it. */
static const StrategyRow dsp_rows[] = {
    {"along:q", "cp", 2, BY_ONE},
    {"along:k", "cp", 2, BY_ONE},
    {"along:v", "cp", 2, BY_ONE},
    {"along:o", "cp", 2, BY_ONE},
    CLIP_ROWS,
};

/* Some frames of the queries; the keys of all frames are gathered, or travel. */
static const StrategyRow along_ring_rows[] = {
    {"along:q", "cp", 1, BY_ONE},
    {"along:k", "cp", 1, BY_ONE},
    {"along:v", "cp", 1, BY_ONE},
    {"along:o", "cp", 1, BY_ONE},
    CLIP_ROWS,
};

/* Some heads of all frames. */
static const StrategyRow along_heads_rows[] = {
    {"along:q", "cp", 3, BY_ONE},
    {"along:k", "cp", 3, BY_READER},
    {"along:v", "cp", 3, BY_READER},
    {"along:o", "cp", 3, BY_ONE},
    CLIP_ROWS,
};

/* Expert parallelism: a token is routed by one rank along tp too, and its rows leave from there
 * (compile/route.c). */
static const StrategyRow dispatch_rows[] = {
    {"moe.logits", "tp", 0, BY_ONE},
    {"moe.gates", "tp", 0, BY_ONE},
    {"moe.experts", "tp", 0, BY_ONE},
    {"moe.at", "tp", 0, BY_ONE},
};

enum {
    N_DISPATCH_ROWS = sizeof dispatch_rows / sizeof *dispatch_rows,
    N_ULYSSES_ROWS = sizeof ulysses_rows / sizeof *ulysses_rows,
    N_HYBRID_ROWS = sizeof hybrid_rows / sizeof *hybrid_rows,
    N_DSP_ROWS = sizeof dsp_rows / sizeof *dsp_rows,
    N_ALONG_RING_ROWS = sizeof along_ring_rows / sizeof *along_ring_rows,
    N_ALONG_HEADS_ROWS = sizeof along_heads_rows / sizeof *along_heads_rows,
    N_TENSOR_ROWS = sizeof tensor_rows / sizeof *tensor_rows,
    N_SEQUENCE_ROWS = sizeof sequence_rows / sizeof *sequence_rows,
    N_RING_ROWS = sizeof ring_rows / sizeof *ring_rows,
    N_QUERY_ROWS = 2 /* the first of ring and hybrid, which gather leaves to the search */
};

const Strategy strategy_tp = {.name = "tensor", .row = tensor_rows, .n = N_TENSOR_ROWS};
const Strategy strategy_tp_sequence = {.name = "tensor and sequence",
                                       .row = sequence_rows,
                                       .n = N_SEQUENCE_ROWS,
                                       .base = &strategy_tp};
const Strategy strategy_tp_dispatch = {
    .name = "tensor and experts", .row = dispatch_rows, .n = N_DISPATCH_ROWS, .base = &strategy_tp};
const Strategy strategy_tp_sequence_dispatch = {.name = "tensor, sequence and experts",
                                                .row = dispatch_rows,
                                                .n = N_DISPATCH_ROWS,
                                                .base = &strategy_tp_sequence};

const char *context_name(ContextKind kind)
{
    static const char *const name[N_CONTEXTS] = {
        "auto", "gather", "ulysses", "ring", "double-ring", "lightseq", "token-ring", "rsa", "dsp"};
    return name[kind];
}

Strategy strategy_with_context(const Strategy *base, ContextKind kind, const Mesh *mesh)
{
    const unsigned cp = mesh_axes(mesh, VIEW_DENSE, "cp");
    const int no_ranges = context_moves_queries(kind); /* the last row */
    const Strategy ring = {"context by a plan", ring_rows, N_RING_ROWS - no_ranges, .base = base};
    const Strategy gather = {"context by gather", ring_rows + N_QUERY_ROWS,
                             N_RING_ROWS - N_QUERY_ROWS, .base = base};
    const Strategy heads = {"context by heads", ulysses_rows, N_ULYSSES_ROWS, .base = base};
    const Strategy usp = {"context by heads and a plan", hybrid_rows, N_HYBRID_ROWS - no_ranges,
                          .base = base};
    const Strategy both = {"context by both", hybrid_rows + N_QUERY_ROWS,
                           N_HYBRID_ROWS - N_QUERY_ROWS, .base = base};
    if (mesh_parts(mesh, VIEW_DENSE, cp) == 1) return *base;
    if (mesh_axes(mesh, VIEW_DENSE, "cp_heads")) return context_is_plan(kind) ? usp : both;
    return kind == CONTEXT_ULYSSES ? heads : context_is_plan(kind) ? ring : gather;
}

Strategy strategy_with_clips(const Strategy *base, ContextKind kind, const Mesh *mesh)
{
    const Strategy dsp = {"clips by token dims", dsp_rows, N_DSP_ROWS, .switches = true,
                          .base = base};
    const Strategy heads = {"clips by heads", along_heads_rows, N_ALONG_HEADS_ROWS, .base = base};
    const Strategy ring = {"clips by frames", along_ring_rows, N_ALONG_RING_ROWS, .base = base};
    if (mesh_parts(mesh, VIEW_DENSE, mesh_axes(mesh, VIEW_DENSE, "cp")) == 1) return *base;
    return kind == CONTEXT_DSP ? dsp : kind == CONTEXT_ULYSSES ? heads : ring;
}

Strategy strategy_with_whole_ranges(const Strategy *base)
{
    static const StrategyRow whole[] = {{"ranges", "cp", 0, BY_NOTHING}};
    Strategy s = *base;
    s.row = whole;
    s.n = 1;
    s.base = base;
    return s;
}

Strategy strategy_with_heads(const Strategy *s, int64_t heads, int64_t key_heads, int64_t head_size)
{
    Strategy with = *s;
    with.heads = heads;
    with.key_heads = key_heads;
    with.head_size = head_size;
    return with;
}
