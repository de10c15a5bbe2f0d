/* test_reshard.c -- reshards that have a name: facts that are easily checked by hand, the bytes
 * by formula, and one rank of 16,384. Random ones are in test_reshard_random.c. */
#include "support/test_arena.h"

#include "reshard_test.h"

#include <time.h>

enum { PP = 1, REPLICATE = 2, SHARD = 4, TP = 8 };

static Mesh mesh_of(int pp, int replicate, int shard, int tp)
{
    const View v = {4, {pp, replicate, shard, tp}, {"pp", "dp_replicate", "dp_shard", "tp"}};
    Mesh m;
    DO(mesh_init(&m, pp * replicate * shard * tp, &v, 1));
    return m;
}

static Layout dense(void) { return layout_replicate(VIEW_DENSE); }

static Sharding at(const Mesh *m, Layout l)
{
    return (Sharding){.mesh = m, .layout = l, .stage = -1};
}

static void expect_kind(const Mesh *m, Layout from, Layout to, const Shape *s, const char *want)
{
    const Sharding f = at(m, from), t = at(m, to);
    Reshard r;
    const char *got;
    DO(reshard_plan(&f, &t, s, "w", &r));
    Text text = text_in(&test_arena);
    reshard_text(&text, &r);
    DO(text_done(&text, &got));
    expect_text("reshard", got, want);
}

/* The table of the regular cases. */
static void kinds_by_name(void **state)
{
    (void)state;
    const Mesh m = mesh_of(2, 2, 3, 2);
    const Shape s = {2, {12, 10}};
    const Layout rows = layout_cut(dense(), 0, TP, 1), columns = layout_cut(dense(), 1, TP, 1);
    const Layout both = layout_cut(columns, 0, SHARD, 1), other = layout_cut(dense(), 0, SHARD, 1);
    const Layout home = layout_cut(rows, DIM_FLAT, SHARD, 16);
    const unsigned dp = REPLICATE | SHARD;
    expect_kind(&m, dense(), dense(), &s, "none");
    expect_kind(&m, rows, rows, &s, "none");
    expect_kind(&m, rows, layout_cut(dense(), 0, TP, 2), &s, "none"); /* 6 rows in both layouts */
    expect_kind(&m, rows, layout_cut(dense(), 0, TP, 5), &s, "all-to-all on tp");
    expect_kind(&m, dense(), rows, &s, "local");
    expect_kind(&m, rows, dense(), &s, "all-gather on tp");
    expect_kind(&m, home, rows, &s, "all-gather on dp_shard");
    expect_kind(&m, home, dense(), &s, "all-gather on dp_shard x tp");
    expect_kind(&m, rows, other, &s, "all-gather on tp"); /* of a slice */
    expect_kind(&m, both, columns, &s, "all-gather on dp_shard");
    expect_kind(&m, both, other, &s,
                "all-gather on tp"); /* the order of cuts of two dims is free */
    expect_kind(&m, rows, columns, &s, "all-to-all on tp");
    expect_kind(&m, layout_partial(dense(), TP), dense(), &s, "all-reduce on tp");
    expect_kind(&m, layout_partial(dense(), TP), other, &s, "all-reduce on tp");
    expect_kind(&m, layout_partial(dense(), TP), rows, &s, "reduce-scatter on tp");
    expect_kind(&m, layout_partial(dense(), TP), both, &s, "reduce-scatter on tp");
    expect_kind(&m, layout_partial(rows, SHARD), home, &s, "reduce-scatter on dp_shard");
    /* hybrid: scatter over the shard axis, keep the other sum unreduced, then reduce it */
    expect_kind(&m, layout_partial(rows, dp), layout_partial(home, REPLICATE), &s,
                "reduce-scatter on dp_shard");
    expect_kind(&m, layout_partial(home, REPLICATE), home, &s, "all-reduce on dp_replicate");
    expect_kind(&m, layout_partial(rows, dp), home, &s, "exchange"); /* one step: no collective */
    expect_kind(&m, layout_partial(rows, SHARD), dense(), &s, "exchange");
}

