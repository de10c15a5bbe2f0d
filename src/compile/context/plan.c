/* plan.c -- the table of attention plans. A new plan is a file and a row. */
#include "compile/context/plan.h"

#include <string.h>
#include "base/text.h"

enum {
    ANY_TOKENS = 1 << TOKENS_CONTIGUOUS | 1 << TOKENS_ZIGZAG | 1 << TOKENS_STRIPED,
    IN_CHUNKS = 1 << TOKENS_CONTIGUOUS | 1 << TOKENS_ZIGZAG,
    IN_ORDER = 1 << TOKENS_CONTIGUOUS
};

/* name, about, generator; what it sends, balance; tokens, causal only, inner rings, passes */
static const ContextRow table[] = {
    {"gather", "keys are all-gathered; holds the keys of all tokens", context_gather,
     context_keys_sent, context_owner_bound, ANY_TOKENS, false, false, false},
    {"ring", "keys travel from neighbour to neighbour; holds two blocks", context_ring,
     context_keys_sent, context_owner_bound, ANY_TOKENS, false, false, false},
    {"double-ring", "a ring within each host, and one between hosts", context_double_ring,
     context_keys_sent, context_owner_bound, ANY_TOKENS, false, true, false},
    {"lightseq", "early ranks help late ones; half the steps of a ring", context_lightseq,
     context_lightseq_sent, context_lightseq_bound, IN_ORDER, true, false, false},
    {"token-ring", "queries travel, results return directly; keys stay", context_token_ring,
     context_token_ring_sent, context_owner_bound, IN_CHUNKS, false, false, false},
    {"rsa", "scores are kept, keys and then values travel; a baseline", context_rsa,
     context_rsa_sent, context_owner_bound, IN_ORDER, false, false, true},
};
enum { N_CONTEXT_ROWS = sizeof table / sizeof table[0] };

const ContextRow *context_rows(int *n)
{
    *n = N_CONTEXT_ROWS;
    return table;
}

const char *context_payload_name(ContextPayload payload)
{
    static const char *const name[N_PAYLOADS] = {"kv", "q", "o", "dkv", "dq", "k", "v", "dk", "dv"};
    return name[payload];
}

int context_position(const ContextShape *s, int rank, int half)
{
    switch (s->tokens) {
    case TOKENS_ZIGZAG:
        return half ? 2 * s->ranks - 1 - rank : rank;
    case TOKENS_STRIPED:
        return half; /* up to one token, all ranks have the same positions */
    default:
        return 2 * rank + half;
    }
}

int context_work(const ContextShape *s, int q, int q_half, int k, int k_half)
{
    if (!s->causal) return 2;
    const int a = context_position(s, q, q_half), b = context_position(s, k, k_half);
    return a > b ? 2 : a == b ? 1 : 0;
}

Err context_row(const char *name, Arena *temp, const ContextRow **out)
{
    const char *names[N_CONTEXT_ROWS], *list;
    for (int i = 0; i < N_CONTEXT_ROWS; i++) {
        names[i] = table[i].name;
        if (strcmp(table[i].name, name) == 0) {
            *out = &table[i];
            return OK;
        }
    }
    const char *near = text_nearest(name, names, N_CONTEXT_ROWS);
    Text t = text_in(temp);
    for (int i = 0; i < N_CONTEXT_ROWS; i++) text_add(&t, "%s%s", i ? ", " : "", names[i]);
    TRY(text_done(&t, &list));
    return err_fail(ERR_CONFIG, "there is no attention plan '%.64s'%s%s%s; there are %s", name,
                    near ? " (did you mean " : "", near ? near : "", near ? "?)" : "", list);
}

/* The nearest divisor of `ranks` that is not above `inner`. */
static int inner_that_works(int ranks, int inner)
{
    int d = inner < 1 ? 1 : inner < ranks ? inner : ranks;
    while (ranks % d) d--;
    return d;
}

Err context_row_check(const ContextRow *row, const ContextShape *s, Arena *temp)
{
    if (s->ranks < 1 || s->ranks > MAX_CONTEXT_RANKS)
        return err_fail(ERR_CONFIG, "%s over %d ranks: a plan has 1 to %d; gather has no limit",
                        row->name, s->ranks, MAX_CONTEXT_RANKS);
    if (row->passes && s->causal)
        return err_fail(ERR_CONFIG,
                        "%s is not defined for a causal mask, since it keeps the scores of all "
                        "pairs; ring is",
                        row->name);
    if (row->causal && !s->causal)
        return err_fail(ERR_CONFIG, "%s needs a causal mask: it spreads the work of one",
                        row->name);
    if (row->inner && (s->inner < 1 || s->ranks % s->inner))
        return err_fail(ERR_CONFIG,
                        "%s: inner rings of %d ranks do not divide %d ranks; %d per ring works",
                        row->name, s->inner, s->ranks, inner_that_works(s->ranks, s->inner));
    if (row->tokens >> s->tokens & 1) return OK;
    const char *list;
    Text t = text_in(temp);
    for (int i = 0, n = 0; i < N_TOKEN_MAPS; i++)
        if (row->tokens >> i & 1) text_add(&t, "%s%s", n++ ? ", " : "", token_map_name(i));
    TRY(text_done(&t, &list));
    return err_fail(ERR_CONFIG, "%s is not defined for %s tokens; tokens that work: %s", row->name,
                    token_map_name(s->tokens), list);
}

Err context_row_heads(const ContextRow *row, int64_t heads, int64_t key_heads)
{
    if (!row->passes || heads == key_heads) return OK;
    return err_fail(ERR_CONFIG,
                    "%s is not defined for %lld key heads that %lld query heads share; ring is",
                    row->name, (long long)key_heads, (long long)heads);
}

Err context_plan(const ContextRow *row, const ContextShape *s, Arena *arena, ContextPlan *out)
{
    TRY(context_row_check(row, s, arena));
    ContextPlan p = {.row = row, .shape = *s};
    TRY(ARENA_NEW(arena, s->ranks, &p.n));
    TRY(ARENA_NEW(arena, s->ranks, &p.list));
    for (int rank = 0; rank < s->ranks; rank++) {
        TRY(ARENA_NEW(arena, MAX_CONTEXT_STEPS(s->ranks), &p.list[rank]));
        p.n[rank] = row->generate(s, rank, p.list[rank]);
    }
    *out = p;
    return OK;
}
