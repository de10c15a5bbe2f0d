/* Saved under one layout, loaded under another, for all pairs: every tensor and moment is the right
 * slice to the bit, each byte is read once and sent to the other holders, and training continues as
 * without the save. */
#include "support/states.h"

#include <math.h>
#include "verify/layouts.h"

enum { SAVED_AT = 2, NEXT = 2, MAX_WORLD_RANKS = 32 }; /* steps before the save, and after */

typedef struct {
    StateWorld world;
    StateWhole whole; /* at the save */
    char folder[64];
    double loss[NEXT]; /* of the steps after it */
} Saved;

static Err train_and_save(StateRank *r, void *work)
{
    Saved *s = work;
    double loss;
    TRY(rank_init_weights(&r->rank, 11));
    for (int step = 1; step <= SAVED_AT; step++) TRY(state_step(r, step, &loss));
    TRY(state_collect(r, &s->whole));
    TRY(state_save(r, s->folder, SAVED_AT, true));
    for (int i = 0; i < NEXT; i++) {
        TRY(state_step(r, SAVED_AT + 1 + i, &loss));
        if (r->world->rank == 0) s->loss[i] = loss;
    }
    return OK;
}

static void saved_open(Saved *s, const char *words)
{
    state_world_open(&s->world, words);
    state_whole_open(&s->whole, &s->world);
    state_folder(s->folder);
    if (state_world_run(&s->world, train_and_save, s) != OK) fail_msg("%s: %s", words, err_text());
}

static void saved_close(Saved *s)
{
    state_folder_remove(s->folder);
    state_whole_close(&s->whole);
    state_world_close(&s->world);
}

typedef struct {
    Saved *from;
    int64_t read[MAX_WORLD_RANKS], sent[MAX_WORLD_RANKS], taken[MAX_WORLD_RANKS];
    double loss[NEXT];
} Loading;

static Err load_and_train(StateRank *r, void *work)
{
    Loading *x = work;
    LoadResult result;
    TRY(state_load_from(r, x->from->folder, SAVED_AT, &result));
    x->read[r->world->rank] = result.read_bytes;
    x->sent[r->world->rank] = result.sent_bytes;
    x->taken[r->world->rank] = (int64_t)comm_recorder(r->world->comm)->of_kind[COMM_RECV].bytes;
    TRY(state_collect(r, &x->from->whole));
    for (int i = 0; i < NEXT; i++) {
        double loss;
        TRY(state_step(r, SAVED_AT + 1 + i, &loss));
        if (r->world->rank == 0) x->loss[i] = loss;
    }
    return OK;
}

/* Counts the bytes of all tensors, and of all homes. */
static void count_bytes(const StateWorld *w, int64_t *once, int64_t *held)
{
    StateTensors t;
    Arena a;
    DO(arena_open(&a, "count", ARENA_PLENTY));
    DO(state_tensors(&w->job[0].linked, &a, &t));
    *once = *held = 0;
    for (int i = 0; i < t.n; i++)
        *once += shape_count(&t.tensor[i].shape) * (int64_t)dtype_bytes(t.tensor[i].dtype);
    for (int r = 0; r < w->ranks; r++) {
        StateParts p;
        DO(state_parts(&w->job[0].linked, r, false, &a, &p));
        for (int64_t i = 0; i < p.n; i++) {
            const StateTensor *of = &t.tensor[p.part[i].tensor];
            *held += box_count(&p.part[i].box) * (int64_t)dtype_bytes(of->dtype);
        }
    }
    arena_close(&a);
}

/* Each byte is read once; the bytes of a home that its rank did not read were sent to it. */
static void check_bytes(const Loading *x, const StateWorld *b)
{
    int64_t once, held, read = 0, sent = 0, taken = 0, most = 0;
    count_bytes(b, &once, &held);
    for (int r = 0; r < b->ranks; r++) {
        read += x->read[r];
        sent += x->sent[r];
        taken += x->taken[r];
        if (x->read[r] > most) most = x->read[r];
    }
    if (read != once || sent != taken || sent < held - once || sent > held)
        fail_msg("%s -> %s: %lld bytes read, %lld sent, %lld taken; there are %lld, and ranks hold "
                 "%lld",
                 x->from->world.words, b->words, (long long)read, (long long)sent, (long long)taken,
                 (long long)once, (long long)held);
    if (b->set.parallel.mesh.pp <= 1 && most > once / b->ranks + once / 8)
        fail_msg("%s -> %s: one of %d ranks read %lld of %lld bytes", x->from->world.words,
                 b->words, b->ranks, (long long)most, (long long)once);
}

/* True if the layouts differ only in ZeRO sharding, so that sums have the same order. */
static bool same_sums(const StateWorld *a, const StateWorld *b)
{
    ParallelSettings x = a->set.parallel, y = b->set.parallel;
    char text[2][LAYOUT_TEXT_BYTES];
    x.zero = y.zero = 0;
    return strcmp(layout_words(&x, text[0]), layout_words(&y, text[1])) == 0;
}

