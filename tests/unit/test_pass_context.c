/* test_pass_context.c -- attention by a plan: the transfers that the pass writes, their elements
 * and order, the work of the ranks, and what F keeps. Nothing runs; test_ranks_context.c has the
 * numbers. */
#include "place_test.h"

#include "compile/context/check.h"
#include "ir/pairs.h"
#include "ir/program.h"

/* `rows` tokens in 2 sequences, on cp ranks of one unit `layer`. */
typedef struct {
    const char *plan; /* NULL: keys are gathered */
    int cp, inner;
    TokenMap tokens;
    int64_t seq_len, heads, key_heads;
    Recompute recompute; /* NAMED: all but the outputs of attention */
    int cp_heads;        /* of cp; 0: none */
} PlanCase;

typedef struct {
    Arena arena;
    ModelConfig config;
    Model model;
    Ranks r;
    int64_t queries, keys; /* elements of q and of k of all tokens */
    int64_t stats;         /* elements of lse of all tokens */
} PlanBed;

static void bed_open(PlanBed *b, const PlanCase *c, bool backward)
{
    Mesh mesh;
    CompileOptions o = {.backward = backward,
                        .recompute = c->recompute,
                        .recompute_names = "full,-attn.out,-attn.lse"};
    ContextKind kind = CONTEXT_GATHER;
    const int64_t rows = 2 * c->seq_len;
    DO(mesh_sized(&(MeshSizes){.cp = c->cp, .cp_heads = c->cp_heads}, &mesh));
    DO(arena_open(&b->arena, "plan", (size_t)1 << 30));
    b->config = *test_model("llama");
    b->config.max_positions = 4096;
    b->config.full_mask = c->plan && strcmp(c->plan, "rsa") == 0;
    b->config.n_heads = c->heads;
    b->config.n_kv_heads = c->key_heads;
    b->queries = rows * c->heads * b->config.head_size;
    b->keys = rows * c->key_heads * b->config.head_size;
    b->stats = rows * c->heads;
    DO(model_build(&b->config, F32, (BatchShape){2, c->seq_len}, &b->arena, &b->model));
    for (int i = CONTEXT_RING; c->plan && i < N_CONTEXTS; i++)
        if (strcmp(context_name((ContextKind)i), c->plan) == 0) kind = (ContextKind)i;
    const Strategy tp = strategy_tp, s = strategy_with_context(&tp, kind, &mesh);
    Strategy with = strategy_with_heads(&s, c->heads, c->key_heads, b->config.head_size);
    const int parts = c->cp / (c->cp_heads ? c->cp_heads : 1);
    DO(tokens_map_in_order(&b->arena, c->tokens, 2, c->seq_len, parts, &with.tokens));
    o.strategy = &with;
    o.context = (ContextChoice){NULL, c->tokens, c->inner, c->seq_len};
    if (c->plan) DO(context_row(c->plan, &b->arena, &o.context.row));
    ranks_open_mesh(&b->r, &b->model.kind[1], &o, &mesh);
}

static void bed_close(PlanBed *b)
{
    ranks_close(&b->r);
    arena_close(&b->arena);
}

