/* test_home.c -- packs sharded by ZeRO, on every mesh of up to 8 ranks: shards tile the pack,
 * homes are layouts, each element has one owner, gathers and reductions are the expected
 * collectives. */
#include "support/test_arena.h"

#include "reshard_test.h"

#include <time.h>
#include "layout/home.h"

enum { PP = 1, REPLICATE = 2, SHARD = 4, TP = 8 };

static Mesh mesh_of(int replicate, int shard, int tp)
{
    const View v = {4, {1, replicate, shard, tp}, {"pp", "dp_replicate", "dp_shard", "tp"}};
    Mesh m;
    DO(mesh_init(&m, replicate * shard * tp, &v, 1));
    return m;
}

static Sharding at(const Mesh *m, Layout l)
{
    return (Sharding){.mesh = m, .layout = l, .stage = -1};
}

enum { MAX_PARAMS = 10 };
static const Layout dense = {.view = VIEW_DENSE};

/* A layer: 8 heads of 3 on 2 key heads, width 5; sharded over tp as in Megatron. */
static int layer_pack(int tp, HomeParam *p)
{
    const SpanMap *kv;
    DO(spans_key_heads(&test_arena, 8, 2, 3, tp, &kv));
    const Layout q = layout_cut(dense, 0, TP, 3), k = layout_cut_map(dense, 0, TP, kv);
    const Layout rows = layout_cut(dense, 0, TP, 1), columns = layout_cut(dense, 1, TP, 1);
    const HomeParam list[] = {
        {"norm", {1, {5}}, dense},       {"q", {2, {24, 5}}, q},
        {"k", {2, {6, 5}}, k},           {"v", {2, {6, 5}}, k},
        {"k.bias", {1, {6}}, k},         {"o", {2, {5, 24}}, layout_cut(dense, 1, TP, 3)},
        {"norm 2", {1, {5}}, dense},     {"up", {2, {11, 5}}, rows},
        {"down", {2, {5, 11}}, columns}, {"none", {2, {0, 5}}, rows},
    };
    memcpy(p, list, sizeof list);
    return 10;
}

static int bias_pack(int tp, HomeParam *p)
{
    (void)tp;
    p[0] = (HomeParam){"bias", {1, {5}}, dense};
    return 1;
}

static int even_pack(int tp, HomeParam *p)
{
    p[0] = (HomeParam){"w", {2, {4 * tp, 3}}, layout_cut(dense, 0, TP, 1)};
    p[1] = (HomeParam){"b", {1, {7}}, dense};
    return 2;
}

typedef int MakePack(int tp, HomeParam *p);

/* Shards are whole blocks in order, and tile the pack; pieces tile the shard. */
static void shards_tile(const Home *h)
{
    for (int rank = 0; rank < h->mesh->world; rank++) {
        HomeRank r;
        const int64_t *count;
        DO(home_rank(h, rank, &test_arena, &r));
        DO(home_counts(h, &r, &test_arena, &count));
        const int parts = mesh_parts(h->mesh, h->view, h->shard);
        const int part = mesh_part(h->mesh, h->view, h->shard, rank);
        int64_t before = 0, all = 0, held = 0, next = 0;
        for (int i = 0; i < parts; i++) {
            if (i < part) before += count[i];
            all += count[i];
        }
        for (int i = 0; i < h->n; i++) {
            const Holding use = holding_of(&h->param[i].use, h->mesh, &h->param[i].shape, rank);
            assert_int_equal(r.pack_at[i], held);
            held += holding_count(&use);
        }
        assert_int_equal(r.pack_count, held);
        assert_int_equal(all, held);
        assert_int_equal(r.shard.lo, before);
        assert_int_equal(r.shard.hi, before + count[part]);
        if (r.shard.lo < r.shard.hi) assert_int_equal(r.shard.lo % h->grain, 0);
        for (int i = 0; i < r.n_pieces; i++) {
            const HomePiece *p = &r.piece[i];
            assert_int_equal(p->at, next);
            assert_int_equal(r.pack_at[p->param] + p->lo, r.shard.lo + next);
            assert_true(p->hi > p->lo);
            next += p->hi - p->lo;
        }
        assert_int_equal(next, r.shard.hi - r.shard.lo);
    }
}

