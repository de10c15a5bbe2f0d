/* test_context_reach.c -- what tokens of one rank along cp do to those of another.
 *
 *     token      0  1  2  3  4  5  6 ...        each has an id of its own, so the gradient of its
 *     rank       0  0  1  1  1  2  2            row of the embedding is its own
 *     weight     0  0  0  0  0  1  1            loss on the tokens of one rank only
 *
 * A gradient on a rank without loss comes from queries of other ranks alone. Each comparison is in
 * f64 with one rank, relative to the token's own gradient. */
#include "support/expect.h"
#include "support/models.h"
#include "support/verified.h"

#include <math.h>
#include <stdio.h>
#include "layout/tokens.h"
#include "verify/verify.h"

enum { SEQ = 13, MAX_CP = 4 }; /* 13 divides by no 2 cp */

#define BOUND 1e-10

typedef struct {
    const SpanMap *map; /* of tokens to ranks; NULL: all tokens count */
    int counted;        /* the rank whose tokens have a loss */
    int64_t last,
        change;  /* last: only this token has a loss; change: its id is another; -1: none */
    bool random; /* random weights */
} Edit;

static bool is_held(const SpanMap *map, int part, int64_t token)
{
    for (int64_t i = map->first[part]; i < map->first[part + 1]; i++) {
        const Span *s = &map->span[i];
        if (token >= s->lo && token < s->hi && (token - s->lo) % (s->step ? s->step : 1) == 0)
            return true;
    }
    return false;
}

static void edit(const void *context, int64_t sequence, int64_t i, InputRow *row)
{
    const Edit *e = context;
    row->token = (int32_t)(1 + i + (i == e->change ? SEQ : 0));
    row->weight = 1;
    if (e->map && !is_held(e->map, e->counted, i)) row->weight = 0;
    if (e->last >= 0 && i != e->last) row->weight = 0;
    if (e->random) row->weight = (double)((i * 7 + sequence * 5) % 11) / 11;
}

static TrialSettings settings(const Edit *e, const ModelConfig *config)
{
    return (TrialSettings){.job = {.kind = JOB_STEP,
                                   .config = config,
                                   .dtype = F64,
                                   .batch = {1, SEQ},
                                   .schedule = "1f1b",
                                   .optim = {.kind = OPTIM_SGD, .block = 16}},
                           .device = &device_ref,
                           .global = 1,
                           .steps = 1,
                           .lr = 1e-2,
                           .seed = 3,
                           .edit = edit,
                           .context = e,
                           .poison = true};
}

static ModelConfig model(void)
{
    ModelConfig c = *test_model("llama");
    c.vocab = 3 * SEQ;
    c.init_std = 0.4;
    return c;
}

/* The gradient of a token's row of the embedding. */
static const double *row_of(const Trial *t, const ModelConfig *c, int64_t token)
{
    assert_non_null(strstr(t->model->param[0].name, "embed"));
    return t->gradient + t->at[0] + (1 + token) * c->width;
}

static double largest(const double *a, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(a[i]));
    return most;
}

/* Compares the gradients of the tokens of rank s; returns how many are not 0. */
static int compare_rows(const Trial *one, const Trial *many, const ModelConfig *c,
                        const SpanMap *map, int s, const char *name)
{
    int found = 0;
    for (int64_t i = 0; i < SEQ; i++) {
        const double *a = row_of(one, c, i), *b = row_of(many, c, i), most = largest(a, c->width);
        if (!is_held(map, s, i)) continue;
        found += most > 0;
        for (int64_t k = 0; k < c->width; k++)
            if (!(fabs(a[k] - b[k]) <= BOUND * most))
                fail_msg("%s: token %d of rank %d: gradient %g, not %g", name, (int)i, s, b[k],
                         a[k]);
    }
    return found;
}

/* Loss on the tokens of one rank, gradients of all others: every pair of ranks. */
static void gradients_of_other_ranks(void **state)
{
    const ModelConfig c = model();
    (void)state;
    for (int kind = TOKENS_CONTIGUOUS; kind < N_TOKEN_MAPS; kind++)
        for (int cp = 2; cp <= MAX_CP; cp++)
            for (int counted = 0; counted < cp; counted++) {
                Edit e = {.counted = counted, .last = -1, .change = -1};
                Trial one, many;
                Arena arena;
                char name[64];
                int found = 0;
                DO(arena_open(&arena, "trial", ARENA_PLENTY));
                DO(tokens_map(&arena, (TokenMap)kind, 1, SEQ, cp, &e.map));
                TrialSettings t = settings(&e, &c);
                DO(trial_run(&t, &arena, &one));
                t.job.parallel.mesh.cp = cp;
                t.job.parallel.tokens = (TokenMap)kind;
                DO(trial_run(&t, &arena, &many));
                snprintf(name, sizeof name, "cp=%d tokens=%s, loss on rank %d", cp,
                         token_map_name((TokenMap)kind), counted);
                for (int s = 0; s < cp; s++)
                    if (s != counted) found += compare_rows(&one, &many, &c, e.map, s, name);
                /* Causal: of contiguous tokens, those of rank 0 see no other rank. */
                assert_int_equal(found > 0, counted > 0 || kind != TOKENS_CONTIGUOUS);
                const TrialGap gap = trial_gap(&one, &many, 1);
                if (!(gap.loss <= BOUND && gap.norm <= BOUND && gap.gradient <= BOUND))
                    fail_msg("%s: loss %g, norm %g, gradient of %s %g", name, gap.loss, gap.norm,
                             gap.gradient_at, gap.gradient);
                arena_close(&arena);
            }
}

