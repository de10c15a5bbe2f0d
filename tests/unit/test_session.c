/* test_session.c -- sequences that grow by calls have the logits of sequences computed at once.
 *
 * Four sequences of known tokens run in a session of three. Prefill calls mix rows of two
 * sequences; decode calls have one row each; the fourth sequence replaces one that ended. The
 * logits of every row equal those of the same row computed without a KV cache, one sequence at a
 * time, on one rank. This holds for every model family and on meshes. All memory but the weights is
 * initially NaN. */
#include <math.h>
#include <stdio.h>

#include "support/expect.h"
#include "support/jobs.h"
#include "infer/session.h"

enum { SEQUENCES = 4, PLACES = 3, CONTEXT = 13, MOST = 11, VOCAB = 23, PIECE = 5 };

static const int64_t length[SEQUENCES] = {9, 5, 11, 8}, prompt[SEQUENCES] = {6, 1, 3, 7};

static int32_t token_of(int64_t sequence, int64_t position)
{
    return (int32_t)((7 * sequence + 5 * position + position * position * 3) % VOCAB);
}

typedef struct {
    ModelConfig config;
    MeshSizes mesh;
    SessionShape shape;
    bool alone; /* one sequence at a time, all of its rows in every call */
    double logits[SEQUENCES][MOST][VOCAB];
    int64_t cache_bytes, n_got;
} Case;

typedef struct {
    Case *c;
    Session *s;
    SessionRow row[64];
    int64_t n, sequence[64], at[64], n_requested; /* requested rows: their sequence, and position */
} Drive;

/* Logits of some rows are not requested where sequences share a call. */
static bool is_requested(const Case *c, int64_t sequence, int64_t position)
{
    return c->alone || (sequence + position) % 3 != 1;
}

static void add_row(Drive *d, int64_t sequence, int64_t place, int64_t position)
{
    const bool requested = is_requested(d->c, sequence, position);
    d->row[d->n++] = (SessionRow){place, position, token_of(sequence, position), requested};
    if (!requested) return;
    d->sequence[d->n_requested] = sequence;
    d->at[d->n_requested++] = position;
}

static Err make_call(Drive *d)
{
    Tensor logits;
    TRY(session_call(d->s, d->row, d->n, &logits));
    if (d->s->settings.world->rank == d->s->sampling_rank) {
        if (!logits.data || logits.n[0] != d->n_requested || logits.n[1] != VOCAB)
            return err_fail(ERR_CHECK, "logits [%d,%d]", (int)logits.n[0], (int)logits.n[1]);
        for (int64_t i = 0; i < d->n_requested; i++)
            for (int64_t v = 0; v < VOCAB; v++)
                d->c->logits[d->sequence[i]][d->at[i]][v] = real_get(&logits, i * VOCAB + v);
        d->c->n_got += d->n_requested;
    }
    d->n = d->n_requested = 0;
    return OK;
}

/* Rows of one sequence from a position on, in separate calls. */
static Err pieces(Drive *d, int64_t sequence, int64_t place, int64_t from)
{
    for (int64_t p = from; p < prompt[sequence]; p++) {
        add_row(d, sequence, place, p);
        if (d->n == PIECE) TRY(make_call(d));
    }
    return OK;
}

static Err grow(Drive *d)
{
    int64_t of[PLACES] = {0, 1, 2}, at[PLACES];
    for (int i = 0; i < PLACES; i++)
        TRY(pieces(d, of[i], i, 0)); /* one call ends a prompt and begins the next */
    TRY(make_call(d));
    for (int i = 0; i < PLACES; i++) at[i] = prompt[i];
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < PLACES; i++) {
            if (at[i] == length[of[i]] && of[i] == 1) { /* its sequence is free */
                of[i] = 3;
                TRY(make_call(d));
                TRY(pieces(d, 3, i, 0));
                TRY(make_call(d));
                at[i] = prompt[3];
            }
            if (at[i] == length[of[i]]) continue;
            add_row(d, of[i], i, at[i]++);
            more = true;
        }
        TRY(make_call(d)); /* the last call has no rows */
    }
    return OK;
}

static Err whole(Drive *d)
{
    for (int64_t s = 0; s < SEQUENCES; s++)
        for (int64_t n = 1; n <= length[s]; n += 3) {
            for (int64_t p = 0; p < (n + 2 < length[s] ? n + 2 : length[s]); p++)
                add_row(d, s, 0, p);
            TRY(make_call(d));
        }
    return OK;
}