/* The layout of a home agrees with its pieces. Each element has one owner, which is the one that
 * the layout names. */
static void homes_are_layouts(const Home *h)
{
    int *owned[MAX_PARAMS];
    Layout home[MAX_PARAMS];
    for (int i = 0; i < h->n; i++) {
        DO(home_layout(h, i, &test_arena, &home[i]));
        DO(layout_check(&home[i], h->mesh, &h->param[i].shape, h->param[i].name, &test_arena));
        DO(ARENA_NEW(&test_arena, shape_count(&h->param[i].shape) + 1, &owned[i]));
    }
    for (int rank = 0; rank < h->mesh->world; rank++) {
        HomeRank r;
        const HomePiece *mine;
        int n;
        int64_t lo[MAX_PARAMS] = {0}, count[MAX_PARAMS] = {0};
        DO(home_rank(h, rank, &test_arena, &r));
        for (int i = 0; i < r.n_pieces; i++) {
            lo[r.piece[i].param] = r.piece[i].lo;
            count[r.piece[i].param] = r.piece[i].hi - r.piece[i].lo;
        }
        for (int i = 0; i < h->n; i++) {
            const Shape *s = &h->param[i].shape;
            const Holding at_home = holding_of(&home[i], h->mesh, s, rank);
            const Holding use = holding_of(&h->param[i].use, h->mesh, s, rank);
            assert_int_equal(holding_count(&at_home), count[i]);
            for (int64_t e = 0; e < count[i]; e++)
                assert_int_equal(holding_global(&at_home, e), holding_global(&use, lo[i] + e));
        }
        DO(home_owned(h, &r, rank, &test_arena, &mine, &n));
        for (int i = 0; i < n; i++) {
            const HomePiece *p = &mine[i];
            const Shape *s = &h->param[p->param].shape;
            const Holding use = holding_of(&h->param[p->param].use, h->mesh, s, rank);
            assert_int_equal(p->at - p->lo, r.pack_at[p->param] - r.shard.lo);
            for (int64_t e = p->lo; e < p->hi; e++) {
                const int64_t global = holding_global(&use, e);
                owned[p->param][global]++;
                if (shape_count(s) < 1000)
                    assert_int_equal(layout_owner(&home[p->param], h->mesh, s, rank, global), rank);
            }
        }
    }
    for (int i = 0; i < h->n; i++)
        for (int64_t e = 0; e < shape_count(&h->param[i].shape); e++)
            assert_int_equal(owned[i][e], 1);
}

/* Home to use is an all-gather over the shard axes, the inverse a reduce-scatter. Their bytes are
 * those of the pack: (p - 1) times each home. */
static void moves_are_collectives(const Home *h, Sim *sim)
{
    int64_t gathered = 0, scattered = 0, want = 0;
    const int p = mesh_parts(h->mesh, h->view, h->shard);
    for (int i = 0; i < h->n; i++) {
        const Shape *s = &h->param[i].shape;
        Sharding home = at(h->mesh, dense), use = at(h->mesh, h->param[i].use), grad = use;
        DO(home_layout(h, i, &test_arena, &home.layout));
        grad.layout = layout_partial(grad.layout, SHARD);
        sim_run(sim, &home, &use, s);
        assert_int_equal(sim->r.kind, p > 1 ? RESHARD_ALL_GATHER : RESHARD_NONE);
        assert_int_equal(sim->r.axes, p > 1 ? SHARD : 0);
        for (int rank = 0; rank < h->mesh->world; rank++) gathered += sim->part[rank].sent;
        sim_run(sim, &grad, &home, s);
        assert_int_equal(sim->r.kind, p > 1 ? RESHARD_REDUCE_SCATTER : RESHARD_NONE);
        assert_int_equal(sim->r.axes, p > 1 ? SHARD : 0);
        for (int rank = 0; rank < h->mesh->world; rank++) scattered += sim->part[rank].sent;
        sim_run(sim, &use, &home, s);
        assert_int_equal(sim->r.kind, p > 1 ? RESHARD_LOCAL : RESHARD_NONE);
    }
    for (int rank = 0; rank < h->mesh->world; rank++) {
        HomeRank r;
        DO(home_rank(h, rank, &test_arena, &r));
        want += (p - 1) * (r.shard.hi - r.shard.lo);
    }
    assert_int_equal(gathered, want);
    assert_int_equal(scattered, want);
}