/* The loss of the last token under a layout. */
static double loss_of(int cp, TokenMap kind, bool documents, int64_t change, const ModelConfig *c)
{
    const Edit e = {.last = SEQ - 1, .change = change};
    TrialSettings t = settings(&e, c);
    Trial out;
    Arena arena;
    t.documents = documents;
    t.job.parallel.mesh.cp = cp;
    t.job.parallel.tokens = kind;
    DO(arena_open(&arena, "trial", ARENA_PLENTY));
    DO(trial_run(&t, &arena, &out));
    const double loss = out.loss[0];
    arena_close(&arena);
    return loss;
}

/* A changed token changes the loss of the last one if both are in one document, by as much as on
 * one rank; else not a bit of it. */
static void tokens_reach_their_document(void **state)
{
    static const int64_t change[] = {0, 3, 8, 11};
    const ModelConfig c = model();
    int reached[2] = {0, 0};
    (void)state;
    for (int documents = 0; documents < 2; documents++)
        for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
            const double one = loss_of(1, TOKENS_AUTO, documents, -1, &c);
            const double other = loss_of(1, TOKENS_AUTO, documents, change[i], &c);
            reached[documents] += one != other;
            for (int kind = TOKENS_CONTIGUOUS; kind < N_TOKEN_MAPS; kind++) {
                const double a = loss_of(4, (TokenMap)kind, documents, -1, &c);
                const double b = loss_of(4, (TokenMap)kind, documents, change[i], &c);
                assert_true(fabs(a - one) <= BOUND * one && fabs(b - other) <= BOUND * other);
                if ((a != b) != (one != other))
                    fail_msg("token %d, %s: the loss was %.17g, is %.17g", (int)change[i],
                             token_map_name((TokenMap)kind), a, b);
            }
        }
    assert_int_equal(reached[0], 4);
    assert_in_range(reached[1], 1, 3); /* some are in the last document */
}

/* Weights that differ from token to token make upstream gradients differ. */
static void random_upstream_gradients(void **state)
{
    const ModelConfig c = model();
    const Edit e = {.last = -1, .change = -1, .random = true};
    Trial one, many;
    Arena arena;
    (void)state;
    DO(arena_open(&arena, "trial", ARENA_PLENTY));
    TrialSettings t = settings(&e, &c);
    t.job.batch.sequences = 2;
    t.global = 3; /* the last micro-batch is short */
    DO(trial_run(&t, &arena, &one));
    for (int kind = TOKENS_CONTIGUOUS; kind < N_TOKEN_MAPS; kind++)
        for (int cp = 2; cp <= 5; cp++) {
            t.job.parallel.mesh.cp = cp;
            t.job.parallel.tokens = (TokenMap)kind;
            DO(trial_run(&t, &arena, &many));
            const TrialGap gap = trial_gap(&one, &many, 1);
            if (!(gap.loss <= BOUND && gap.norm <= BOUND && gap.gradient <= BOUND &&
                  gap.valid <= BOUND))
                fail_msg("cp=%d tokens=%s: loss %g, norm %g, gradient of %s %g", cp,
                         token_map_name((TokenMap)kind), gap.loss, gap.norm, gap.gradient_at,
                         gap.gradient);
        }
    arena_close(&arena);
}

/* Sequences of 3 tokens on 5 ranks leave ranks without rows; all memory is initially NaN. */
static void ranks_without_tokens(void **state)
{
    static const char *const words[] = {"cp=5", "cp=5 tokens=zigzag", "cp=8 tokens=striped zero=3",
                                        "cp=4 tp=2 sequence", "cp=4 pp=2 tokens=zigzag"};
    const ModelConfig c = model();
    (void)state;
    for (int blank = 0; blank < 2; blank++)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            VerifySettings s = verified_f64(&c, 2, 3);
            s.blank = blank;
            expect_verified_words(&s, words[i]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_other_ranks),
        cmocka_unit_test(tokens_reach_their_document),
        cmocka_unit_test(random_upstream_gradients),
        cmocka_unit_test(ranks_without_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