static Err body(WorldRank *w, void *work)
{
    Case *c = work;
    JobSettings base = {.config = &c->config, .dtype = F64, .optim = {.block = 16}};
    SessionJobs *jobs;
    Session *s;
    Drive *d;
    base.parallel.mesh = c->mesh;
    base.parallel.rank = w->rank;
    TRY(ARENA_NEW(w->arena, 1, &jobs));
    TRY(ARENA_NEW(w->arena, 1, &s));
    TRY(ARENA_NEW(w->arena, 1, &d));
    TRY(world_agree(w, session_compile(&base, &c->shape, w->arena, jobs)));
    const SessionSettings set = {jobs, &device_ref, w, NULL};
    TRY(world_agree(w, session_open(s, &set)));
    for (int i = 0; i < jobs->n; i++)
        for (int a = 0; a < N_ARENAS; a++) rank_poison(&s->rank[i], (ArenaId)a);
    TRY(world_agree(w, rank_init_weights(&s->rank[0], 5)));
    if (w->rank == 0) c->cache_bytes = session_cache_bytes(jobs);
    d->c = c;
    d->s = s;
    const Err err = c->alone ? whole(d) : grow(d);
    world_leave(w, err);
    session_close(s);
    return err;
}

static void run(Case *c)
{
    const MeshSizes *m = &c->mesh;
    const int ranks = (m->tp ? m->tp : 1) * (m->pp ? m->pp : 1) * (m->cp ? m->cp : 1);
    const WorldSettings set = {
        .ranks = ranks, .in_flight = 64, .records = 64, .timeout_s = 20, .body = body, .work = c};
    c->n_got = 0;
    memset(c->logits, 0xFF, sizeof c->logits);
    DO(world_run(&set));
}

static Case case_of(const char *model, int tp, int pp, int cp)
{
    Case c = {.config = *test_model(model), .mesh = {.tp = tp, .pp = pp, .cp = cp}};
    c.config.init_std = 0.4;
    c.shape = (SessionShape){PIECE, PIECE, PLACES, CONTEXT, true};
    return c;
}

static Case alone_of(const char *model)
{
    Case c = case_of(model, 1, 1, 1);
    c.shape = (SessionShape){CONTEXT, CONTEXT, 1, CONTEXT, false};
    c.alone = true;
    return c;
}

/* Largest difference, relative to the largest logit. */
static double differ(const Case *a, const Case *b)
{
    double worst = 0, most = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t p = 0; p < length[s]; p++)
            for (int v = 0; v < VOCAB; v++) {
                const double x = a->logits[s][p][v], y = b->logits[s][p][v];
                if (!is_requested(a, s, p)) continue;
                if (!(fabs(x - y) <= worst)) worst = fabs(x - y); /* also for NaN */
                most = fmax(most, fabs(y));
            }
    assert_true(most > 0.1);
    return worst / most;
}

static void expect_same(const char *model, int tp, int pp, int cp)
{
    static Case one, many;
    one = alone_of(model);
    many = case_of(model, tp, pp, cp);
    run(&one);
    run(&many);
    if (!(differ(&many, &one) <= 1e-10))
        fail_msg("%s, tp=%d pp=%d cp=%d: %g apart", model, tp, pp, cp, differ(&many, &one));
    assert_int_equal(one.cache_bytes, 0);
    int64_t n = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t p = 0; p < length[s]; p++) n += is_requested(&many, s, p);
    assert_int_equal(many.n_got, n);
}

static void every_family(void **state)
{
    (void)state;
    for (const TestModel *m = test_models; m->name; m++) expect_same(m->name, 1, 1, 1);
}

/* Heads that divide evenly or not; ranks without a head; stages without a layer. */
static void meshes(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int tp, pp;
    } row[] = {{"llama", 2, 1},      {"gpt2", 2, 1},  {"llama", 3, 1},   {"mistral", 2, 1},
               {"llama-tied", 1, 2}, {"gpt2", 1, 3},  {"qwen3", 2, 2},   {"qwen2", 3, 1},
               {"llama-tied", 2, 2}, {"llama", 1, 4}, {"mistral", 4, 1}, {"gpt2-untied", 3, 2}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect_same(row[i].model, row[i].tp, row[i].pp, 1);
}

/* Ranks along cp share the positions of every sequence. Sequences are shorter than some numbers of
 * ranks, so ranks have queries without keys; windows end in the middle of a rank's keys. */
static void ranks_share_the_cache(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int tp, pp, cp;
    } row[] = {{"llama", 1, 1, 2},   {"gpt2", 1, 1, 3},       {"mistral", 1, 1, 2},
               {"mistral", 1, 1, 4}, {"qwen3", 1, 1, 5},      {"qwen2", 2, 1, 2},
               {"llama", 3, 1, 2},   {"llama-tied", 1, 2, 3}, {"mistral", 2, 2, 2},
               {"llama", 1, 1, 13},  {"gpt2-untied", 1, 1, 8}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        expect_same(row[i].model, row[i].tp, row[i].pp, row[i].cp);
}