/* The reduction of a gradient, step by step: each step is one collective, except for copies.
 * `partial` is as sequence parallelism leaves it: all axes over which the parameter is not
 * sharded. */
static void gradients_reduce_in_steps(const Home *h, Sim *sim)
{
    for (int i = 0; i < h->n; i++) {
        const HomeParam *p = &h->param[i];
        const unsigned partial = layout_replicate_axes(&p->use, h->mesh);
        const HomeReduce step = home_reduce(h, i, partial);
        Layout home;
        DO(home_layout(h, i, &test_arena, &home));
        assert_int_equal(step.model | step.scatter | step.data, partial);
        assert_int_equal(step.scatter, SHARD);
        Sharding now = at(h->mesh, layout_partial(p->use, partial)), next = now;
        now.sum_copies = step.copies != 0;
        sim_run(sim, &now, &next, &p->shape); /* copies: all other sums stay unreduced */
        assert_int_equal(step.copies, layout_has_copies(&p->use) ? TP : 0);
        assert_int_equal(sim->r.kind, step.copies ? RESHARD_EXCHANGE : RESHARD_NONE);
        now = next;
        next.layout.partial = (uint8_t)(partial & ~step.model);
        sim_run(sim, &now, &next, &p->shape);
        assert_int_equal(sim->r.axes & ~step.model, 0);
        assert_true(sim->r.kind == RESHARD_ALL_REDUCE || sim->r.kind == RESHARD_NONE);
        now = next;
        next.layout = layout_partial(home, step.data);
        sim_run(sim, &now, &next, &p->shape);
        assert_int_equal(sim->r.axes & ~SHARD, 0);
        assert_true(sim->r.kind == RESHARD_REDUCE_SCATTER || sim->r.kind == RESHARD_NONE);
        now = next;
        next.layout = home;
        sim_run(sim, &now, &next, &p->shape);
        assert_int_equal(sim->r.axes & ~step.data, 0);
        assert_true(sim->r.kind == RESHARD_ALL_REDUCE || sim->r.kind == RESHARD_NONE);
    }
}

static void every_mesh(void **state)
{
    (void)state;
    MakePack *const make[] = {layer_pack, bias_pack, even_pack};
    Sim sim;
    sim_open(&sim);
    for (int replicate = 1; replicate <= 8; replicate++)
        for (int shard = 1; replicate * shard <= 8; shard++)
            for (int tp = 1; replicate * shard * tp <= 8; tp++)
                for (int pack = 0; pack < 3; pack++) {
                    const Mesh m = mesh_of(replicate, shard, tp);
                    const size_t mark = arena_mark(&test_arena);
                    HomeParam p[MAX_PARAMS];
                    Home h;
                    const int n = make[pack](tp, p);
                    DO(home_init(&h, &m, SHARD, pack == 1 ? 1 : 16, p, n));
                    shards_tile(&h);
                    homes_are_layouts(&h);
                    if (pack == 2) assert_int_equal(h.vary, 0);
                    moves_are_collectives(&h, &sim);
                    if (tp < 5) gradients_reduce_in_steps(&h, &sim);
                    DO(home_init(&h, &m, 0, 16, p, n)); /* not sharded: home is use */
                    shards_tile(&h);
                    homes_are_layouts(&h);
                    arena_rewind(&test_arena, mark);
                }
    sim_close(&sim);
}

/* A bias of 5 on 7 ranks: five have one, two have none; in blocks of 4, one has 4 and one has 1. */
static void fewer_elements_than_ranks(void **state)
{
    (void)state;
    const Mesh m = mesh_of(1, 7, 1);
    const HomeParam p = {"bias", {1, {5}}, dense};
    for (int64_t grain = 1; grain <= 4; grain += 3) {
        Home h;
        Sim sim;
        DO(home_init(&h, &m, SHARD, grain, &p, 1));
        for (int rank = 0; rank < 7; rank++) {
            HomeRank r;
            DO(home_rank(&h, rank, &test_arena, &r));
            const int64_t want = grain == 1 ? rank < 5 : rank == 0 ? 4 : rank == 1;
            assert_int_equal(r.shard.hi - r.shard.lo, want);
            assert_int_equal(r.n_pieces, want > 0);
        }
        sim_open(&sim);
        shards_tile(&h);
        homes_are_layouts(&h);
        moves_are_collectives(&h, &sim);
        sim_close(&sim);
    }
}