static const PlanCase cases[] = {
    {"ring", 2, 0, TOKENS_ZIGZAG, 40, 4, 4, RECOMPUTE_NONE, 0},
    {"ring", 5, 0, TOKENS_STRIPED, 40, 8, 2, RECOMPUTE_NONE, 0},
    {"double-ring", 4, 2, TOKENS_ZIGZAG, 40, 8, 2, RECOMPUTE_NONE, 0},
    {"double-ring", 6, 3, TOKENS_CONTIGUOUS, 48, 8, 1, RECOMPUTE_NONE, 0},
    {"lightseq", 2, 0, TOKENS_CONTIGUOUS, 40, 8, 2, RECOMPUTE_NONE, 0},
    {"lightseq", 5, 0, TOKENS_CONTIGUOUS, 40, 7, 7, RECOMPUTE_NONE, 0},
    {"lightseq", 8, 0, TOKENS_CONTIGUOUS, 48, 4, 4, RECOMPUTE_NONE, 0},
    {"token-ring", 3, 0, TOKENS_CONTIGUOUS, 42, 4, 4, RECOMPUTE_NONE, 0},
    {"token-ring", 4, 0, TOKENS_ZIGZAG, 40, 8, 2, RECOMPUTE_NONE, 0},
    {"token-ring", 5, 0, TOKENS_ZIGZAG, 40, 7, 7, RECOMPUTE_NONE, 0},
    /* keep scores: with a full mask */
    {"rsa", 2, 0, TOKENS_CONTIGUOUS, 40, 4, 4, RECOMPUTE_NONE, 0},
    {"rsa", 4, 0, TOKENS_CONTIGUOUS, 40, 7, 7, RECOMPUTE_NONE, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases, N_IN_ONE_PASS = N_CASES - 2 };

/* The elements that all ranks send of one payload, from the half blocks of the method's formula. */
static int64_t elements(const PlanCase *c, const ContextSent *s, ContextPayload p, int64_t of_all)
{
    assert_int_equal(s->halves[p] * of_all % (2 * c->cp), 0);
    return s->halves[p] * of_all / (2 * c->cp);
}

/* Elements are those of the published formula; lse and delta are counted apart. Nothing else is
 * sent in the phases of attention: nothing is gathered. */
static void elements_are_those_of_the_formula(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const PlanCase *c = &cases[i];
        PlanBed b;
        ContextSent f, back;
        const ContextRow *row;
        bed_open(&b, c, true);
        DO(context_row(c->plan, &b.arena, &row));
        const ContextShape shape = {c->cp, c->inner, c->tokens, !row->passes};
        row->sent(&shape, false, &f);
        row->sent(&shape, true, &back);
        int64_t passes[2] = {0, 0};
        for (int k = PAYLOAD_K; k <= PAYLOAD_DV; k++) {
            passes[0] += elements(c, &f, (ContextPayload)k, b.keys);
            passes[1] += elements(c, &back, (ContextPayload)k, b.keys);
        }
        const int64_t forward = passes[0] + 2 * elements(c, &f, PAYLOAD_KV, b.keys) +
                                elements(c, &f, PAYLOAD_Q, b.queries) +
                                elements(c, &f, PAYLOAD_O, b.queries + b.stats);
        const int64_t backward = passes[1] + 2 * elements(c, &back, PAYLOAD_KV, b.keys) +
                                 2 * elements(c, &back, PAYLOAD_DKV, b.keys) +
                                 2 * elements(c, &back, PAYLOAD_Q, b.queries + b.stats) +
                                 elements(c, &back, PAYLOAD_DQ, b.queries);
        assert_true(pairs_agree(&b.r, c->plan) > 0);
        assert_int_equal(ranks_sent(&b.r, PHASE_F, OP_send), forward);
        assert_int_equal(ranks_sent(&b.r, PHASE_I, OP_send), backward);
        assert_int_equal(ranks_sent(&b.r, PHASE_B, OP_send), backward);
        assert_int_equal(ranks_sent(&b.r, PHASE_W, OP_send), 0);
        for (int phase = 0; phase < N_PHASES; phase++)
            assert_int_equal(ranks_sent_all(&b.r, (Phase)phase),
                             ranks_sent(&b.r, (Phase)phase, OP_send));
        bed_close(&b);
    }
}

