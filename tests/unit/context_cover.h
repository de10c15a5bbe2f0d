/* context_cover.h -- context parallelism with every pair, or triple, of other options: f64 on ref,
 * within 1e-10 of one rank; two sequences to a micro-batch, the last one short. Loss, norm and
 * elements of gradients, weights, the loss of validation and generated text are compared. */
#ifndef TESTS_UNIT_CONTEXT_COVER_H
#define TESTS_UNIT_CONTEXT_COVER_H

#include "support/expect.h"
#include "support/models.h"
#include "support/verified.h"

#include "verify/cover.h"

enum {
    CP,
    CONTEXT,
    TOKENS,
    DP,
    TP,
    SEQUENCE,
    SCHEDULE,
    ZERO,
    RECOMPUTE,
    DOCUMENTS,
    LENGTH,
    MODEL,
    KEEP,
    N_OPTIONS
};

static const int cp_of[] = {2, 3, 4, 5, 6, 8};
/* The last two run sequences in slices, one sequence to a micro-batch. */
static const char *const schedule_of[] = {NULL,  "1f1b",      "gpipe",   "interleaved",
                                          "bfs", "zbh1",      "zbh2",    "izb",
                                          "zbv", "dualpipev", "seq1f1b", "terapipe"};
static const int64_t length_of[] = {16, 13}; /* 13 divides by no 2 cp */
/* Attention over cp; cp_heads of 2: heads over a part of it. */
static const struct {
    ContextKind kind;
    int cp_heads;
} context_of[] = {{CONTEXT_GATHER, 0},      {CONTEXT_ULYSSES, 0},   {CONTEXT_RING, 0},
                  {CONTEXT_GATHER, 2},      {CONTEXT_RING, 2},      {CONTEXT_DOUBLE_RING, 0},
                  {CONTEXT_DOUBLE_RING, 2}, {CONTEXT_LIGHTSEQ, 0},  {CONTEXT_LIGHTSEQ, 2},
                  {CONTEXT_TOKEN_RING, 0},  {CONTEXT_TOKEN_RING, 2}};
/* Reductions after each micro-batch, which levels 2 and 3 have anyway. */
static const struct {
    int zero;
    bool each;
} zero_of[] = {{0, false}, {1, false}, {2, false}, {3, false}, {0, true}, {1, true}};
/* Key heads: more than ranks, or fewer, or one. 7 heads are shared out unevenly. Mistral has a
 * window, gpt2 and llama-tied are tied. */
static const struct {
    const char *name;
    int64_t heads, key_heads;
} model_of[] = {{"llama", 8, 8}, {"llama", 8, 2}, {"mistral", 8, 2},   {"gpt2", 8, 8},
                {"gpt2", 7, 7},  {"llama", 4, 4}, {"llama-tied", 8, 1}};

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

enum { MOST_RANKS = 16 };

/* Inner rings of two or three ranks, if they divide the ring. */
static inline int inner_of(int cp, int cp_heads)
{
    const int ring = cp / (cp_heads ? cp_heads : 1);
    return ring % 2 == 0 ? 2 : ring % 3 == 0 ? 3 : 1;
}

static inline ParallelSettings layout_of(const int *value)
{
    const bool staged = schedule_of[value[SCHEDULE]] != NULL;
    return (ParallelSettings){
        .mesh = {.dp_shard = 1 + value[DP],
                 .cp = cp_of[value[CP]],
                 .cp_heads = context_of[value[CONTEXT]].cp_heads,
                 .tp = 1 + value[TP],
                 .pp = staged ? 2 : 1},
        .zero = zero_of[value[ZERO]].zero,
        .reduce_each = zero_of[value[ZERO]].each,
        .keep_gathered = value[KEEP],
        .sequence = value[SEQUENCE],
        .context = context_of[value[CONTEXT]].kind,
        .cp_inner = context_of[value[CONTEXT]].kind == CONTEXT_DOUBLE_RING
                        ? inner_of(cp_of[value[CP]], context_of[value[CONTEXT]].cp_heads)
                        : 0,
        .tokens = (TokenMap)(TOKENS_CONTIGUOUS + value[TOKENS]),
        .schedule = schedule_of[value[SCHEDULE]],
    };
}