static void check_pair(Saved *a, const StateWorld *b)
{
    Loading x = {.from = a};
    const Err err = state_world_run(b, load_and_train, &x);
    if (err != OK) fail_msg("%s -> %s: %s", a->world.words, b->words, err_text());
    check_bytes(&x, b);
    for (int i = 0; i < NEXT; i++) {
        const double off = fabs(x.loss[i] - a->loss[i]);
        const bool same = memcmp(&x.loss[i], &a->loss[i], sizeof off) == 0;
        if (!(off <= 1e-10) || (same_sums(&a->world, b) && !same))
            fail_msg("%s -> %s: step %d has loss %.17g, without a save %.17g", a->world.words,
                     b->words, SAVED_AT + 1 + i, x.loss[i], a->loss[i]);
    }
}

static void all_pairs(void **state)
{
    (void)state;
    static Saved saved[MAX_STATE_LAYOUTS];
    int n = 0;
    for (; state_layouts[n]; n++) saved_open(&saved[n], state_layouts[n]);
    assert_true(n >= 12);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) check_pair(&saved[a], &saved[b].world);
    for (int i = 0; i < n; i++) saved_close(&saved[i]);
}

/* Fills the state with numbers that no step would produce, and saves it. */
static Err fill_and_save(StateRank *r, void *work)
{
    Saved *s = work;
    state_fill(r, 3);
    TRY(state_collect(r, &s->whole));
    return state_save(r, s->folder, SAVED_AT, false);
}

/* The weights that programs use are the master weights rounded to bf16. */
static Err weights_are_rounded(const StateRank *r)
{
    for (int u = 0; u < r->job->model.n_packs; u++) {
        const Tensor narrow = rank_home(&r->rank, u, PART_WEIGHT),
                     wide = rank_home(&r->rank, u, PART_MASTER);
        if (narrow.dtype != BF16) continue;
        for (int64_t i = 0; i < wide.n[0]; i++) {
            const uint32_t bits = (uint32_t)((const uint16_t *)narrow.data)[i] << 16;
            float got, want = ((const float *)wide.data)[i];
            memcpy(&got, &bits, sizeof got);
            if (!(fabsf(got - want) <= 0x1p-8F * fabsf(want)))
                return err_fail(ERR_CHECK, "unit %d: %g for %g", u, (double)got, (double)want);
        }
    }
    return OK;
}

static Err load_and_compare(StateRank *r, void *work)
{
    Loading *x = work;
    LoadResult result;
    TRY(state_load_from(r, x->from->folder, SAVED_AT, &result));
    x->read[r->world->rank] = result.read_bytes;
    x->sent[r->world->rank] = result.sent_bytes;
    x->taken[r->world->rank] = (int64_t)comm_recorder(r->world->comm)->of_kind[COMM_RECV].bytes;
    TRY(weights_are_rounded(r));
    return state_collect(r, &x->from->whole);
}

static void check_large(const StateSpec *from, const StateSpec *to)
{
    static Saved s;
    StateWorld b;
    Loading x = {.from = &s};
    state_world_open_as(&s.world, from);
    state_whole_open(&s.whole, &s.world);
    state_folder(s.folder);
    DO(state_world_run(&s.world, fill_and_save, &s));
    state_world_open_as(&b, to);
    if (state_world_run(&b, load_and_compare, &x) != OK)
        fail_msg("%s -> %s: %s", from->words, to->words, err_text());
    check_bytes(&x, &b);
    state_world_close(&b);
    saved_close(&s);
}

/* A table of several chunks of 4 MiB; columns are sharded too, so that messages are packed. */
static void several_chunks(void **state)
{
    (void)state;
    enum { VOCAB = 200003 }; /* times 12 elements of 8 bytes */
    check_large(&(StateSpec){.words = "dp=2 zero=1", .vocab = VOCAB},
                &(StateSpec){.words = "tp=3", .vocab = VOCAB});
    check_large(&(StateSpec){.words = "pp=2 tp=2", .vocab = VOCAB},
                &(StateSpec){.words = "dp=3 zero=3", .vocab = VOCAB});
    /* A shard ends inside of a chunk, in the middle of a row: messages with several boxes for all
     * copies of both shards, more than fit into a slot at once. */
    check_large(&(StateSpec){.words = "tp=2", .vocab = VOCAB},
                &(StateSpec){.words = "dp_replicate=4 dp_shard=2 zero=3", .vocab = VOCAB});
}

/* More ranks need a chunk than transfers may be in flight. */
static void many_holders(void **state)
{
    (void)state;
    check_large(&(StateSpec){.words = "dp=3 zero=1"}, &(StateSpec){.words = "dp=20"});
    check_large(&(StateSpec){.words = "dp=20 zero=3"}, &(StateSpec){.words = "dp=10 tp=2"});
}

static void without_moments(void **state)
{
    (void)state;
    check_large(&(StateSpec){.words = "dp=2 zero=1", .kind = OPTIM_SGD, .dtype = F32},
                &(StateSpec){.words = "tp=3 pp=2", .kind = OPTIM_SGD, .dtype = F32});
}

/* bf16 weights are derived from the loaded master weights. */
static void narrow_weights(void **state)
{
    (void)state;
    check_large(&(StateSpec){.words = "tp=2", .dtype = BF16},
                &(StateSpec){.words = "dp=2 zero=3", .dtype = BF16});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pairs), cmocka_unit_test(several_chunks),
        cmocka_unit_test(many_holders), cmocka_unit_test(without_moments),
        cmocka_unit_test(narrow_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
