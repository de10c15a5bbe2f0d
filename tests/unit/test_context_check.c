/* test_context_check.c -- the checker of attention plans names each seeded fault. */
#include "support/test_arena.h"

#include <string.h>
#include "compile/context/check.h"

/* The i-th visit (payload N_PAYLOADS) or move of a payload in the list of a rank. */
static ContextStep *step(ContextPlan *p, int rank, ContextPayload payload, int i)
{
    for (int at = 0; at < p->n[rank]; at++) {
        ContextStep *s = &p->list[rank][at];
        const bool is = payload == N_PAYLOADS ? s->kind == CONTEXT_VISIT
                                              : s->kind == CONTEXT_MOVE && s->payload == payload;
        if (is && i-- == 0) return s;
    }
    fail_msg("rank %d has no such step", rank);
    return NULL;
}

static ContextStep *visit(ContextPlan *p, int rank, int i) { return step(p, rank, N_PAYLOADS, i); }

static void delete_step(ContextPlan *p, int rank, ContextStep *s)
{
    const int at = (int)(s - p->list[rank]);
    memmove(s, s + 1, (size_t)(p->n[rank] - at - 1) * sizeof *s);
    p->n[rank]--;
}

static void insert_step(ContextPlan *p, int rank, int at, ContextStep s)
{
    memmove(&p->list[rank][at + 1], &p->list[rank][at], (size_t)(p->n[rank] - at) * sizeof s);
    p->list[rank][at] = s;
    p->n[rank]++;
}

static void swap_steps(ContextStep *a, ContextStep *b)
{
    const ContextStep s = *a;
    *a = *b;
    *b = s;
}

/* Faults in a ring of 4, forward. */
static void visit_twice(ContextPlan *p) { insert_step(p, 2, p->n[2], *visit(p, 2, 1)); }
static void visit_missing(ContextPlan *p) { delete_step(p, 3, visit(p, 3, 0)); }
static void visit_half(ContextPlan *p) { visit(p, 1, 2)->k.halves = HALF_LATER; }
static void visit_too_early(ContextPlan *p)
{
    insert_step(p, 1, 0, *visit(p, 1, 1));
    delete_step(p, 1, visit(p, 1, 2));
}
static void visit_of_others(ContextPlan *p) { visit(p, 1, 0)->q = block_whole(2); }
static void visit_of_none(ContextPlan *p) { visit(p, 1, 0)->k = block_whole(4); }
static void wrong_payload(ContextPlan *p)
{
    ContextStep *s = step(p, 0, PAYLOAD_KV, 0);
    const ContextStep in = step_move(PAYLOAD_KV, block_none(), -1, s->in, s->from);
    *s = step_move(PAYLOAD_Q, s->out, s->to, block_none(), -1);
    insert_step(p, 0, 0, in);
}
static void wrong_block(ContextPlan *p) { step(p, 2, PAYLOAD_KV, 0)->in.rank = 3; }
static void wrong_half(ContextPlan *p) { step(p, 2, PAYLOAD_KV, 1)->in.halves = HALF_FIRST; }
static void other_direction(ContextPlan *p)
{
    ContextStep s = *step(p, 0, PAYLOAD_KV, 0);
    s.payload = PAYLOAD_DKV;
    insert_step(p, 0, p->n[0], s);
}
static void unknown_payload(ContextPlan *p) { step(p, 0, PAYLOAD_KV, 0)->payload = N_PAYLOADS; }
static void to_itself(ContextPlan *p) { step(p, 2, PAYLOAD_KV, 0)->to = 2; }
static void to_nobody(ContextPlan *p) { step(p, 2, PAYLOAD_KV, 0)->to = 4; }
static void nothing_moves(ContextPlan *p)
{
    insert_step(p, 1, 0, step_move(PAYLOAD_KV, block_none(), -1, block_none(), -1));
}
static void send_missing(ContextPlan *p) { step(p, 0, PAYLOAD_KV, 2)->to = -1; }
static void receive_missing(ContextPlan *p)
{
    insert_step(p, 0, p->n[0], step_move(PAYLOAD_KV, block_whole(0), 2, block_none(), -1));
}
static void sends_before_it_has(ContextPlan *p)
{
    swap_steps(step(p, 0, PAYLOAD_KV, 0), step(p, 0, PAYLOAD_KV, 1));
}
static void more_than_the_formula(ContextPlan *p)
{
    insert_step(p, 0, 0, step_move(PAYLOAD_KV, block_whole(0), 2, block_none(), -1));
    insert_step(p, 2, 0, step_move(PAYLOAD_KV, block_none(), -1, block_whole(0), 0));
}
/* Every rank receives before it sends: rank r sends only after the keys of r-1 have come. */
static void circular_wait(ContextPlan *p)
{
    for (int rank = 0; rank < p->shape.ranks; rank++) {
        ContextStep *first = step(p, rank, PAYLOAD_KV, 0);
        ContextStep in = *first;
        in.to = -1;
        first->from = -1;
        ContextStep *own = visit(p, rank, 0);
        *own = *visit(p, rank, 1); /* needs the keys of r-1 */
        insert_step(p, rank, 0, in);
        swap_steps(&p->list[rank][1], &p->list[rank][2]);
    }
}
/* Rank 3 visits what rank 1 should. */
static void work_elsewhere(ContextPlan *p)
{
    visit(p, 1, 0)->q = visit(p, 1, 0)->k = block_none();
    delete_step(p, 1, visit(p, 1, 0));
    insert_step(p, 3, p->n[3], step_move(PAYLOAD_Q, block_none(), -1, block_whole(1), 1));
    insert_step(p, 3, p->n[3], step_visit(block_whole(1), block_whole(1)));
    insert_step(p, 3, p->n[3], step_move(PAYLOAD_O, block_whole(1), 1, block_none(), -1));
    insert_step(p, 1, 0, step_move(PAYLOAD_Q, block_whole(1), 3, block_none(), -1));
    insert_step(p, 1, p->n[1], step_move(PAYLOAD_O, block_none(), -1, block_whole(1), 3));
}