/* Elements sent by all ranks, executed and checked. */
static int64_t total_sent(Sim *sim, Sharding from, Sharding to, const Shape *s, ReshardKind kind)
{
    int64_t sum = 0;
    sim_run(sim, &from, &to, s);
    assert_int_equal(sim->r.kind, kind);
    for (int rank = 0; rank < sim->world; rank++) sum += sim->part[rank].sent;
    return sum;
}

/* p ranks, n elements: (p - 1) n in all for one pass, that is (p - 1) / p n each; twice that for an
 * all-reduce; an all-to-all keeps one p-th of its elements local. */
static void bytes_by_formula(void **state)
{
    (void)state;
    Sim sim;
    sim_open(&sim);
    for (int p = 2; p <= 5; p++) {
        for (int uneven = 0; uneven < 2; uneven++) {
            const Mesh m = mesh_of(1, 1, 2, p);
            const int64_t side = uneven ? 7 : 60, n = side * side, copies = 2;
            const Shape s = {2, {side, side}};
            const Sharding rows = at(&m, layout_cut(dense(), 0, TP, 1)), all = at(&m, dense());
            const Sharding columns = at(&m, layout_cut(dense(), 1, TP, 1));
            const Sharding sum = at(&m, layout_partial(dense(), TP));
            const Sharding flat = at(&m, layout_cut(dense(), DIM_FLAT, TP, 16));
            const int64_t pass = copies * (p - 1) * n;
            assert_int_equal(total_sent(&sim, rows, all, &s, RESHARD_ALL_GATHER), pass);
            assert_int_equal(total_sent(&sim, flat, all, &s, RESHARD_ALL_GATHER), pass);
            assert_int_equal(total_sent(&sim, sum, rows, &s, RESHARD_REDUCE_SCATTER), pass);
            assert_int_equal(total_sent(&sim, sum, columns, &s, RESHARD_REDUCE_SCATTER), pass);
            assert_int_equal(total_sent(&sim, sum, flat, &s, RESHARD_REDUCE_SCATTER), pass);
            assert_int_equal(total_sent(&sim, sum, all, &s, RESHARD_ALL_REDUCE), 2 * pass);
            int64_t swap = total_sent(&sim, rows, columns, &s, RESHARD_ALL_TO_ALL);
            for (int r = 0; r < p; r++) { /* stays: its columns of its rows */
                const Span mine = even_part(side, 1, p, r);
                swap += copies * (mine.hi - mine.lo) * (mine.hi - mine.lo);
            }
            assert_int_equal(swap, copies * n);
            if (uneven) continue;
            assert_int_equal(sim.part[1].sent, n * (p - 1) / (p * p)); /* each, evenly */
        }
    }
    sim_close(&sim);
}

/* Reshards without packing: contiguous rows, on both sides. Columns need packing. */
static void direct_where_storage_is_the_message(void **state)
{
    (void)state;
    Sim sim;
    const Mesh m = mesh_of(1, 1, 1, 3);
    const Shape s = {2, {7, 5}};
    const Sharding rows = at(&m, layout_cut(dense(), 0, TP, 1)), all = at(&m, dense());
    const Sharding columns = at(&m, layout_cut(dense(), 1, TP, 1));
    const Sharding sum = at(&m, layout_partial(dense(), TP));
    sim_open(&sim);
    sim_run(&sim, &rows, &all, &s);
    assert_true(sim.part[1].in.direct && sim.part[1].out.direct);
    sim_run(&sim, &columns, &all, &s);
    assert_true(!sim.part[1].in.direct && sim.part[1].out.direct);
    sim_run(&sim, &sum, &rows, &s);
    assert_true(sim.part[1].in.direct && sim.part[1].out.direct);
    sim_run(&sim, &sum, &columns, &s);
    assert_true(sim.part[1].in.direct && !sim.part[1].out.direct);
    sim_run(&sim, &sum, &all, &s);
    assert_true(sim.part[1].in.direct && sim.part[1].out.direct);
    sim_close(&sim);
}