/* The totals of the publications, P (P-1)/P = P-1 blocks of S/P tokens on each of P ranks. */
static void totals_are_those_of_the_publications(void **state)
{
    (void)state;
    for (int cp = 2; cp <= 5; cp++) {
        PlanBed ring, whole, half, rsa;
        bed_open(&ring, &(PlanCase){"ring", cp, 0, TOKENS_ZIGZAG, 120, 8, 2, RECOMPUTE_NONE, 0},
                 true);
        bed_open(&whole,
                 &(PlanCase){"token-ring", cp, 0, TOKENS_CONTIGUOUS, 120, 4, 4, RECOMPUTE_NONE, 0},
                 true);
        bed_open(&rsa, &(PlanCase){"rsa", cp, 0, TOKENS_CONTIGUOUS, 120, 4, 4, RECOMPUTE_NONE, 0},
                 true);
        bed_open(&half,
                 &(PlanCase){"token-ring", cp, 0, TOKENS_ZIGZAG, 120, 4, 4, RECOMPUTE_NONE, 0},
                 true);
        assert_int_equal(ranks_sent(&ring.r, PHASE_F, OP_send) +
                             ranks_sent(&ring.r, PHASE_B, OP_send),
                         6 * (cp - 1) * ring.keys);
        const int64_t stats = 3 * (cp - 1) * whole.stats; /* lse; lse and delta */
        assert_int_equal(ranks_sent(&whole.r, PHASE_F, OP_send) +
                             ranks_sent(&whole.r, PHASE_B, OP_send),
                         5 * (cp - 1) * whole.queries + stats);
        assert_int_equal(
            4 * (ranks_sent(&half.r, PHASE_F, OP_send) + ranks_sent(&half.r, PHASE_B, OP_send)),
            3 * (5 * (cp - 1) * whole.queries + stats));
        assert_int_equal(ranks_sent(&rsa.r, PHASE_F, OP_send) +
                             ranks_sent(&rsa.r, PHASE_B, OP_send),
                         6 * (cp - 1) * rsa.queries);
        bed_close(&rsa);
        bed_close(&ring);
        bed_close(&whole);
        bed_close(&half);
    }
}

/* Ulysses over U ranks and a ring of R, on P = U R: a rank sends 4 (H + K) B S (U-1) / (U P) and
 * 6 B S K (R-1) / (R U). */
static void heads_and_a_ring_send_their_sum(void **state)
{
    static const int row[][2] = {{2, 2}, {2, 3}, {4, 2}}; /* U, R */
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const int U = row[i][0], R = row[i][1], P = U * R;
        const PlanCase c = {.plan = "ring",
                            .cp = P,
                            .tokens = TOKENS_ZIGZAG,
                            .seq_len = 48,
                            .heads = 8,
                            .key_heads = 4,
                            .cp_heads = U};
        PlanBed b;
        bed_open(&b, &c, true);
        const int64_t HBS = b.queries, KBS = b.keys;
        const int64_t heads =
            ranks_sent(&b.r, PHASE_F, OP_all_to_all) + ranks_sent(&b.r, PHASE_B, OP_all_to_all);
        const int64_t ring =
            ranks_sent(&b.r, PHASE_F, OP_send) + ranks_sent(&b.r, PHASE_B, OP_send);
        assert_int_equal(heads, P * 4 * (HBS + KBS) * (U - 1) / (U * P));
        assert_int_equal(ring, P * 6 * KBS * (R - 1) / (R * U));
        assert_int_equal(ranks_sent_all(&b.r, PHASE_F) + ranks_sent_all(&b.r, PHASE_B),
                         heads + ring);
        bed_close(&b);
    }
}

/* Ranks are idle for 1 / (2 P) of the P^2 visits of a ring if P is even, and never if it is odd:
 * all have as many visits, or half of them one less. */
static void early_ranks_help_late_ones(void **state)
{
    (void)state;
    for (int cp = 2; cp <= 9; cp++) {
        PlanBed b;
        int most = 0, all = 0;
        bed_open(&b, &(PlanCase){"lightseq", cp, 0, TOKENS_CONTIGUOUS, 72, 4, 4, RECOMPUTE_NONE, 0},
                 true);
        for (int k = 0; k < cp; k++) {
            const Program *p = &b.r.program[k];
            int visits = 0;
            for (int i = p->first[PHASE_F]; i < p->first[PHASE_F + 1]; i++)
                visits += p->instr[i].op == OP_attention;
            most = visits > most ? visits : most;
            all += visits;
        }
        assert_int_equal(all, cp * (cp + 1) / 2);
        assert_int_equal(cp * most - all, cp % 2 ? 0 : cp * cp / (2 * cp));
        bed_close(&b);
    }
}

