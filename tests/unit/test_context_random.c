/* test_context_random.c -- 1,000 random attention plans: the checker accepts them and the backward
 * plans that are derived from them, and they finish, under random delays and without buffers for
 * sends, with attention by its definition.
 *
 * A random plan gives each live pair of blocks to any rank, in any order: the owner of the queries,
 * that of the keys, or a third one. What the rank lacks comes from its owner before, and results
 * return after. Steps are written in one order for all ranks, so no rank waits forever. */
#include "support/expect.h"

#include <string.h>
#include "compile/context/check.h"
#include "support/context_cases.h"

enum { N_PLANS = 1000, MAX_P = 9, MOST_STEPS = 5 * MAX_P * MAX_P };

/* What the plan at hand sends, and its balance, as a method's formulas would say. */
static ContextSent sent_of[2];
static double balance;

static void random_sent(const ContextShape *s, bool backward, ContextSent *out)
{
    (void)s;
    *out = sent_of[backward];
}

static double random_bound(const ContextShape *s)
{
    (void)s;
    return balance;
}

static const ContextRow random_row = {
    .name = "random", .sent = random_sent, .bound = random_bound, .tokens = ~0u};

typedef struct {
    ContextPlan *p;
    uint64_t state;
    bool has[2][MAX_P][MAX_P]; /* queries, keys: [rank][block] */
    int64_t work[MAX_P];
} PlanDice;

static void push(ContextPlan *p, int rank, ContextStep s)
{
    assert_true(p->n[rank] < MOST_STEPS);
    p->list[rank][p->n[rank]++] = s;
}

static void move(PlanDice *d, ContextPayload payload, int block, int from, int to)
{
    const ContextBlock b = block_whole(block);
    push(d->p, from, step_move(payload, b, to, block_none(), -1));
    push(d->p, to, step_move(payload, block_none(), -1, b, from));
    sent_of[0].halves[payload] += 2;
    sent_of[1].halves[payload == PAYLOAD_O ? PAYLOAD_DQ : payload] += 2;
}

/* Brings what the rank lacks of a block; its owner has it. */
static void bring(PlanDice *d, ContextPayload payload, int block, int rank)
{
    bool *has = &d->has[payload == PAYLOAD_KV][rank][block];
    if (*has || rank == block) return;
    *has = true;
    move(d, payload, block, block, rank);
}

static int64_t pair_work(const ContextShape *s, int q, int k)
{
    int64_t work = 0;
    for (int half = 0; half < 4; half++) work += context_work(s, q, half / 2, k, half % 2);
    return work;
}

static void add_pair(PlanDice *d, int q, int k)
{
    const ContextShape *s = &d->p->shape;
    const int P = s->ranks, dice = case_below(&d->state, 4);
    const int rank = dice == 0 ? case_below(&d->state, P) : dice == 1 ? k : q;
    bring(d, PAYLOAD_Q, q, rank);
    bring(d, PAYLOAD_KV, k, rank);
    push(d->p, rank, step_visit(block_whole(q), block_whole(k)));
    d->work[rank] += pair_work(s, q, k);
    if (rank != q) move(d, PAYLOAD_O, q, rank, q);
    if (rank != k) sent_of[1].halves[PAYLOAD_DKV] += 2; /* returns after each visit */
}

static void random_plan(ContextPlan *p, uint64_t seed)
{
    const int P = p->shape.ranks;
    PlanDice d = {.p = p, .state = seed};
    int pair[MAX_P * MAX_P], n = 0;
    int64_t most = 0, all = 0;
    memset(sent_of, 0, sizeof sent_of);
    for (int i = 0; i < P * P; i++)
        if (pair_work(&p->shape, i / P, i % P) > 0) pair[n++] = i;
    for (int left = n; left > 0; left--) {
        const int at = case_below(&d.state, left);
        add_pair(&d, pair[at] / P, pair[at] % P);
        pair[at] = pair[left - 1];
    }
    for (int rank = 0; rank < P; rank++) {
        most = d.work[rank] > most ? d.work[rank] : most;
        all += d.work[rank];
    }
    balance = (double)most * P / (double)all;
}

static void open_plan(const ContextShape *s, Arena *a, ContextPlan *p)
{
    *p = (ContextPlan){.row = &random_row, .shape = *s};
    DO(ARENA_NEW(a, s->ranks, &p->n));
    DO(ARENA_NEW(a, s->ranks, &p->list));
    for (int rank = 0; rank < s->ranks; rank++) DO(ARENA_NEW(a, MOST_STEPS, &p->list[rank]));
}

static void run_plan(int number, Arena *a, int *longest)
{
    const bool causal = number % 3 > 0;
    const ContextShape s = {2 + number % (MAX_P - 1), 1,
                            (TokenMap)(TOKENS_CONTIGUOUS + number / 8 % 3), causal};
    const CaseSizes sizes = {(uint64_t)number,
                             4 * s.ranks + 3,
                             4,
                             number % 2 ? 4 : 2,
                             3,
                             causal ? (CaseMask)(number % 3) : MASK_RANDOM};
    const RandomDelays delays = {(uint64_t)(7 * number + 1), 1 + number % 20};
    ContextPlan plan[2];
    AttentionCase c;
    AttentionResult want, got;
    const char *where = "";
    open_plan(&s, a, &plan[0]);
    random_plan(&plan[0], (uint64_t)(977 * number + 13));
    DO(context_check(&plan[0], a, NULL));
    DO(context_backward(&plan[0], a, &plan[1]));
    DO(context_check(&plan[1], a, NULL));
    for (int rank = 0; rank < s.ranks; rank++)
        if (plan[1].n[rank] > *longest) *longest = plan[1].n[rank];
    DO(attention_case_random(&sizes, a, &c));
    attention_case_place(&c, &s, sizes.seed);
    DO(attention_result_new(a, &c, &want));
    DO(attention_result_new(a, &c, &got));
    attention_dense(&c, &want);
    DO(context_run(&device_ref, plan, &c, delays, a, &got));
    const double d = attention_difference(&c, &got, &want, &where);
    if (!(d <= 1e-10)) fail_msg("plan %d on %d ranks: %s is off by %g", number, s.ranks, where, d);
}

static void random_plans_finish(void **state)
{
    Arena a;
    int longest = 0;
    (void)state;
    DO(arena_open(&a, "random plans", ARENA_PLENTY));
    for (int i = 0; i < N_PLANS; i++) {
        const size_t mark = arena_mark(&a);
        run_plan(i, &a, &longest);
        arena_rewind(&a, mark);
    }
    arena_close(&a);
    assert_true(longest > MAX_CONTEXT_STEPS(MAX_P)); /* lists are longer than those of methods */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_plans_finish)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