/* Among several holders: the rank itself, then the nearest, then the lower. */
static void nearest_holder_sends(void **state)
{
    (void)state;
    Sim sim;
    const Mesh old = mesh_of(1, 1, 3, 2), grown = mesh_of(1, 1, 1, 9);
    const Shape s = {1, {4}};
    const Sharding from = at(&old, layout_cut(dense(), 0, TP, 1)), to = at(&grown, dense());
    sim_open(&sim);
    sim_run(&sim, &from, &to, &s);
    assert_int_equal(sim.r.kind, RESHARD_EXCHANGE);
    const int giver[9][2] = {{0, 1}, {0, 1}, {2, 1}, {2, 3}, {4, 3},
                             {4, 5}, {4, 5}, {4, 5}, {4, 5}};
    for (int rank = 0; rank < 9; rank++) {
        const ReshardSide *in = &sim.part[rank].in;
        assert_int_equal(in->peers.n, 2);
        for (int i = 0; i < 2; i++)
            assert_int_equal(in->move[i].from, giver[rank][in->move[i].box.lo[0] / 2]);
    }
    /* On one mesh the own group comes first, though a rank of another may be nearer. */
    const Sharding all = at(&old, dense());
    sim_run(&sim, &from, &all, &s);
    assert_int_equal(sim.part[2].in.peers.rank[1], 3);
    sim_close(&sim);
}

/* Two key heads on tp=3: rank 1 holds both. Their gradients are summands. */
static void gradients_of_copies(void **state)
{
    (void)state;
    Sim sim;
    const Mesh m = mesh_of(1, 1, 2, 3);
    const Shape s = {2, {2 * 3, 5}};
    const SpanMap *map;
    DO(spans_key_heads(&test_arena, 8, 2, 3, 3, &map));
    const Sharding use = at(&m, layout_cut_map(dense(), 0, TP, map));
    Sharding sum = use, both = at(&m, layout_partial(use.layout, SHARD)), home = use;
    sum.sum_copies = both.sum_copies = true;
    home.layout = layout_cut(use.layout, DIM_FLAT, SHARD, 4);
    sim_open(&sim);
    assert_int_equal(total_sent(&sim, use, use, &s, RESHARD_NONE), 0);
    /* ranks 0 and 1 swap head 0, ranks 1 and 2 head 1, in each of two replicas */
    assert_int_equal(total_sent(&sim, sum, use, &s, RESHARD_EXCHANGE), 2 * 4 * 15);
    total_sent(&sim, both, home, &s, RESHARD_EXCHANGE);
    total_sent(&sim, both, at(&m, dense()), &s, RESHARD_EXCHANGE);
    /* copies may stay unreduced while dp is summed */
    const Sharding f = both;
    Reshard r;
    DO(reshard_plan(&f, &sum, &s, "k", &r));
    assert_int_equal(r.kind, RESHARD_ALL_REDUCE);
    expect_error("open", reshard_plan(&use, &sum, &s, "k_proj", &r), ERR_CHECK, "k_proj");
    total_sent(&sim, home, use, &s, RESHARD_ALL_GATHER);
    /* each rank receives its missing part of the other head from a neighbor */
    assert_int_equal(total_sent(&sim, use, at(&m, dense()), &s, RESHARD_EXCHANGE), 2 * 2 * 15);
    sim_close(&sim);
}

static const SpanMap *map_of(int64_t n, int parts, const Span *span)
{
    const SpanMap *map;
    int32_t first[8];
    for (int p = 0; p <= parts; p++) first[p] = p;
    DO(spans_map(&test_arena, n, parts, first, span, &map));
    return map;
}