/* Flops of attention on the busiest rank over the mean. */
static double balance(const Ranks *r, Phase phase, double *sum)
{
    double most = 0;
    *sum = 0;
    for (int k = 0; k < r->n; k++) {
        double here = 0;
        for (int i = r->program[k].first[phase]; i < r->program[k].first[phase + 1]; i++)
            if (op_visits(r->program[k].instr[i].op)) here += r->program[k].instr[i].heavy_flops;
        most = here > most ? here : most;
        *sum += here;
    }
    return most * r->n / *sum;
}

/* Work is balanced as the method says, up to the diagonal of a block, and is as much as that of one
 * rank. */
static void work_is_balanced(void **state)
{
    static const struct {
        PlanCase c;
        double bound;
    } table[] = {
        {{"ring", 4, 0, TOKENS_CONTIGUOUS, 400, 4, 2, RECOMPUTE_NONE, 0}, 7.0 / 4},
        {{"ring", 4, 0, TOKENS_ZIGZAG, 400, 4, 2, RECOMPUTE_NONE, 0}, 1},
        {{"double-ring", 4, 2, TOKENS_ZIGZAG, 400, 4, 2, RECOMPUTE_NONE, 0}, 1},
        {{"token-ring", 4, 0, TOKENS_ZIGZAG, 400, 4, 2, RECOMPUTE_NONE, 0}, 1},
        {{"lightseq", 4, 0, TOKENS_CONTIGUOUS, 400, 4, 2, RECOMPUTE_NONE, 0}, 5.0 / 4},
        {{"lightseq", 5, 0, TOKENS_CONTIGUOUS, 400, 4, 2, RECOMPUTE_NONE, 0}, 1},
        {{"rsa", 4, 0, TOKENS_CONTIGUOUS, 400, 4, 4, RECOMPUTE_NONE, 0}, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const bool full = strcmp(table[i].c.plan, "rsa") == 0;
        PlanBed b, one;
        const PlanCase gather = {.cp = table[i].c.cp,
                                 .tokens = TOKENS_ZIGZAG,
                                 .seq_len = 400,
                                 .heads = 4,
                                 .key_heads = 2};
        double sum, whole;
        bed_open(&b, &table[i].c, true);
        bed_open(&one, &gather, true);
        for (int phase = 0; phase < N_PHASES; phase++) {
            if (phase == PHASE_W) continue;
            const double got = balance(&b.r, (Phase)phase, &sum);
            balance(&one.r, (Phase)phase, &whole);
            /* All pairs; backward does not multiply queries with keys again. */
            if (full) whole *= 2 * 400.0 / 401 * (phase == PHASE_F ? 1 : 0.8);
            if (got > table[i].bound + 0.01 || got < table[i].bound - 0.01)
                fail_msg("%s on %d ranks: %f of the mean, not %f", table[i].c.plan, table[i].c.cp,
                         got, table[i].bound);
            assert_true(sum > 0.999999 * whole && sum < 1.000001 * whole);
        }
        bed_close(&b);
        bed_close(&one);
    }
}

static int count_ops(const Program *p, Phase phase, OpId op)
{
    int n = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) n += p->instr[i].op == op;
    return n;
}

/* Visits carry on (o, lse), dq, dk and dv in place: only what comes from other ranks is merged or
 * added, o and lse by a merge, dq by an add, dk and dv by two. */
