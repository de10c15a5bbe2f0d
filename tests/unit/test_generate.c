/* test_generate.c -- generated tokens do not depend on how the session is run.
 *
 * Seven prompts of different lengths run in sessions of one to four sequences, with and without a
 * KV cache, with calls of any size, on meshes; greedy, and sampled with all filters. The reference
 * computes each prompt alone, without a cache, on one rank. */
#include <stdio.h>

#include "support/expect.h"
#include "support/jobs.h"
#include "infer/generate.h"

enum { PROMPTS = 7, CONTEXT = 17, MOST = 24, VOCAB = 23, MAX_RANKS = 4 };

static const int64_t prompt_length[PROMPTS] = {3, 9, 1, 17, 5, 2, 12};

typedef struct {
    int64_t n;
    int32_t token[MOST];
    GenerateEnd why;
    int ends;
} Output;

typedef struct {
    const char *model;
    MeshSizes mesh;
    SessionShape shape;
    SamplerSettings sample;
    int64_t max_tokens, n_prompts;
    int32_t stop_token;   /* -1: none */
    int32_t enough_after; /* a token after which the listener ends the prompt; -1: none */
    int64_t stop_at;      /* interrupt after this many tokens; 0: never */
    volatile sig_atomic_t stop;
    Output out[MAX_RANKS][PROMPTS];
    GenerateResult result[MAX_RANKS];
} Case;

typedef struct {
    Case *c;
    int rank;
    int64_t tokens;
} Listener;

static bool on_token(void *context, int64_t prompt, int32_t token)
{
    Listener *e = context;
    Output *o = &e->c->out[e->rank][prompt];
    if (o->n < MOST) o->token[o->n] = token;
    o->n++;
    if (++e->tokens == e->c->stop_at) e->c->stop = 1;
    return token == e->c->enough_after;
}

static void on_end(void *context, int64_t prompt, GenerateEnd why)
{
    Listener *e = context;
    e->c->out[e->rank][prompt].why = why;
    e->c->out[e->rank][prompt].ends++;
}

static Err generate(WorldRank *w, Case *c, Session *s)
{
    static const int32_t token[] = {4,  17, 2,  9, 11, 0, 22, 8,  5,  13, 1,
                                    19, 7,  20, 3, 16, 6, 10, 21, 14, 12};
    Prompt prompt[PROMPTS];
    Listener listener = {.c = c, .rank = w->rank};
    for (int i = 0; i < PROMPTS; i++) prompt[i] = (Prompt){token + i % 4, prompt_length[i]};
    const GenerateSettings set = {.session = s,
                                  .prompt = prompt,
                                  .n_prompts = c->n_prompts,
                                  .sample = c->sample,
                                  .max_tokens = c->max_tokens,
                                  .stop_token = &c->stop_token,
                                  .n_stop_tokens = c->stop_token >= 0,
                                  .listener = {on_token, on_end, &listener},
                                  .stop = &c->stop,
                                  .arena = w->arena};
    return generate_run(&set, &c->result[w->rank]);
}

static Err body(WorldRank *w, void *work)
{
    Case *c = work;
    ModelConfig *config;
    SessionJobs *jobs;
    Session *s;
    TRY(ARENA_NEW(w->arena, 1, &config));
    TRY(ARENA_NEW(w->arena, 1, &jobs));
    TRY(ARENA_NEW(w->arena, 1, &s));
    *config = *test_model(c->model);
    config->init_std = 0.4;
    JobSettings base = {.config = config, .dtype = F64, .optim = {.block = 16}};
    base.parallel.mesh = c->mesh;
    base.parallel.rank = w->rank;
    TRY(world_agree(w, session_compile(&base, &c->shape, w->arena, jobs)));
    const SessionSettings set = {jobs, &device_ref, w, NULL};
    TRY(world_agree(w, session_open(s, &set)));
    TRY(world_agree(w, rank_init_weights(&s->rank[0], 5)));
    const Err err = generate(w, c, s);
    world_leave(w, err);
    session_close(s);
    return err;
}

static int ranks_of(const MeshSizes *m)
{
    return (m->tp ? m->tp : 1) * (m->pp ? m->pp : 1) * (m->cp ? m->cp : 1);
}

static Err try_case(Case *c)
{
    const int ranks = ranks_of(&c->mesh);
    const WorldSettings set = {
        .ranks = ranks, .in_flight = 64, .records = 64, .timeout_s = 20, .body = body, .work = c};
    memset(c->out, 0, sizeof c->out);
    c->stop = 0;
    return world_run(&set);
}

static void run(Case *c)
{
    const int ranks = ranks_of(&c->mesh);
    DO(try_case(c));
    for (int r = 1; r < ranks; r++) /* all ranks have the same tokens */
        assert_memory_equal(c->out[r], c->out[0], sizeof c->out[0]);
}

static Case case_of(const char *model, SamplerSettings sample)
{
    return (Case){.model = model,
                  .sample = sample,
                  .shape = {CONTEXT, 1, 1, CONTEXT, false},
                  .max_tokens = 6,
                  .n_prompts = PROMPTS,
                  .stop_token = -1,
                  .enough_after = -1};
}

static const SamplerSettings greedy = {.top_p = 1, .repetition = 1};
static const SamplerSettings drawn = {1.3, 19, 0.95, 1.2, 77};

