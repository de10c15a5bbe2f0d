/* test_ranks_bytes.c -- bytes sent in a step, by the recorder, equal the formulas. In elements,
 * summed over p ranks, with Psi parameters and m micro-batches:
 *
 *     dp, zero 1    2 (p-1) Psi            zero 2    (p-1) Psi (m+1)
 *     zero 3        (p-1) Psi m for gradients, and (p-1) times each pack per gather of it
 *
 * With cp, p is dp x cp: state is sharded over both, and each pack has one reduce-scatter. In each
 * layer keys and values of all tokens are gathered in F and again in the backward phases, and their
 * gradients are reduce-scattered: 6 (cp-1) B S K elements, K the width of keys.
 *
 * Scalars are counted apart. */
#include "support/expect.h"

#include "support/world.h"

enum { STEPS = 2 };

static World world(const char *model, int p, int zero, int micros)
{
    World w = world_of(test_job_settings(model, JOB_STEP));
    w.set.micros = micros;
    w.set.parallel.mesh.dp_shard = p;
    w.set.parallel.zero = zero;
    w.steps = STEPS;
    return w;
}

static int64_t elements(const WorldResult *r, CommKind kind)
{
    assert_int_equal(r->sent[kind] % (STEPS * 8), 0);
    return r->sent[kind] / (STEPS * 8);
}

static void expect_sent(const char *model, int p, int zero, int m)
{
    const World w = world(model, p, zero, m);
    WorldResult r;
    DO(world_run_job(&w, &r));
    const int64_t psi = r.elements, others = p - 1;
    const int64_t reduce = zero == 0 ? 0 : zero == 1 ? others * psi : others * psi * m;
    assert_int_equal(elements(&r, COMM_ALL_REDUCE), zero == 0 ? 2 * others * psi : 0);
    assert_int_equal(elements(&r, COMM_REDUCE_SCATTER), reduce);
    assert_int_equal(elements(&r, COMM_ALL_GATHER), others * r.gathered);
    if (zero == 0) assert_int_equal(r.gathered, 0);
    if (zero == 1 || zero == 2) assert_int_equal(r.gathered, psi);
    if (zero == 3) assert_true(r.gathered > psi && r.gathered <= 2 * psi * m);
    for (int kind = 0; kind < N_COMM_KINDS; kind++)
        if (kind != COMM_ALL_REDUCE && kind != COMM_REDUCE_SCATTER && kind != COMM_ALL_GATHER)
            assert_int_equal(r.sent[kind], 0);
    assert_true(r.scalars_sent > 0);
    world_result_close(&r);
}

static void bytes_match_formulas(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int p = 2; p <= 5; p++) {
            expect_sent("gpt2", p, zero, 1 + p % 3);
            expect_sent("llama", p, zero, 1 + zero);
        }
}

/* Replicated shards add one all-reduce of the homes, over the replicas alone. */
static void replicas(void **state)
{
    (void)state;
    for (int zero = 1; zero < 4; zero++) {
        World w = world("llama", 3, zero, 2);
        WorldResult r;
        w.set.parallel.mesh.dp_replicate = 2;
        DO(world_run_job(&w, &r));
        const int64_t psi = r.elements, times = zero == 1 ? 1 : 2;
        assert_int_equal(elements(&r, COMM_REDUCE_SCATTER), 2 * 2 * psi * times);
        assert_int_equal(elements(&r, COMM_ALL_REDUCE), 2 * psi * times);
        assert_int_equal(elements(&r, COMM_ALL_GATHER), 2 * 2 * r.gathered);
        world_result_close(&r);
    }
}

/* Elements of one all-gather or reduce-scatter of keys, or values, of all layers and micro-batches,
 * over all ranks. */
static int64_t key_elements(const World *w, int groups)
{
    const ModelConfig *c = w->set.config;
    const int64_t rows = w->set.batch.sequences * w->set.batch.seq_len;
    return (w->set.parallel.mesh.cp - 1) * rows * c->n_kv_heads * c->head_size * c->n_layers *
           w->set.micros * groups;
}

static void expect_context(int replicate, int shard, int cp, int zero)
{
    World w = world("llama", shard, zero, 2);
    WorldResult r;
    w.set.batch.sequences = 2;
    w.set.parallel.mesh.dp_replicate = replicate;
    w.set.parallel.mesh.cp = cp;
    w.set.parallel.context = CONTEXT_GATHER;
    DO(world_run_job(&w, &r));
    const int64_t psi = r.elements, keys = key_elements(&w, replicate * shard);
    const int64_t homes = zero ? shard * cp : 1, times = zero > 1 ? 2 : 1;
    const int64_t others = replicate * shard * cp / homes - 1; /* copies of a home, less one */
    assert_int_equal(elements(&r, COMM_ALL_REDUCE), 2 * others * psi * times);
    assert_int_equal(elements(&r, COMM_REDUCE_SCATTER),
                     replicate * (homes - 1) * psi * times + 2 * keys);
    assert_int_equal(elements(&r, COMM_ALL_GATHER),
                     replicate * (homes - 1) * r.gathered + 4 * keys);
    assert_int_equal(elements(&r, COMM_ALL_TO_ALL), 0);
    for (int a = 0; zero && a < r.ranks; a++) /* weights of the pack; home: two moments, f64 */
        assert_true(zero == 3 ||
                    r.bytes[a][ARENA_STATE] <= (size_t)psi * 8 + (size_t)(psi / homes) * 16 + 8192);
    world_result_close(&r);
}

static void context_bytes(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        expect_context(1, 1, 2 + zero, zero);
        expect_context(1, 1, 8, zero);
        expect_context(1, 2, 3, zero);
        if (zero) expect_context(2, 2, 2, zero);
    }
}

/* Each level of ZeRO takes less memory than the one before. */
static void memory_decreases_with_level(void **state)
{
    (void)state;
    size_t before[N_ARENAS] = {0}, all_before = 0;
    for (int zero = 0; zero < 4; zero++) {
        const World w = world("llama", 4, zero, 2);
        WorldResult r;
        size_t all = 0;
        DO(world_run_job(&w, &r));
        for (int a = 0; a < N_ARENAS; a++) all += r.bytes[0][a];
        if (zero == 1 || zero == 3) assert_true(r.bytes[0][ARENA_STATE] < before[ARENA_STATE]);
        if (zero == 2) assert_true(r.bytes[0][ARENA_STEP] < before[ARENA_STEP]);
        if (zero == 1) assert_true(all < all_before);
        memcpy(before, r.bytes[0], sizeof before);
        all_before = all;
        world_result_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_match_formulas),
                                       cmocka_unit_test(replicas), cmocka_unit_test(context_bytes),
                                       cmocka_unit_test(memory_decreases_with_level)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