static void visits_carry_on(void **state)
{
    static const struct {
        PlanCase c;
        int merges, adds; /* of all ranks */
    } table[] = {
        {{"ring", 4, 0, TOKENS_ZIGZAG, 40, 8, 2, RECOMPUTE_NONE, 0}, 0, 2 * 4 * 3},
        {{"double-ring", 4, 2, TOKENS_ZIGZAG, 40, 8, 2, RECOMPUTE_NONE, 0}, 0, 2 * 4 * 3},
        /* keys go to the rank at distance 1, whose dk and dv come back, or their queries do */
        {{"lightseq", 3, 0, TOKENS_CONTIGUOUS, 42, 4, 4, RECOMPUTE_NONE, 0}, 1, 2 * 2 + 1},
        {{"token-ring", 3, 0, TOKENS_CONTIGUOUS, 42, 4, 4, RECOMPUTE_NONE, 0}, 3 * 2, 3 * 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const PlanCase gather = {.cp = table[i].c.cp,
                                 .tokens = table[i].c.tokens,
                                 .seq_len = table[i].c.seq_len,
                                 .heads = table[i].c.heads,
                                 .key_heads = table[i].c.key_heads};
        PlanBed b, whole;
        int merges = 0, adds = 0;
        bed_open(&b, &table[i].c, true);
        bed_open(&whole, &gather, true);
        for (int k = 0; k < b.r.n; k++) {
            merges += count_ops(&b.r.program[k], PHASE_F, OP_attention_merge);
            adds += count_ops(&b.r.program[k], PHASE_B, OP_add) -
                    count_ops(&whole.r.program[k], PHASE_B, OP_add);
        }
        if (merges != table[i].merges || adds != table[i].adds)
            fail_msg("%s on %d ranks: %d merges, %d adds", table[i].c.plan, b.r.n, merges, adds);
        bed_close(&b);
        bed_close(&whole);
    }
}

static size_t frame_bytes(const Program *p)
{
    return p->bytes[REGION_FRAME_I] + p->bytes[REGION_FRAME_W];
}

/* Nothing of other ranks is kept for backward: a frame is no larger than with gathered keys. */
static void frames_hold_nothing_of_peers(void **state)
{
    (void)state;
    for (int i = 0; i < N_IN_ONE_PASS; i++) {
        PlanCase gather = cases[i];
        PlanBed b[2];
        gather.plan = NULL;
        bed_open(&b[0], &cases[i], true);
        bed_open(&b[1], &gather, true);
        for (int k = 0; k < cases[i].cp; k++)
            if (frame_bytes(&b[0].r.program[k]) > frame_bytes(&b[1].r.program[k]))
                fail_msg("%s on %d ranks: rank %d keeps %zu bytes, and %zu if keys are gathered",
                         cases[i].plan, cases[i].cp, k, frame_bytes(&b[0].r.program[k]),
                         frame_bytes(&b[1].r.program[k]));
        bed_close(&b[0]);
        bed_close(&b[1]);
    }
}

/* At a fixed number of tokens per rank, the memory of attention and the frames do not grow with the
 * ranks. */
static void memory_is_flat(void **state)
{
    static const struct {
        const char *plan;
        TokenMap tokens;
    } table[] = {{"ring", TOKENS_ZIGZAG},
                 {"double-ring", TOKENS_ZIGZAG},
                 {"token-ring", TOKENS_ZIGZAG},
                 {"lightseq", TOKENS_CONTIGUOUS}};
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t at[2] = {0, 0};
        for (int large = 0; large < 2; large++) {
            const int cp = large ? 16 : 12;
            PlanBed b;
            bed_open(&b,
                     &(PlanCase){table[i].plan, cp, 2, table[i].tokens, 16 * cp, 4, 2,
                                 RECOMPUTE_NONE, 0},
                     true);
            for (int k = 0; k < cp; k++) {
                const Program *p = &b.r.program[k];
                const size_t here =
                    p->scratch_live[PHASE_F] + p->scratch_live[PHASE_B] + frame_bytes(p);
                at[large] = here > at[large] ? here : at[large];
            }
            bed_close(&b);
        }
        if (at[1] > at[0])
            fail_msg("%s: %zu bytes on 12 ranks, %zu on 16", table[i].plan, at[0], at[1]);
    }
}

/* The first instruction of the phase from `from` on that has this op and, for a wait, awaits
 * `begun`. */