static void expect_same(const Case *want, Case *got, const char *name)
{
    run(got);
    for (int i = 0; i < PROMPTS; i++) {
        const Output *a = &want->out[0][i], *b = &got->out[0][i];
        if (a->n != b->n || a->why != b->why || b->ends != 1 ||
            memcmp(a->token, b->token, sizeof a->token) != 0)
            fail_msg("%s, %s, prompt %d: %d tokens, %s; alone %d, %s; the first is %d, not %d",
                     want->model, name, i, (int)b->n, generate_end_name(b->why), (int)a->n,
                     generate_end_name(a->why), b->token[0], a->token[0]);
    }
}

static void sessions_agree(void **state)
{
    (void)state;
    static Case one, c;
    static const struct {
        int64_t rows, sequences;
        int cached, tp, pp, cp;
    } row[] = {{CONTEXT, 1, 1, 1, 1, 1}, {5, 3, 1, 1, 1, 1}, {4, 4, 1, 1, 1, 1},
               {2, 1, 1, 1, 1, 1},       {7, 2, 1, 2, 1, 1}, {3 * CONTEXT, 3, 0, 1, 1, 1},
               {6, 3, 1, 1, 2, 1},       {5, 2, 1, 3, 1, 1}, {9, 4, 1, 2, 2, 1},
               {CONTEXT, 1, 1, 1, 1, 4}, {5, 3, 1, 1, 1, 3}, {2 * CONTEXT, 2, 0, 1, 1, 2},
               {7, 4, 1, 2, 1, 2},       {6, 3, 1, 1, 2, 2}};
    const char *const model[] = {"gpt2", "llama", "mistral", "llama-tied"};
    for (int m = 0; m < 8; m++) {
        one = case_of(model[m % 4], m < 4 ? greedy : drawn);
        run(&one);
        for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
            char name[96];
            snprintf(name, sizeof name, "%d rows, %d sequences, cached %d, tp=%d pp=%d cp=%d",
                     (int)row[i].rows, (int)row[i].sequences, row[i].cached, row[i].tp, row[i].pp,
                     row[i].cp);
            c = one;
            c.shape = (SessionShape){row[i].rows, row[i].sequences, row[i].sequences, CONTEXT,
                                     row[i].cached != 0};
            c.mesh = (MeshSizes){.tp = row[i].tp, .pp = row[i].pp, .cp = row[i].cp};
            expect_same(&one, &c, name);
        }
    }
}

/* Draws differ between seeds, and between requests with the same prompt. */
static void seeds_matter(void **state)
{
    (void)state;
    static Case a, b;
    int same = 0;
    a = case_of("llama", drawn);
    b = a;
    b.sample.seed++;
    run(&a);
    run(&b);
    for (int i = 0; i < PROMPTS; i++)
        same += memcmp(a.out[0][i].token, b.out[0][i].token, sizeof a.out[0][i].token) == 0;
    assert_in_range(same, 0, 3); /* one prompt gets a single token */
}

/* Ends: length, context, stop token, listener. */
static void reasons_of_ends(void **state)
{
    (void)state;
    static Case c;
    c = case_of("llama", greedy);
    c.shape = (SessionShape){5, 2, 2, CONTEXT, true};
    run(&c);
    for (int i = 0; i < PROMPTS;
         i++) { /* one token past the context is sampled; it is never an input */
        const int64_t left = CONTEXT + 1 - prompt_length[i];
        assert_int_equal(c.out[0][i].n, left < 6 ? left : 6);
        assert_int_equal(c.out[0][i].why, left < 6 ? END_CONTEXT : END_LENGTH);
    }
    const Output first = c.out[0][0];
    c.stop_token = first.token[3];
    run(&c);
    int64_t at = 0;
    while (first.token[at] != c.stop_token) at++;
    assert_int_equal(c.out[0][0].n, at); /* the stop token is not passed to the listener */
    assert_int_equal(c.out[0][0].why, END_TOKEN);
    c.stop_token = -1;
    c.enough_after = first.token[3];
    run(&c);
    assert_int_equal(c.out[0][0].n, at + 1);
    assert_int_equal(c.out[0][0].why, END_STOP);
}

/* An interrupt returns the tokens so far, equal on all ranks. */
static void interrupts(void **state)
{
    (void)state;
    static Case c;
    c = case_of("llama", greedy);
    c.shape = (SessionShape){5, 2, 2, CONTEXT, true};
    c.stop_at = 5;
    run(&c);
    assert_true(c.result[0].stopped);
    int64_t tokens = 0, interrupted = 0;
    for (int i = 0; i < PROMPTS; i++) {
        tokens += c.out[0][i].n;
        interrupted += c.out[0][i].ends && c.out[0][i].why == END_INTERRUPT;
    }
    assert_in_range(tokens, 5, 6);
    assert_in_range(interrupted, 1, 2);
}

static void counts(void **state)
{
    (void)state;
    static Case c;
    int64_t prompts = 0, made = 0;
    c = case_of("llama", greedy);
    c.shape = (SessionShape){5, 4, 4, CONTEXT, true};
    run(&c);
    for (int i = 0; i < PROMPTS; i++) prompts += prompt_length[i], made += c.out[0][i].n;
    /* The last row of a prompt may run in a decode call. */
    assert_in_range(c.result[0].prefill_tokens, prompts - PROMPTS, prompts);
    assert_int_equal(c.result[0].prefill_tokens + c.result[0].decode_tokens,
                     prompts + made - PROMPTS);
}

static void refusals(void **state)
{
    (void)state;
    static Case c;
    c = case_of("llama", greedy);
    c.mesh.tp = 2;
    c.sample.top_p = 2;
    expect_error("top-p", try_case(&c), ERR_CONFIG, "top-p 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_agree),  cmocka_unit_test(seeds_matter),
        cmocka_unit_test(reasons_of_ends), cmocka_unit_test(interrupts),
        cmocka_unit_test(counts),          cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