/* 50257 words on tp 2, 3, 4, and a norm after them, at a different offset on each tp rank. */
static void vocabulary(void **state)
{
    (void)state;
    for (int tp = 2; tp <= 4; tp++) {
        const Mesh m = mesh_of(1, 2, tp);
        const HomeParam p[2] = {{"embed", {2, {50257, 2}}, layout_cut(dense, 0, TP, 1)},
                                {"norm", {1, {2000}}, dense}};
        Home h;
        HomeRank first, last;
        Layout norm;
        DO(home_init(&h, &m, SHARD, 64, p, 2));
        shards_tile(&h);
        homes_are_layouts(&h);
        assert_int_equal(h.vary, TP);
        DO(home_rank(&h, 0, &test_arena, &first));
        DO(home_rank(&h, tp - 1, &test_arena, &last));
        assert_int_equal(first.pack_at[1], 2 * ((50257 + tp - 1) / tp));
        assert_int_equal(last.pack_at[1], 2 * (50257 / tp));
        DO(home_layout(&h, 1, &test_arena, &norm));
        assert_int_equal(norm.n_cuts, 2); /* nominal over tp, then flat */
        assert_int_equal(norm.cut[1].axes, SHARD | TP);
    }
}

/* Key heads on tp=3, by hand: tp 0 owns head 0, tp 1 head 1, tp 2 none. They hold 15, 30 and 15
 * elements, in blocks of 4: over two shards 8 7, 16 14, 8 7; over three 8 4 3, 12 12 6, 8 4 3. */
static void copies_are_owned_once(void **state)
{
    (void)state;
    const int64_t want[2][9] = {{8, 1, 0, 7, 14, 0}, {8, 0, 0, 4, 9, 0, 3, 6, 0}};
    const SpanMap *kv;
    DO(spans_key_heads(&test_arena, 8, 2, 3, 3, &kv));
    const HomeParam p = {"k", {2, {6, 5}}, layout_cut_map(dense, 0, TP, kv)};
    for (int shard = 2; shard <= 3; shard++) {
        const Mesh m = mesh_of(2, shard, 3);
        Home h;
        DO(home_init(&h, &m, SHARD, 4, &p, 1));
        homes_are_layouts(&h);
        for (int rank = 0; rank < m.world; rank++) {
            HomeRank r;
            const HomePiece *mine;
            int n;
            int64_t sum = 0;
            DO(home_rank(&h, rank, &test_arena, &r));
            DO(home_owned(&h, &r, rank, &test_arena, &mine, &n));
            for (int i = 0; i < n; i++) sum += mine[i].hi - mine[i].lo;
            assert_int_equal(sum, rank < m.world / 2 ? want[shard - 2][rank] : 0);
        }
    }
}

/* Two axes shard parameters, and neither shards all: the layout of a home may need both. */
static void two_model_axes(void **state)
{
    (void)state;
    const Mesh m = mesh_of(2, 2, 3);
    const SpanMap *kv;
    DO(spans_key_heads(&test_arena, 8, 2, 3, 3, &kv));
    const Layout k = layout_cut_map(dense, 0, TP, kv);
    HomeParam p[3] = {{"experts", {2, {7, 3}}, layout_cut(dense, 0, REPLICATE, 1)},
                      {"k", {2, {6, 5}}, k},
                      {"norm", {1, {9}}, dense}};
    Home h;
    Sim sim;
    Layout l;
    DO(home_init(&h, &m, SHARD, 4, p, 3));
    assert_int_equal(h.vary, REPLICATE | TP);
    sim_open(&sim);
    shards_tile(&h);
    homes_are_layouts(&h);
    moves_are_collectives(&h, &sim);
    sim_close(&sim);
    p[2] = (HomeParam){"k.bias", {1, {6}}, k}; /* its only dim has a map already */
    expect_error("bias", home_layout(&h, 2, &test_arena, &l), ERR_CHECK, "k.bias: every dim");
}