static int find_instr(const Program *p, Phase phase, int from, OpId op, int begun)
{
    for (int i = from; i < p->first[phase + 1]; i++)
        if (p->instr[i].op == op && (op != OP_wait || p->instr[i].in[0] == begun)) return i;
    return p->first[phase + 1];
}

/* Receives that are waited for before the next visit: nothing hides them. */
static int count_exposed(const Program *p, Phase phase, int *hops)
{
    const OpId visit = phase == PHASE_F ? OP_attention : OP_attention_part_dx;
    int exposed = 0;
    *hops = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        if (p->instr[i].op != OP_recv) continue;
        exposed += find_instr(p, phase, i, visit, 0) >
                   find_instr(p, phase, i, OP_wait, p->instr[i].out[0]);
        ++*hops;
    }
    return exposed;
}

/* Every hop is in flight during a visit. The first hop of the backward phase is the exception. */
static void hops_overlap_visits(void **state)
{
    static const Phase phases[] = {PHASE_F, PHASE_I, PHASE_B};
    const PlanCase ring = {"ring", 4, 0, TOKENS_ZIGZAG, 40, 8, 2, RECOMPUTE_NONE, 0};
    PlanBed b;
    (void)state;
    bed_open(&b, &ring, true);
    for (int rank = 0; rank < 4; rank++)
        for (int k = 0; k < 3; k++) {
            int hops;
            const int exposed = count_exposed(&b.r.program[rank], phases[k], &hops);
            assert_int_equal(hops, phases[k] == PHASE_F ? 6 : 12);
            assert_int_equal(exposed, phases[k] == PHASE_F ? 0 : 2); /* keys and values of a hop */
        }
    bed_close(&b);
}

/* Recomputation repeats the transfers of F in the backward phases, in the same order on both
 * sides. */
static void recomputed_transfers_meet(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        PlanCase c = cases[i];
        PlanBed none, full;
        bed_open(&none, &c, true);
        c.recompute = RECOMPUTE_FULL;
        bed_open(&full, &c, true);
        assert_true(pairs_agree(&full.r, c.plan) > 0);
        assert_int_equal(ranks_sent(&full.r, PHASE_B, OP_send),
                         ranks_sent(&none.r, PHASE_B, OP_send) +
                             ranks_sent(&none.r, PHASE_F, OP_send));
        bed_close(&none);
        bed_close(&full);
    }
}

/* With attn.out and attn.lse kept, attention and its transfers run once; q, k and v are not
 * kept. */
static void all_but_attention_is_recomputed(void **state)
{
    (void)state;
    for (int i = 0; i < N_IN_ONE_PASS; i++) {
        PlanCase c = cases[i];
        PlanBed none, but;
        bed_open(&none, &c, true);
        c.recompute = RECOMPUTE_NAMED;
        bed_open(&but, &c, true);
        assert_true(pairs_agree(&but.r, c.plan) > 0);
        assert_int_equal(ranks_sent(&but.r, PHASE_B, OP_send),
                         ranks_sent(&none.r, PHASE_B, OP_send));
        for (int k = 0; k < c.cp; k++) {
            const Program *p = &but.r.program[k];
            assert_true(2 * frame_bytes(p) < frame_bytes(&none.r.program[k]));
            for (int at = p->first[PHASE_I]; at < p->n_instr; at++)
                assert_true(p->instr[at].op != OP_attention);
        }
        bed_close(&none);
        bed_close(&but);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_those_of_the_formula),
        cmocka_unit_test(totals_are_those_of_the_publications),
        cmocka_unit_test(heads_and_a_ring_send_their_sum),
        cmocka_unit_test(early_ranks_help_late_ones),
        cmocka_unit_test(work_is_balanced),
        cmocka_unit_test(visits_carry_on),
        cmocka_unit_test(frames_hold_nothing_of_peers),
        cmocka_unit_test(memory_is_flat),
        cmocka_unit_test(hops_overlap_visits),
        cmocka_unit_test(recomputed_transfers_meet),
        cmocka_unit_test(all_but_attention_is_recomputed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