/* The loss of the training graph equals the loss computed from the logits. */
static void expect_loss(const char *model)
{
    static TestJob t;
    static Case one;
    StepResult r;
    double want = 0;
    const int32_t n = (int32_t)length[2];
    one = alone_of(model);
    run(&one);
    JobSettings set = test_job_settings(model, JOB_LOSS);
    set.config = &one.config;
    set.batch = (BatchShape){1, MOST};
    set.micros = 1;
    DO(test_job_open(&t, &set, 1));
    DO(rank_init_weights(&t.rank, 5));
    for (int32_t i = 0; i < n; i++) {
        double sum = 0;
        const int32_t target = token_of(2, i + 1), window = (int32_t)one.config.window;
        const int32_t ranges[] = {window && i >= window ? i - window + 1 : 0, i + 1, 0, 0};
        ((int32_t *)rank_input(&t.rank, 0, INPUT_TOKENS).data)[i] = token_of(2, i);
        ((int32_t *)rank_input(&t.rank, 0, INPUT_TARGETS).data)[i] = target;
        ((int32_t *)rank_input(&t.rank, 0, INPUT_POSITIONS).data)[i] = i;
        ((double *)rank_input(&t.rank, 0, INPUT_WEIGHTS).data)[i] = 1;
        memcpy((int32_t *)rank_input(&t.rank, 0, INPUT_RANGES).data + 4 * i, ranges, sizeof ranges);
        for (int v = 0; v < VOCAB; v++) sum += exp(one.logits[2][i][v]);
        want += log(sum) - one.logits[2][i][target];
    }
    rank_set_rows(&t.rank, 0, n);
    DO(rank_step(&t.rank, &(StepSettings){.step = 1}, &r));
    if (!(fabs(r.loss_sum - want) < 1e-10 * want))
        fail_msg("%s: loss %.15g, of the logits %.15g", model, r.loss_sum, want);
    test_job_close(&t);
}

static void loss_equals_that_of_the_logits(void **state)
{
    (void)state;
    for (const TestModel *m = test_models; m->name; m++) expect_loss(m->name);
}

/* Size of the KV cache: rows x layers x (keys and values) x heads x channels; rows fall as 1/cp. */
static void cache_is_counted(void **state)
{
    (void)state;
    static Case c;
    c = case_of("llama", 1, 1, 1);
    run(&c);
    const ModelConfig *m = &c.config;
    const int64_t one = PLACES * CONTEXT * m->n_kv_heads * m->head_size * 8;
    assert_int_equal(c.cache_bytes, m->n_layers * 2 * ((one + 63) / 64 * 64));
    c = case_of("llama", 2, 2, 1);
    run(&c);
    assert_int_equal(c.cache_bytes, 2 * ((one / 2 + 63) / 64 * 64)); /* one layer, one key head */
    for (int cp = 2; cp <= CONTEXT; cp++) {
        const int64_t rows = PLACES * ((CONTEXT + cp - 1) / cp);
        c = case_of("llama", 1, 1, cp);
        run(&c);
        assert_int_equal(c.cache_bytes,
                         m->n_layers * 2 * ((rows * (one / (PLACES * CONTEXT)) + 63) / 64 * 64));
    }
}

static void refusals(void **state)
{
    (void)state;
    static Case c;
    static SessionJobs jobs;
    Arena a;
    DO(arena_open(&a, "test", ARENA_PLENTY));
    c = case_of("llama", 1, 1, 1);
    JobSettings base = {.config = &c.config, .dtype = F64, .optim = {.block = 16}};
    base.parallel.mesh.dp_shard = 2;
    expect_error("dp", session_compile(&base, &c.shape, &a, &jobs), ERR_CONFIG, "mesh.dp=2");
    base.parallel.mesh.dp_shard = 1;
    c.shape.context = 41;
    expect_error("context", session_compile(&base, &c.shape, &a, &jobs), ERR_CONFIG,
                 "positions for 40");
    c.shape.context = 40;
    c.shape.sequences = INT32_MAX;
    expect_error("places", session_compile(&base, &c.shape, &a, &jobs), ERR_CONFIG, "sequences");
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family),          cmocka_unit_test(meshes),
        cmocka_unit_test(ranks_share_the_cache), cmocka_unit_test(loss_equals_that_of_the_logits),
        cmocka_unit_test(cache_is_counted),      cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
