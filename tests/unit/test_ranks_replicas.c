/* test_ranks_replicas.c -- a bit flipped on one rank is detected exactly if another rank holds a
 * copy of the element; the error names the rank and the parameter. */
#include <stdatomic.h>
#include <stdio.h>
#include "base/philox.h"
#include "support/expect.h"
#include "support/jobs.h"
#include "train/replicas.h"

enum { MAX_RANKS = 6, MAX_PARAMS = 64, MAX_ELEMENTS = 1 << 14, TRIALS = 24 };

typedef struct {
    const char *model;
    MeshSizes mesh;
    int zero, ranks;
    OptimKind kind;
    bool none; /* no two ranks hold copies */
} Case;

/* Holders of every element, found from the pieces of each rank; and the current trial. */
typedef struct {
    const Case *c;
    _Atomic unsigned holders[MAX_PARAMS][MAX_ELEMENTS];
    unsigned mask;
    char name[128];
    int found, shared; /* trials that were reported; trials with copies */
} Bench;

static void note_pieces(Bench *b, const Rank *r)
{
    for (int u = 0; u < r->settings.program->model->n_packs; u++)
        for (int i = 0; i < rank_pieces(r, u); i++) {
            const RankPiece p = rank_piece(r, u, i);
            assert_true(p.param < MAX_PARAMS);
            for (int64_t k = 0; k < p.hi - p.lo; k++)
                atomic_fetch_or(&b->holders[p.param][rank_piece_global(&p, k)],
                                1u << r->settings.program->rank);
        }
}

/* Flips a bit of the trial's element, in weights or moments; a second call restores it. */
static void flip(Bench *b, const Rank *r, int trial)
{
    static const ParamPart part[] = {PART_MASTER, PART_MOMENT1, PART_MOMENT2};
    const Model *m = r->settings.program->model;
    const Random random = random_named((uint64_t)trial, "flip");
    int pack = (int)(random_bits(&random, 0) % (uint64_t)m->n_packs);
    while (rank_pieces(r, pack) == 0) pack = (pack + 1) % m->n_packs;
    const RankPiece p =
        rank_piece(r, pack, (int)(random_bits(&random, 1) % (uint64_t)rank_pieces(r, pack)));
    const Tensor x = rank_piece_data(r, &p, part[b->c->kind == OPTIM_ADAMW ? trial % 3 : 0]);
    const int64_t at = (int64_t)(random_bits(&random, 2) % (uint64_t)x.n[0]);
    ((unsigned char *)x.data)[at * 8 + trial % 8] ^= (unsigned char)(1 << trial % 7);
    b->mask = atomic_load(&b->holders[p.param][rank_piece_global(&p, at)]);
    snprintf(b->name, sizeof b->name, "of %s:", m->param[p.param].name);
}

/* Stores the error of a rank: only the main thread may fail the test. */
static Err expect_fault(const Bench *b, int victim, Err err)
{
    char want[64], got[2048];
    const int n = __builtin_popcount(b->mask);
    snprintf(want, sizeof want, "rank %d differs from the other copies", victim);
    if (n == 2)
        snprintf(want, sizeof want, "ranks %d and %d hold copies that differ",
                 __builtin_ctz(b->mask), 31 - __builtin_clz(b->mask));
    if (n < 2 && err == OK) return OK;
    if (n >= 2 && err == ERR_CHECK && strstr(err_text(), want) && strstr(err_text(), b->name))
        return OK;
    snprintf(got, sizeof got, "%s", err ? err_text() : "nothing");
    return err_fail(ERR_CHECK, "%d ranks hold %s wanted \"%s\", got %.1500s", n, b->name, want,
                    got);
}

static Err run_trials(Bench *b, WorldRank *w, Rank *rank, Replicas *r)
{
    TRY(replicas_check(r, w, 1));
    for (int trial = 0; trial < TRIALS; trial++) {
        const int victim = trial % w->ranks;
        if (w->rank == victim) flip(b, rank, trial);
        TRY(world_agree(w, OK));
        const Err err = replicas_check(r, w, 2);
        TRY(expect_fault(b, victim, err));
        if (w->rank == 0) b->shared += __builtin_popcount(b->mask) > 1, b->found += err != OK;
        TRY(world_agree(w, OK));
        if (w->rank == victim) flip(b, rank, trial);
        TRY(world_agree(w, OK));
    }
    return replicas_check(r, w, 3);
}

static Err body(WorldRank *w, void *work)
{
    Bench *b = work;
    Job *job;
    Rank rank;
    Replicas r;
    JobSettings set = test_job_settings(b->c->model, JOB_STEP);
    set.parallel.mesh = b->c->mesh;
    set.parallel.zero = b->c->zero;
    set.parallel.rank = w->rank;
    set.optim.kind = b->c->kind;
    TRY(ARENA_NEW(w->arena, 1, &job));
    TRY(job_compile(&set, w->arena, job));
    TRY(job_open_rank(job, w->comm, NULL, &rank));
    TRY(rank_init_weights(&rank, 3));
    note_pieces(b, &rank);
    TRY(world_agree(w, OK));
    Err err = replicas_open(&r, &rank, w->ranks, w->arena);
    if (b->c->none)
        err = err == ERR_CONFIG ? OK : err_fail(ERR_CHECK, "nothing to compare, and not refused");
    else if (err == OK)
        err = run_trials(b, w, &rank, &r);
    world_leave(w, err);
    rank_close(&rank);
    return err;
}

static void a_flipped_bit_is_named(void **state)
{
    static const Case cases[] = {
        {"llama", {.dp_shard = 3}, 0, 3, OPTIM_ADAMW, false},
        {"gpt2", {.dp_shard = 2}, 0, 2, OPTIM_SGD, false},
        {"llama", {.dp_shard = 2, .tp = 2}, 1, 4, OPTIM_ADAMW, false},
        {"qwen2", {.dp_replicate = 3, .dp_shard = 2}, 3, 6, OPTIM_ADAMW, false},
        {"llama", {.tp = 3}, 0, 3, OPTIM_ADAMW, false},
        {"gpt2", {.pp = 2}, 0, 2, OPTIM_ADAMW, false}, /* tied weights on two stages */
        {"gpt2", {.pp = 2, .dp_shard = 2}, 2, 4, OPTIM_ADAMW, false},
        {"llama", {.cp = 3}, 0, 3, OPTIM_ADAMW, false},
        {"llama", {.cp = 2, .tp = 2}, 1, 4, OPTIM_ADAMW, false},
        {"llama", {.dp_shard = 2}, 3, 2, OPTIM_ADAMW, true},
        {"gpt2", {.cp = 2, .dp_shard = 2}, 3, 4, OPTIM_ADAMW, true},
        {"llama", {.pp = 1}, 0, 1, OPTIM_ADAMW, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static Bench b;
        memset(&b, 0, sizeof b);
        b.c = &cases[i];
        const WorldSettings world = {.ranks = cases[i].ranks,
                                     .in_flight = 8,
                                     .records = 64,
                                     .timeout_s = 30,
                                     .body = body,
                                     .work = &b};
        if (world_run(&world) != OK) fail_msg("case %zu: %s", i, err_text());
        assert_int_equal(b.found, b.shared);
        if (!cases[i].none) assert_true(b.found > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_flipped_bit_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