static void refused(void **state)
{
    (void)state;
    const Mesh m = mesh_of(1, 2, 2);
    HomeParam p = {"w", {2, {4, 4}}, layout_cut(dense, 0, SHARD, 1)};
    Home h;
    expect_error("shard", home_init(&h, &m, SHARD, 16, &p, 1), ERR_CHECK, "w: its use");
    p.use = layout_cut(dense, DIM_FLAT, TP, 1);
    expect_error("flat", home_init(&h, &m, SHARD, 16, &p, 1), ERR_CHECK, "flat");
    p = (HomeParam){"scale", {0, {0}}, dense};
    expect_error("scalar", home_init(&h, &m, SHARD, 16, &p, 1), ERR_CHECK, "scale: a scalar");
    p = (HomeParam){"b", {1, {4}}, dense};
    expect_error("grain", home_init(&h, &m, SHARD, 0, &p, 1), ERR_CHECK, "grain");
    expect_error("axes", home_init(&h, &m, 64, 1, &p, 1), ERR_CHECK, "0x40");
}

static void one_rank_of_16384(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    const double limit_ms = 300;
#else
    const double limit_ms = 10;
#endif
    const Mesh m = mesh_of(4, 512, 8);
    HomeParam p[4] = {{"norm", {1, {8192}}, dense},
                      {"q", {2, {8192, 8192}}, layout_cut(dense, 0, TP, 128)},
                      {"up", {2, {28673, 8192}}, layout_cut(dense, 0, TP, 1)},
                      {"norm 2", {1, {8192}}, dense}};
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        const size_t mark = arena_mark(&test_arena);
        const clock_t start = clock();
        Home h;
        HomeRank r;
        Layout l;
        const HomePiece *mine;
        int n;
        DO(home_init(&h, &m, SHARD, 65536, p, 4));
        DO(home_rank(&h, 9001, &test_arena, &r));
        DO(home_owned(&h, &r, 9001, &test_arena, &mine, &n));
        for (int j = 0; j < 4; j++) DO(home_layout(&h, j, &test_arena, &l));
        const double ms = 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC;
        if (ms < best) best = ms;
        assert_int_equal(l.cut[1].map->n_parts, 4096);
        arena_rewind(&test_arena, mark);
    }
    if (best >= limit_ms) fail_msg("%.1f ms", best);
}

/* One reduce-scatter sums over dp_shard and cp, to as many homes; dp_replicate follows. */
static void homes_over_dp_and_cp(void **state)
{
    (void)state;
    const View view[2] = {{5, {1, 2, 3, 4, 2}, {"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
                          {4, {1, 6, 8, 1}, {"pp", "edp", "ep", "etp"}}};
    Mesh m;
    DO(mesh_init(&m, 48, view, 2));
    const unsigned replicate = 2, shard = 4 | 8, tp = 16, edp = 2, ep = 4;
    const HomeParam dense_pack[] = {{"norm", {1, {5}}, dense},
                                    {"up", {2, {110, 7}}, layout_cut(dense, 0, tp, 1)}};
    Home h;
    DO(home_init(&h, &m, mesh_shard_axes(&m, VIEW_DENSE), 4, dense_pack, 2));
    HomeReduce r = home_reduce(&h, 0, mesh_data_axes(&m, VIEW_DENSE) | tp);
    assert_int_equal(r.model, tp);
    assert_int_equal(r.scatter, shard);
    assert_int_equal(r.data, replicate);
    shards_tile(&h);
    homes_are_layouts(&h);
    const Layout expert = layout_cut(layout_replicate(VIEW_EXPERT), 0, ep, 1);
    const HomeParam expert_pack[] = {{"experts", {2, {16, 7}}, expert}};
    DO(home_init(&h, &m, mesh_shard_axes(&m, VIEW_EXPERT), 4, expert_pack, 1));
    r = home_reduce(&h, 0, mesh_data_axes(&m, VIEW_EXPERT));
    assert_int_equal(r.scatter, edp);
    assert_int_equal(r.model | r.data, 0);
    shards_tile(&h);
    homes_are_layouts(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes_over_dp_and_cp),
        cmocka_unit_test(every_mesh),
        cmocka_unit_test(fewer_elements_than_ranks),
        cmocka_unit_test(vocabulary),
        cmocka_unit_test(copies_are_owned_once),
        cmocka_unit_test(two_model_axes),
        cmocka_unit_test(refused),
        cmocka_unit_test(one_rank_of_16384),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