/* Faults in a ring of 4, backward. */
static void partial_to_wrong_owner(ContextPlan *p) /* rank 1 closes the ring of block 2 at 3 */
{
    ContextStep *out = step(p, 1, PAYLOAD_DKV, 2), *in = step(p, 2, PAYLOAD_DKV, 2);
    out->to = 3;
    in->from = -1;
    insert_step(p, 3, p->n[3], step_move(PAYLOAD_DKV, block_none(), -1, in->in, 1));
}
static void partial_stays(ContextPlan *p)
{
    step(p, 1, PAYLOAD_DKV, 2)->to = -1;
    step(p, 2, PAYLOAD_DKV, 2)->from = -1;
}
static void partial_before_its_visit(ContextPlan *p)
{
    swap_steps(visit(p, 1, 0), step(p, 1, PAYLOAD_DKV, 0));
}
static void partial_sent_twice(ContextPlan *p)
{
    insert_step(p, 1, p->n[1],
                step_move(PAYLOAD_DKV, step(p, 1, PAYLOAD_DKV, 0)->out, 2, block_none(), -1));
}
static void owner_sends_its_own(ContextPlan *p)
{
    insert_step(p, 1, p->n[1], step_move(PAYLOAD_DKV, block_whole(1), 2, block_none(), -1));
}
/* After its first visit each rank adds a gradient that its peer sends after the same wait. */
static void arrivals_too_early(ContextPlan *p)
{
    for (int rank = 0; rank < 4; rank++) {
        ContextStep *s = step(p, rank, PAYLOAD_DKV, 0), receive = *s;
        s->from = -1;
        s->in = block_none();
        receive.to = -1;
        receive.out = block_none();
        insert_step(p, rank, (int)(visit(p, rank, 0) - p->list[rank]), receive);
    }
}
static void receive_too_late(ContextPlan *p)
{
    ContextStep *first = step(p, 2, PAYLOAD_DKV, 0), *second = step(p, 2, PAYLOAD_DKV, 1);
    const ContextStep in = *first;
    first->from = -1;
    insert_step(p, 2, (int)(second - p->list[2]) + 1,
                step_move(PAYLOAD_DKV, block_none(), -1, in.in, in.from));
}

/* Faults in rsa on 4 ranks: visits 0 to 3 of a rank have the scores, 4 to 7 the values, forward. */
static void values_before_scores(ContextPlan *p)
{
    ContextStep *last = visit(p, 2, 3), *first = visit(p, 2, 4);
    const ContextStep s = *last;
    *last = *first; /* own keys, and own values */
    *first = s;
}
static void pass_missing(ContextPlan *p) { delete_step(p, 1, visit(p, 1, 5)); }
static void both_passes(ContextPlan *p) { visit(p, 1, 0)->pass = PASS_BOTH; }
static void scores_twice(ContextPlan *p) { insert_step(p, 3, p->n[3], *visit(p, 3, 0)); }
static void keys_with_values(ContextPlan *p) { step(p, 0, PAYLOAD_K, 0)->payload = PAYLOAD_KV; }
static void keys_for_values(ContextPlan *p)
{
    for (int rank = 0; rank < 4; rank++) step(p, rank, PAYLOAD_V, 0)->payload = PAYLOAD_K;
}
static void values_stay(ContextPlan *p)
{
    step(p, 1, PAYLOAD_DV, 2)->to = -1;
    step(p, 2, PAYLOAD_DV, 2)->from = -1;
}

typedef struct {
    const char *name;
    void (*seed)(ContextPlan *p);
    const char *reason;
    bool backward;
} Fault;