/* Heads for every rank that shares them out, and key heads that tp does not copy. */
static inline bool shares_heads(const ParallelSettings *p, int model)
{
    const MeshSizes *m = &p->mesh;
    const int parts = p->context == CONTEXT_ULYSSES ? m->cp : m->cp_heads > 1 ? m->cp_heads : 1;
    if (parts == 1) return true;
    return parts <= model_of[model].heads / m->tp && model_of[model].key_heads % m->tp == 0;
}

static inline bool may(const void *context, const int *value, int n)
{
    (void)context;
    if (n > TP && cp_of[value[CP]] * (1 + value[DP]) * (1 + value[TP]) > MOST_RANKS) return false;
    if (n < N_OPTIONS) return true;
    const ParallelSettings p = layout_of(value);
    const MeshSizes *m = &p.mesh;
    if (layout_ranks(&p) > MOST_RANKS) return false;
    const bool slices = value[SCHEDULE] >= COUNT(schedule_of) - 2;
    if (p.sequence && m->tp == 1) return false;
    if (slices && context_moves_queries(p.context)) return false;
    if (p.context == CONTEXT_LIGHTSEQ && p.tokens != TOKENS_CONTIGUOUS) return false;
    if (p.context == CONTEXT_TOKEN_RING && p.tokens == TOKENS_STRIPED) return false;
    if (m->cp_heads && (m->cp <= m->cp_heads || m->cp % m->cp_heads != 0)) return false;
    return shares_heads(&p, value[MODEL]);
}

static inline ModelConfig model_at(int index)
{
    ModelConfig c = *test_model(model_of[index].name);
    c.n_heads = model_of[index].heads;
    c.n_kv_heads = model_of[index].key_heads;
    if (c.family == FAMILY_GPT2) c.width = c.n_heads * c.head_size;
    return c;
}

static inline void expect_row(const int *value, Arena *arena)
{
    const ModelConfig c = model_at(value[MODEL]);
    VerifySettings s = verified_f64(&c, 2, length_of[value[LENGTH]]);
    const ParallelSettings layout = layout_of(value);
    VerifyLine line[MAX_VERIFY_LINES];
    s.compile.recompute = (Recompute)value[RECOMPUTE];
    s.documents = value[DOCUMENTS];
    expect_verified(&s, &layout, arena, line);
}

/* Runs the covering set of that strength; returns its size. */
static inline int expect_cover(int strength)
{
    const CoverSpace space = {.n = N_OPTIONS,
                              .values = {[CP] = COUNT(cp_of),
                                         [CONTEXT] = COUNT(context_of),
                                         [TOKENS] = 3,
                                         [DP] = 2,
                                         [TP] = 2,
                                         [SEQUENCE] = 2,
                                         [SCHEDULE] = COUNT(schedule_of),
                                         [ZERO] = COUNT(zero_of),
                                         [RECOMPUTE] = 3,
                                         [DOCUMENTS] = 2,
                                         [LENGTH] = COUNT(length_of),
                                         [MODEL] = COUNT(model_of),
                                         [KEEP] = 2},
                              .may = may};
    Arena arena;
    int *row, n;
    DO(arena_open(&arena, "cover", ARENA_PLENTY));
    DO(cover_rows(&space, strength, &arena, &row, &n));
    for (int i = 0; i < n; i++) {
        const size_t mark = arena_mark(&arena);
        expect_row(&row[i * N_OPTIONS], &arena);
        arena_rewind(&arena, mark);
    }
    arena_close(&arena);
    return n;
}

#endif