/* Cuts that look alike and differ, and cuts that look different and are equal. */
static void look_alikes(void **state)
{
    (void)state;
    Sim sim;
    const Mesh m = mesh_of(1, 1, 3, 2), one = mesh_of(1, 1, 3, 1);
    const Shape s = {2, {6, 5}};
    const Sharding all = at(&m, dense());
    sim_open(&sim);

    /* the same flat cut of another remainder */
    const Layout rows = layout_cut(dense(), 0, TP, 1), columns = layout_cut(dense(), 1, TP, 1);
    const Sharding a = at(&m, layout_cut(rows, DIM_FLAT, SHARD, 4));
    const Sharding b = at(&m, layout_cut(columns, DIM_FLAT, SHARD, 4));
    total_sent(&sim, a, b, &s, RESHARD_ALL_TO_ALL);
    assert_int_equal(sim.r.axes, SHARD | TP);
    /* other grains of one remainder */
    const Sharding c = at(&m, layout_cut(rows, DIM_FLAT, SHARD, 2));
    assert_true(total_sent(&sim, a, c, &s, RESHARD_ALL_TO_ALL) > 0);
    assert_int_equal(sim.r.axes, SHARD);

    /* all of a dim on every part is replicate; a prefix of it is not; summands are neither */
    const SpanMap *whole = map_of(6, 2, (Span[]){{0, 6, 1}, {0, 6, 1}});
    const Sharding nominal = at(&m, layout_cut_map(dense(), 0, TP, whole));
    const Sharding begun =
        at(&m, layout_cut_map(dense(), 0, TP, map_of(6, 2, (Span[]){{0, 4, 1}, {0, 6, 1}})));
    Sharding summed = nominal;
    summed.sum_copies = true;
    total_sent(&sim, nominal, all, &s, RESHARD_NONE);
    assert_int_equal(total_sent(&sim, begun, all, &s, RESHARD_EXCHANGE), 3 * 10);
    assert_int_equal(total_sent(&sim, summed, nominal, &s, RESHARD_EXCHANGE), 3 * 2 * 30);

    /* the same under a flat map that reuses the axis */
    Span part[6];
    for (int p = 0; p < 6; p++) part[p] = even_part(30, 4, 3, p / 2);
    Sharding home = nominal, open;
    home.layout = layout_cut_map(home.layout, DIM_FLAT, SHARD | TP, map_of(30, 6, part));
    open = home;
    open.sum_copies = true;
    total_sent(&sim, home, all, &s, RESHARD_ALL_GATHER);
    assert_int_equal(total_sent(&sim, open, home, &s, RESHARD_EXCHANGE), 2 * 30);

    /* a map of one part may still reorder */
    const SpanMap *reordered;
    DO(spans_map(&test_arena, 6, 1, (int32_t[]){0, 2}, (Span[]){{3, 6, 1}, {0, 3, 1}}, &reordered));
    const Sharding odd = at(&one, layout_cut_map(dense(), 0, TP, reordered));
    assert_int_equal(total_sent(&sim, odd, at(&one, dense()), &s, RESHARD_LOCAL), 0);
    sim_close(&sim);
}

static void refused(void **state)
{
    (void)state;
    const Mesh m = mesh_of(1, 1, 2, 2), other = mesh_of(1, 1, 4, 1);
    const Shape s = {1, {8}};
    Reshard r;
    const Sharding sum = at(&m, layout_partial(dense(), TP)), all = at(&m, dense());
    const Sharding moved = at(&other, layout_partial(dense(), SHARD));
    expect_error("all", reshard_plan(&all, &sum, &s, "y", &r), ERR_CHECK,
                 "y: a reshard to partial");
    expect_error("moved", reshard_plan(&sum, &moved, &s, "y", &r), ERR_CHECK, "another mesh");
}

/* From stage to stage of one mesh, and from one stage to all. */
static void stages(void **state)
{
    (void)state;
    Sim sim;
    const Mesh m = mesh_of(3, 1, 2, 2);
    const Shape s = {2, {5, 3}};
    Sharding from = at(&m, layout_cut(dense(), 0, TP, 1)),
             to = at(&m, layout_cut(dense(), 1, TP, 1));
    from.stage = 0;
    to.stage = 2;
    sim_open(&sim);
    assert_int_equal(total_sent(&sim, from, to, &s, RESHARD_EXCHANGE), 2 * 15);
    assert_int_equal(sim.part[10].in.peers.rank[0], 2); /* from the same dp rank */
    to.stage = ALL_STAGES;
    total_sent(&sim, from, to, &s, RESHARD_EXCHANGE);
    assert_int_equal(total_sent(&sim, at(&m, dense()), to, &s, RESHARD_LOCAL), 0);
    sim_close(&sim);
}