static const Fault faults[] = {
    {"visit twice", visit_twice, "visits a pair again", false},
    {"visit missing", visit_missing, "no rank visits the queries of block 3", false},
    {"half a visit", visit_half, "no rank visits the queries of block 1", false},
    {"visit too early", visit_too_early, "visits keys that it does not have (block 0)", false},
    {"queries of others", visit_of_others, "visits queries that it does not have", false},
    {"visit of no block", visit_of_none, "visits no block", false},
    {"wrong payload", wrong_payload, "expects kv of block 0", false},
    {"wrong block", wrong_block, "is kv of block 1, and its receive expects kv of block 3", false},
    {"wrong half", wrong_half, "send 1 from rank 1 to rank 2", false},
    {"other direction", other_direction, "a payload of the other direction", false},
    {"unknown payload", unknown_payload, "moves an unknown payload", false},
    {"to itself", to_itself, "moves to itself", false},
    {"to nobody", to_nobody, "a rank that does not exist", false},
    {"nothing moves", nothing_moves, "moves nothing", false},
    {"send missing", send_missing, "waits forever", false},
    {"receive missing", receive_missing, "sends 1 messages to rank 2, which receives 0", false},
    {"sends before it has", sends_before_it_has, "sends a payload that it does not have", false},
    {"bytes", more_than_the_formula, "sends 26 half blocks of kv; its formula has 24", false},
    {"circular wait", circular_wait, "waits forever", false},
    {"work elsewhere", work_elsewhere, "half blocks of q; its formula has 0", false},
    {"wrong owner", partial_to_wrong_owner, "dkv of block 2 stays on rank 3", true},
    {"partial stays", partial_stays, "dkv of block 2 stays on rank 1", true},
    {"partial before its visit", partial_before_its_visit, "does not have", true},
    {"partial sent twice", partial_sent_twice, "does not have", true},
    {"arrivals too early", arrivals_too_early, "waits forever", true},
    {"owner sends its own", owner_sends_its_own, "away from its owner", true},
    {"receive too late", receive_too_late, "expects kv of block 3", true},
};

static const Fault faults_in_passes[] = {
    {"values before scores", values_before_scores, "has whole rows of the first (block 2)", false},
    {"pass missing", pass_missing, "no rank visits the queries of block 1", false},
    {"both passes", both_passes, "a pass that the plan does not have", false},
    {"scores twice", scores_twice, "visits a pair again", false},
    {"keys with values", keys_with_values, "as the other passes have them", false},
    {"keys for values", keys_for_values, "sends a payload that it does not have (block 3)", false},
    {"gradients of values stay", values_stay, "dv of block 2 stays on rank 1", true},
};

static void plan_of_4(const char *name, bool backward, Arena *a, ContextPlan *out)
{
    const ContextRow *row;
    ContextPlan forward;
    DO(context_row(name, a, &row));
    const TokenMap tokens = row->passes ? TOKENS_CONTIGUOUS : TOKENS_ZIGZAG;
    DO(context_plan(row, &(ContextShape){4, 1, tokens, !row->passes}, a, &forward));
    *out = forward;
    if (backward) DO(context_backward(&forward, a, out));
}

static void expect_named(const char *plan, const Fault *fault, int n, Arena *a)
{
    for (int i = 0; i < n; i++) {
        ContextPlan p;
        plan_of_4(plan, fault[i].backward, a, &p);
        DO(context_check(&p, a, NULL));
        fault[i].seed(&p);
        if (context_check(&p, a, NULL) != ERR_CHECK) fail_msg("%s: not found", fault[i].name);
        if (!strstr(err_text(), fault[i].reason))
            fail_msg("%s: \"%s\" lacks \"%s\"", fault[i].name, err_text(), fault[i].reason);
    }
}

static void seeded_faults_are_named(void **state)
{
    expect_named("ring", faults, sizeof faults / sizeof *faults, *state);
    expect_named("rsa", faults_in_passes, sizeof faults_in_passes / sizeof *faults_in_passes,
                 *state);
}

/* A bound that the plan does not meet: contiguous tokens, declared as balanced. */
static double balanced(const ContextShape *s)
{
    (void)s;
    return 1;
}

static void imbalance_is_named(void **state)
{
    const ContextRow *row;
    ContextPlan p;
    DO(context_row("ring", *state, &row));
    ContextRow claims = *row;
    claims.bound = balanced;
    DO(context_plan(&claims, &(ContextShape){4, 1, TOKENS_CONTIGUOUS, true}, *state, &p));
    assert_int_equal(context_check(&p, *state, NULL), ERR_CHECK);
    assert_non_null(strstr(err_text(), "has 1.750000 of the mean work"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeded_faults_are_named),
        cmocka_unit_test(imbalance_is_named),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