/* Processor time of one rank's plan and part, the best of three. */
static double one_rank_ms(const Sharding *from, const Sharding *to, const Shape *s,
                          ReshardKind kind)
{
    double best = 1e9;
    Arena temp;
    DO(arena_open(&temp, "temp", (size_t)1 << 30));
    for (int i = 0; i < 3; i++) {
        const size_t mark = arena_mark(&test_arena);
        const clock_t start = clock();
        Reshard r;
        ReshardPart part;
        int64_t sent;
        DO(reshard_plan(from, to, s, "w", &r));
        DO(reshard_for_rank(&r, 9001, &test_arena, &temp, &part));
        const double ms = 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC;
        if (ms < best) best = ms;
        DO(reshard_sent(&r, 9001, &temp, &sent));
        assert_int_equal(sent, part.sent);
        assert_int_equal(r.kind, kind);
        arena_rewind(&test_arena, mark);
    }
    arena_close(&temp);
    return best;
}

static void one_rank_of_16384(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    const double limit_ms = 300;
#else
    const double limit_ms = 10;
#endif
    const Mesh deep = mesh_of(16, 2, 64, 8), wide = mesh_of(1, 1, 2048, 8),
               all = mesh_of(1, 1, 16384, 1);
    const Mesh *mesh[3] = {&deep, &wide, &all};
    const Shape s = {2, {28672, 8192}};
    for (int i = 0; i < 3; i++) {
        const Layout rows = layout_cut(dense(), 0, TP, 1), columns = layout_cut(dense(), 1, TP, 1);
        const Layout home = layout_cut(rows, DIM_FLAT, SHARD, 65536);
        const Sharding use = at(mesh[i], rows), sharded = at(mesh[i], home);
        const Sharding grad = at(mesh[i], layout_partial(rows, SHARD));
        const Sharding reordered = at(mesh[i], columns), seen = at(mesh[i], dense());
        double ms[5] = {one_rank_ms(&sharded, &use, &s, RESHARD_ALL_GATHER),
                        one_rank_ms(&grad, &sharded, &s, RESHARD_REDUCE_SCATTER),
                        one_rank_ms(&grad, &use, &s, RESHARD_ALL_REDUCE)};
        if (i < 2) ms[3] = one_rank_ms(&use, &reordered, &s, RESHARD_ALL_TO_ALL);
        if (i < 2) ms[4] = one_rank_ms(&use, &seen, &s, RESHARD_ALL_GATHER);
        const bool reduce_counts = i < 2; /* a group of 16,384 is listed member by member */
        for (int j = 0; j < 5; j++)
            if ((j != 2 || reduce_counts) && ms[j] >= limit_ms)
                fail_msg("mesh %d, reshard %d: %.1f ms", i, j, ms[j]);
    }
    /* another mesh: found by number */
    const Sharding from =
        at(&deep, layout_cut(layout_cut(dense(), 0, TP, 1), DIM_FLAT, SHARD, 65536));
    const Sharding to =
        at(&wide, layout_cut(layout_cut(dense(), 1, TP, 1), DIM_FLAT, SHARD, 65536));
    assert_true(one_rank_ms(&from, &to, &s, RESHARD_EXCHANGE) < limit_ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_by_name),
        cmocka_unit_test(bytes_by_formula),
        cmocka_unit_test(direct_where_storage_is_the_message),
        cmocka_unit_test(nearest_holder_sends),
        cmocka_unit_test(gradients_of_copies),
        cmocka_unit_test(look_alikes),
        cmocka_unit_test(refused),
        cmocka_unit_test(stages),
        cmocka_unit_test(one_rank_of_16384),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
