/* test_cost.c -- seconds of ops and transfers: more work is never faster, a faster rate is never
 * slower, and the formulas have the values of textbook rings. */
#include <math.h>

#include "support/expect.h"

#include "cost/cost.h"

static const OpId ops[] = {OP_linear,    OP_linear_dw,    OP_linear_dgelu_bias,
                           OP_add,       OP_rmsnorm_back, OP_rope,
                           OP_attention, OP_attention_dx, OP_copy_out};
enum { N = sizeof ops / sizeof *ops };

static const CommKind kinds[] = {COMM_SEND,          COMM_RECV,       COMM_ALL_REDUCE,
                                 COMM_ALL_GATHER,    COMM_ALL_TO_ALL, COMM_BROADCAST,
                                 COMM_REDUCE_SCATTER};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static double seconds(const CostRates *r, OpId op, double heavy, double light, double bytes)
{
    return cost_work_seconds(
        r, &(CostWork){.op = op, .dtype = BF16, .heavy = heavy, .light = light, .bytes = bytes});
}

/* From launch-bound to compute-bound and memory-bound. */
static void more_work_is_never_faster(void **state)
{
    const CostRates *r = cost_default_rates();
    (void)state;
    for (int i = 0; i < N; i++)
        for (double work = 1; work < 1e16; work *= 7) {
            const double heavy = op_info(ops[i])->class == CLASS_HEAVY ? work : 0;
            const double now = seconds(r, ops[i], heavy, work / 9, work / 30);
            assert_true(now > 0);
            assert_true(seconds(r, ops[i], 2 * heavy, work / 9, work / 30) >= now);
            assert_true(seconds(r, ops[i], heavy, work / 3, work / 30) >= now);
            assert_true(seconds(r, ops[i], heavy, work / 9, work / 10) >= now);
            assert_true(seconds(r, ops[i], 2 * heavy, work / 3, work / 10) > now);
        }
}

static void more_bytes_or_members_are_never_faster(void **state)
{
    const CostRates *r = cost_default_rates();
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int level = 0; level < r->n_levels; level++)
            for (double bytes = 1; bytes < 1e12; bytes *= 11)
                for (int n = 2; n < 5000; n += 1 + n / 3) {
                    const CostGroup g = {.members = n, .level = level, .inside = 1},
                                    more = {.members = n + 1, .level = level, .inside = 1};
                    const double now = cost_transfer_seconds(r, kinds[k], g, bytes);
                    assert_true(now > 0);
                    assert_true(cost_transfer_seconds(r, kinds[k], g, 2 * bytes) > now);
                    assert_true(cost_transfer_seconds(r, kinds[k], more, bytes) >= now);
                }
    const CostGroup alone = {.members = 1, .inside = 1};
    for (int k = 0; k < N_KINDS; k++)
        assert_true(cost_transfer_seconds(r, kinds[k], alone, 1e9) == 0);
}

/* Each rate alone is improved twofold. */
static void a_faster_rate_is_never_slower(void **state)
{
    const CostRates *base = cost_default_rates();
    (void)state;
    for (int rate = 0; rate < 6; rate++) {
        CostRates r = *base;
        if (rate == 0)
            for (int c = 0; c < N_WORK_CLASSES; c++)
                for (int t = 0; t < N_DTYPES; t++) r.flops_per_s[c][t] *= 2;
        if (rate == 1) r.memory_Bps *= 2;
        if (rate == 2) r.launch_s /= 2;
        if (rate == 3) r.host_Bps *= 2;
        if (rate == 4) r.level[0].Bps *= 2, r.level[1].latency_s /= 2;
        if (rate == 5) r.level[1].Bps *= 2, r.level[0].latency_s /= 2;
        int faster = 0;
        for (double work = 1; work < 1e15; work *= 7) {
            for (int i = 0; i < N; i++) {
                const double heavy = op_info(ops[i])->class == CLASS_HEAVY ? work : 0;
                const double now = seconds(base, ops[i], heavy, work / 9, work / 90);
                const double then = seconds(&r, ops[i], heavy, work / 9, work / 90);
                assert_true(then <= now);
                faster += then < now;
            }
            for (int k = 0; k < N_KINDS; k++)
                for (int level = 0; level < r.n_levels; level++) {
                    const CostGroup g = {.members = 16, .level = level, .inside = level ? 4 : 1};
                    const double now = cost_transfer_seconds(base, kinds[k], g, work);
                    const double then = cost_transfer_seconds(&r, kinds[k], g, work);
                    assert_true(then <= now);
                    faster += then < now;
                }
        }
        assert_true(faster > 0);
    }
}

/* Values by hand: 2 flops per second and 4 bytes per second make both sides of the roofline. */
static void formulas_have_their_values(void **state)
{
    CostRates r = {.memory_Bps = 4, .host_Bps = 1, .launch_s = 0.5, .n_levels = 2};
    r.flops_per_s[WORK_GEMM][F32] = 2, r.flops_per_s[WORK_POINTWISE][F32] = 1;
    r.flops_per_s[WORK_ATTENTION][F32] = 1;
    r.level[0] = (CostLink){.ranks = 4, .latency_s = 1, .Bps = 100},
    r.level[1] = (CostLink){.ranks = 0, .latency_s = 10, .Bps = 5};
    (void)state;
    CostWork w = {.op = OP_linear,
                  .dtype = F32,
                  .heavy = 20,
                  .light = 3,
                  .bytes = 40}; /* 10 + 3 s of flops, 10 s of bytes */
    assert_true(cost_work_seconds(&r, &w) == 13.5);
    w.bytes = 80;
    assert_true(cost_work_seconds(&r, &w) == 20.5);
    w.op = OP_attention, w.bytes = 4;
    assert_true(cost_work_seconds(&r, &w) == 23.5);
    w.op = OP_copy_in;
    assert_true(cost_work_seconds(&r, &w) == 4.5);
    w.op = OP_heads;
    assert_true(cost_work_seconds(&r, &w) == 0);
    w.op = OP_all_gather;
    assert_true(cost_work_seconds(&r, &w) == 0);

    const CostGroup node = {.members = 4, .inside = 1}; /* one block */
    assert_true(cost_group_strided(&r, 4, 1).level == 0 &&
                cost_group_strided(&r, 4, 1).inside == 1);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_GATHER, node, 400) == 3 + 3);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_REDUCE, node, 400) == 6 + 6);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_REDUCE, node, 4) == 4 + 0.08); /* a tree */
    assert_true(cost_transfer_seconds(&r, COMM_SEND, node, 400) == 1 + 4);
    /* 8 ranks of two blocks: four links of 5 B/s cross together. */
    const CostGroup wide = cost_group_strided(&r, 8, 1);
    assert_true(wide.level == 1 && wide.inside == 4);
    assert_true(cost_transfer_seconds(&r, COMM_REDUCE_SCATTER, wide, 800) == 70 + 700 / 20.0);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_TO_ALL, wide, 800) == 70 + 700 / 5.0);
    /* One rank of each block: its own link alone. */
    const CostGroup thin = cost_group_strided(&r, 2, 4);
    assert_true(thin.level == 1 && thin.inside == 1);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_GATHER, thin, 100) == 10 + 50 / 5.0);
}

/* A list of ranks and the axis that it lies along have the same position. */
static void groups_of_lists_and_strides_agree(void **state)
{
    const CostRates *r = cost_default_rates();
    int32_t rank[64];
    (void)state;
    for (int stride = 1; stride <= 32; stride *= 2)
        for (int n = 1; n * stride <= 64; n *= 2) {
            for (int i = 0; i < n; i++) rank[i] = i * stride;
            const CostGroup a = cost_group(r, (RankList){n, rank});
            const CostGroup b = cost_group_strided(r, n, stride);
            assert_true(a.members == b.members && a.level == b.level && a.inside == b.inside);
        }
    const int32_t apart[] = {7, 8}; /* neighbors of two nodes */
    assert_true(cost_group(r, (RankList){2, apart}).level == 1);
}

/* Nodes of 8 ranks; the links 0-2 (1 GB/s) and 1-3 (2 GB/s) are slow. */
static void slow_links_are_those_of_the_ring(void **state)
{
    static const CostLink link[] = {{.latency_s = 1e-3, .Bps = 1e9}, {.latency_s = 0, .Bps = 2e9}};
    static const int swapped[] = {0, 2, 1, 3};
    uint8_t between[16] = {0};
    CostNodes nodes = {.n = 4, .n_links = 2, .link = link, .between = between};
    CostRates r = {
        .n_levels = 2, .level = {{.ranks = 8, .Bps = 100e9}, {.Bps = 10e9}}, .nodes = &nodes};
    const int32_t rank[] = {0, 8, 16, 24};
    (void)state;
    between[0 * 4 + 2] = between[2 * 4 + 0] = 1;
    between[1 * 4 + 3] = between[3 * 4 + 1] = 2;

    CostGroup g = cost_group(&r, (RankList){4, rank}); /* hops 0-1, 1-2, 2-3 and 3-0 */
    assert_true(g.level == 1 && g.inside == 1 && g.ring_link == 0 && g.any_link == 1);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_GATHER, g, 4e9) == 0.3);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_TO_ALL, g, 4e9) == 3e-3 + 3);
    assert_true(cost_transfer_seconds(&r, COMM_BROADCAST, g, 4e9) == 2e-3 + 4);

    nodes.at = swapped; /* hops 0-2, 2-1, 1-3 and 3-0 */
    nodes.n_at = 4;
    g = cost_group(&r, (RankList){4, rank});
    assert_true(g.ring_link == 1 && g.any_link == 1);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_GATHER, g, 4e9) == 3e-3 + 3);
    g = cost_group(&r, (RankList){2, rank}); /* nodes 0 and 2 */
    assert_true(g.ring_link == 1);
    assert_true(cost_transfer_seconds(&r, COMM_SEND, g, 1e9) == 1e-3 + 1);
    const int32_t inside[] = {8, 9, 10};
    g = cost_group(&r, (RankList){3, inside});
    assert_true(g.level == 0 && g.ring_link == 0 && g.any_link == 0);
    const int32_t pairs[] = {16, 20, 24, 28}; /* nodes 1 and 3, two ranks of each */
    g = cost_group(&r, (RankList){4, pairs});
    assert_true(g.level == 1 && g.inside == 2 && g.ring_link == 2);
}

/* With three levels, the order of the nodes decides which level a group spans. */
/* GEMMs of 8 bits have a rate of their own, or that of the unit's type where none is known. */
static void fp8_has_a_rate(void **state)
{
    CostRates r = *cost_default_rates();
    (void)state;
    const double narrow = seconds(&r, OP_linear_fp8, 1e15, 0, 0) - r.launch_s,
                 plain = seconds(&r, OP_linear, 1e15, 0, 0) - r.launch_s;
    assert_true(fabs(narrow * r.flops_per_s[WORK_GEMM][E4M3] / 1e15 - 1) < 1e-9);
    assert_true(narrow < plain);
    assert_true(seconds(&r, OP_linear_blocks_dw, 1e15, 0, 0) - r.launch_s == narrow);
    r.flops_per_s[WORK_GEMM][E4M3] = 0;
    assert_true(seconds(&r, OP_linear_fp8, 1e15, 0, 0) - r.launch_s == plain);
}

static void order_of_nodes_moves_groups_across_levels(void **state)
{
    static const int at[] = {0, 2, 1, 3};
    const CostNodes nodes = {.n_at = 4, .at = at};
    CostRates r = {.n_levels = 3,
                   .level = {{.ranks = 2, .Bps = 9}, {.ranks = 4, .Bps = 3}, {.Bps = 1}}};
    const int32_t rank[] = {1, 3};
    (void)state;
    assert_true(cost_group(&r, (RankList){2, rank}).level == 1);
    r.nodes = &nodes; /* rank 3 is on node 2, of the other half */
    assert_true(cost_group(&r, (RankList){2, rank}).level == 2);
}

/* The work of a node before lowering: flops of its row, bytes of its operands by type. */
static void work_of_a_node_follows_its_row(void **state)
{
    const Dim t = dim_of(6), i = dim_of(10), o = dim_of(14);
    const Dims in[] = {dims2(t, i), dims2(o, i)}, out[] = {dims2(t, o)};
    const OpAttr none = {0};
    (void)state;
    const CostWork w = cost_work(OP_linear, &none, BF16, 2, in, 1, out);
    assert_true(w.heavy == 2 * 6 * 10 * 14 && w.light == 0);
    assert_true(w.m == 6 && w.n == 14 && w.k == 10);
    assert_true(w.bytes == 2 * (60 + 140 + 84));
    const Dims dw_in[] = {dims2(t, o), dims2(t, i)}, dw_out[] = {dims2(o, i)};
    const CostWork dw = cost_work(OP_linear_dw, &none, BF16, 2, dw_in, 1, dw_out);
    assert_true(dw.m == 14 && dw.n == 10 && dw.k == 6);
    assert_true(dw.heavy == w.heavy && dw.bytes == 2 * (84 + 60) + 4 * 140); /* dw is f32 */
    const Dims norm_in[] = {dims2(t, i), dims1(i)}, norm_out[] = {dims2(t, i), dims1(t)};
    const CostWork norm = cost_work(OP_rmsnorm, &none, F32, 2, norm_in, 2, norm_out);
    assert_true(norm.heavy == 0 && norm.light == 5 * 60 && norm.bytes == 4 * (60 + 10 + 60 + 6));
}

/* A grouped GEMM is as many GEMMs as experts, each with its share of the rows; a GEMM of few rows
 * wastes most of a tile. */
static void experts_share_the_rows(void **state)
{
    enum { R = 1200, I = 256, O = 384, E = 6 };
    const OpAttr none = {0};
    const Dims w = {.ndim = 3, .dim = {dim_of(E), dim_of(O), dim_of(I)}};
    const Dims x = dims2(dim_of(R), dim_of(I)), y = dims2(dim_of(R), dim_of(O));
    const Dims at = dims1(dim_of(E + 1)), in[] = {x, w, at}, dw_in[] = {y, x, at};
    const CostWork f = cost_work(OP_grouped_linear, &none, BF16, 3, in, 1, &y);
    const CostWork dw = cost_work(OP_grouped_linear_dw, &none, BF16, 3, dw_in, 1, &w);
    (void)state;
    assert_true(f.experts == E && f.m == R / E && f.n == O && f.k == I);
    assert_true(dw.experts == E && dw.m == O && dw.n == I && dw.k == R / E);
    assert_true(f.heavy == 2.0 * R * I * O && dw.heavy == f.heavy);
    const CostTiles t = {.units = 18, .m = 256, .n = 128, .fill_k = 0};
    /* 200 rows in tiles of 256, three columns of tiles each: 18 tiles on 18 units. */
    assert_true(fabs(cost_tile_waste(&t, E, 200, 384, 4096) - 256.0 / 200) < 1e-12);
    assert_true(cost_tile_waste(&t, E, 200, 384, 4096) >
                cost_tile_waste(&t, 1, 6 * 200, 384, 4096));
}

/* Fused ops of experts are the GEMMs that they are made of: two products of one x have twice the
 * columns, a sum of two products has twice the depth. */
static void fused_experts_are_their_gemms(void **state)
{
    enum { R = 1200, I = 256, O = 384, E = 6 };
    const OpAttr none = {0};
    const Dims w = {.ndim = 3, .dim = {dim_of(E), dim_of(O), dim_of(I)}};
    const Dims x = dims2(dim_of(R), dim_of(I)), y = dims2(dim_of(R), dim_of(O));
    const Dims at = dims1(dim_of(E + 1)), up_in[] = {x, w, w, at}, up_out[] = {y, y, y};
    const Dims down_in[] = {y, w, at, x, x}, down_out[] = {x, x}, pair_in[] = {y, w, y, w, at};
    const CostWork up = cost_work(OP_grouped_linear_swiglu, &none, BF16, 4, up_in, 3, up_out);
    const CostWork down =
        cost_work(OP_grouped_linear_dswiglu, &none, BF16, 5, down_in, 2, down_out);
    const CostWork pair = cost_work(OP_grouped_linear_dx2, &none, BF16, 5, pair_in, 1, &x);
    (void)state;
    assert_true(up.experts == E && up.m == R / E && up.n == 2 * O && up.k == I);
    assert_true(down.experts == E && down.m == R / E && down.n == I && down.k == O);
    assert_true(pair.experts == E && pair.m == R / E && pair.n == I && pair.k == 2 * O);
    assert_true(up.heavy == 4.0 * R * I * O && pair.heavy == up.heavy && down.heavy < up.heavy);
    assert_true(up.light == 6.0 * R * O && down.light == 12.0 * R * I && pair.light == 0);
}

/* Whole tiles in whole waves; more is never faster; no tiles, no waste. */
static void tiles_and_waves_are_whole(void **state)
{
    const CostTiles t = {.units = 10, .m = 128, .n = 128, .fill_k = 0}, none = {0};
    (void)state;
    assert_true(cost_tile_waste(&none, 1, 3, 5, 7) == 1);
    assert_true(cost_tile_waste(&t, 1, 1280, 128, 512) == 1); /* ten tiles on ten units */
    /* 11 tiles: with k split by 8, 88 in 9 waves. */
    assert_true(fabs(cost_tile_waste(&t, 1, 1408, 128, 8) - 90.0 / 88 / 0.9) < 1e-12);
    double last = 0;
    for (double m = 1; m < 5000; m += 1 + m / 3) {
        const double flops = m * 700 * 900 * cost_tile_waste(&t, 1, m, 700, 900);
        assert_true(flops >= last * (1 - 1e-12) && cost_tile_waste(&t, 1, m, 700, 900) >= 1);
        last = flops;
    }
    const CostTiles filled = {.units = 10, .m = 128, .n = 128, .fill_k = 64};
    assert_true(cost_tile_waste(&filled, 1, 1280, 128, 64) >
                cost_tile_waste(&filled, 1, 1280, 128, 640));
}

/* A GEMM that tp cuts by 32 takes more than its part of the time. */
static void gemms_do_not_scale_linearly(void **state)
{
    CostRates r = *cost_default_rates();
    r.tiles = (CostTiles){.units = 132, .m = 256, .n = 128, .fill_k = 64};
    CostWork w = {.op = OP_linear, .dtype = BF16, .m = 4096, .n = 4096, .k = 4096};
    (void)state;
    w.heavy = 2 * w.m * w.n * w.k;
    const double whole = cost_work_seconds(&r, &w) - r.launch_s;
    w.n /= 32, w.heavy /= 32;
    assert_true(cost_work_seconds(&r, &w) - r.launch_s > 1.1 * whole / 32);
}

/* A GEMM that wastes tiles has the faster clock; one that fills all units, the rate itself. */
static void clocks_fall_at_the_power_limit(void **state)
{
    CostRates r = *cost_default_rates();
    CostWork large = {.op = OP_linear, .dtype = BF16, .m = 128, .n = 1280, .k = 512}, small = large;
    double before[2], after[2];
    (void)state;
    small.m = small.n = 96; /* one tile of ten, a ninth of it idle */
    large.heavy = 2 * large.m * large.n * large.k, small.heavy = 2 * small.m * small.n * small.k;
    r.memory_Bps = 1e30, r.launch_s = 0;
    for (int boosted = 0; boosted < 2; boosted++) {
        double *seconds = boosted ? after : before;
        r.tiles = (CostTiles){.units = 10, .m = 128, .n = 128, .boost = boosted ? 1.25 : 0};
        seconds[0] = cost_work_seconds(&r, &large);
        seconds[1] = cost_work_seconds(&r, &small);
    }
    assert_true(before[0] > 0 && after[0] == before[0]);
    assert_true(fabs(before[1] / after[1] - 1.25) < 1e-12);
}

static void curves_and_grids_are_interpolated_in_logs(void **state)
{
    static const double rate[] = {1, 4, 16, 64, 2, 8, 32, 128};
    CostGrid g = {2, 2, 2, {10, 1000}, {10, 1000}, {10, 1000}, rate};
    const CostCurve c = {3, {1, 100, 1000}, {5, 50, 10}};
    const CostTiles none = {0}, tiles = {.units = 7, .m = 64, .n = 64, .fill_k = 9};
    (void)state;
    assert_true(cost_curve_at(&c, 0.1) == 5 && cost_curve_at(&c, 1e9) == 10);
    assert_true(fabs(cost_curve_at(&c, 10) - sqrt(250)) < 1e-9);
    assert_true(fabs(cost_grid_at(&g, &none, 100, 10, 10) - sqrt(2)) < 1e-12);
    assert_true(fabs(cost_grid_at(&g, &none, 10, 100, 10) - 4) < 1e-12);
    assert_true(fabs(cost_grid_at(&g, &none, 10, 10, 100) - 2) < 1e-12);
    assert_true(fabs(cost_grid_at(&g, &none, 1e5, 1e5, 1e5) - 128) < 1e-9);
    /* At a measured shape the seconds are the measured ones, with tiles or without. */
    CostRates r = *cost_default_rates();
    r.tiles = tiles, r.gemm[F32] = &g, r.memory_Bps = 1e30, r.launch_s = 0;
    const CostWork w = {
        .op = OP_linear, .dtype = F32, .heavy = 2e5, .m = 10, .n = 1000, .k = 10, .bytes = 1};
    assert_true(fabs(cost_work_seconds(&r, &w) / (2e5 / 16) - 1) < 1e-12);
}

/* Forward and backward by the keys of a query, in the curves of the nearest width of heads. */
static void attention_has_curves_by_keys(void **state)
{
    const CostAttention a = {.n = 2,
                             .width = {64, 128},
                             .forward = {{2, {10, 1000}, {1e9, 4e9}}, {1, {10}, {7e9}}},
                             .backward = {{2, {10, 1000}, {2e9, 8e9}}, {1, {10}, {5e9}}}};
    CostRates r = *cost_default_rates();
    CostWork w = {.op = OP_attention, .dtype = BF16, .c = 80, .queries = 30, .bytes = 1};
    (void)state;
    r.keyed[BF16] = &a, r.memory_Bps = 1e30, r.launch_s = 0;
    w.heavy = 4 * w.c * w.queries * 100; /* 100 keys: the middle of 10 and 1000 in logs */
    assert_true(fabs(cost_work_seconds(&r, &w) / (w.heavy / 2e9) - 1) < 1e-9);
    w.op = OP_attention_dx, w.heavy *= 2.5;
    assert_true(fabs(cost_work_seconds(&r, &w) / (w.heavy / 4e9) - 1) < 1e-9);
    w.c = 100, w.heavy *= 100.0 / 80; /* nearer to 128 */
    assert_true(fabs(cost_work_seconds(&r, &w) / (w.heavy / 5e9) - 1) < 1e-9);
    w.dtype = F32; /* has the rate */
    assert_true(fabs(cost_work_seconds(&r, &w) / (w.heavy / 30e12) - 1) < 1e-9);
}

/* Norms, the loss and the state move their bytes at parts of the rate; other ops do not. */
static void kernels_reach_parts_of_the_memory(void **state)
{
    static const struct {
        CostWork work;
        double reach;
    } at[] = {{{.op = OP_rmsnorm, .dtype = BF16}, 0.5},
              {{.op = OP_layernorm_back, .dtype = BF16}, 0.5},
              {{.op = OP_bias_dw, .dtype = BF16}, 0.5},
              {{.op = OP_token_loss_dx, .dtype = BF16}, 0.25},
              {{.op = OP_cast, .dtype = BF16, .among = 1}, 0.8},
              {{.op = OP_cast, .dtype = BF16}, 1},
              {{.op = OP_add, .dtype = BF16}, 1}};
    CostRates r = *cost_default_rates();
    (void)state;
    r.launch_s = 0;
    for (int parts = 0; parts < 2; parts++) {
        if (parts)
            r.reach[REACH_NORM] = 0.5, r.reach[REACH_LOSS] = 0.25, r.reach[REACH_STATE] = 0.8;
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            CostWork w = at[i].work;
            w.bytes = 1e9;
            const double reach = parts ? at[i].reach : 1;
            assert_true(fabs(cost_work_seconds(&r, &w) / (1e9 / 2.7e12 / reach) - 1) < 1e-12);
        }
    }
}

/* The matrix that an epilogue reads adds a part of its time; its flops hide. */
static void epilogues_add_their_operands(void **state)
{
    CostRates r = *cost_default_rates();
    CostWork w = {.op = OP_linear_dgelu, .dtype = BF16, .m = 4096, .n = 2048, .k = 512};
    (void)state;
    w.heavy = 2 * w.m * w.n * w.k;
    r.launch_s = 0, r.memory_Bps = 1e13;
    w.bytes = 2 * (w.m * w.k + w.k * w.n + w.m * w.n);
    const double plain = cost_work_seconds(&r, &w);
    w.light = 16 * w.m * w.n;
    w.bytes += 2 * w.m * w.n;
    assert_true(fabs(cost_work_seconds(&r, &w) - plain - w.light / 30e12) < 1e-12);
    r.epilogue = 0.5;
    assert_true(fabs(cost_work_seconds(&r, &w) - plain - 0.5 * 2 * w.m * w.n / 1e13) < 1e-12);
}

/* A message between two ranks of the matrix has their numbers, others those of the level. */
static void pairs_have_links_of_their_own(void **state)
{
    static const float latency[] = {1e-6F, 2e-6F, 3e-6F}, Bps[] = {1e9F, 2e9F, 4e9F};
    static const int32_t rank[][2] = {{0, 1}, {2, 0}, {1, 2}, {0, 3}};
    const CostPairs pairs = {3, latency, Bps};
    CostRates r = *cost_default_rates();
    (void)state;
    r.pairs = &pairs;
    for (int i = 0; i < 4; i++) {
        const CostGroup g = cost_group(&r, (RankList){2, rank[i]});
        const double want = i < 3 ? (double)latency[i] + 1e6 / (double)Bps[i] : 8e-6 + 1e6 / 360e9;
        assert_int_equal(g.pair, i < 3 ? i + 1 : 0);
        assert_true(fabs(cost_transfer_seconds(&r, COMM_SEND, g, 1e6) / want - 1) < 1e-9);
        assert_true(cost_transfer_seconds(&r, COMM_ALL_GATHER, g, 1e6) < 1e-4);
    }
}

/* A table replaces the formula of its kind and group alone. */
static void tables_of_collectives(void **state)
{
    CostTable table = {COMM_ALL_GATHER, 4, 0, 1, {2, {100, 10000}, {1, 3}}};
    CostRates r = *cost_default_rates();
    const CostGroup g = {.members = 4, .inside = 1}, other = {.members = 3, .inside = 1};
    (void)state;
    r.n_tables = 1, r.table = &table;
    assert_true(cost_transfer_seconds(&r, COMM_ALL_GATHER, g, 1) == 1);
    assert_true(fabs(cost_transfer_seconds(&r, COMM_ALL_GATHER, g, 1000) - sqrt(3)) < 1e-12);
    assert_true(fabs(cost_transfer_seconds(&r, COMM_ALL_GATHER, g, 20000) - 6) < 1e-12);
    assert_true(cost_transfer_seconds(&r, COMM_REDUCE_SCATTER, g, 1000) < 1e-3);
    assert_true(cost_transfer_seconds(&r, COMM_ALL_GATHER, other, 1000) < 1e-3);
}

/* Bytes that are touched among many others come from memory, however few they are. */
static void state_is_not_in_caches(void **state)
{
    (void)state;
    CostRates r = *cost_default_rates();
    const CostCurve curve = {2, {1e5, 1e8}, {1e11, 1e10}};
    r.memory = &curve, r.launch_s = 0;
    const CostWork near = {.op = OP_cast, .bytes = 1e5};
    CostWork far = near;
    far.among = 1e9;
    assert_true(fabs(cost_work_seconds(&r, &near) - 1e-6) < 1e-15);
    assert_true(fabs(cost_work_seconds(&r, &far) - 1e-5) < 1e-14);
    far.among = 1e3; /* fewer than its own */
    assert_true(fabs(cost_work_seconds(&r, &far) - 1e-6) < 1e-15);
}

/* Ranks that share a link have a part of it each; scores in memory add their bytes. */
static void shared_links_and_scores(void **state)
{
    CostRates r = *cost_default_rates();
    const CostGroup g = {.members = 4, .level = 1, .inside = 1};
    const CostWork w = {.op = OP_attention, .dtype = BF16, .heavy = 4e9, .c = 64};
    CostWork back = w;
    (void)state;
    const double before = cost_transfer_seconds(&r, COMM_SEND, g, 1e9);
    r.level[1].shared_by = 2;
    assert_true(cost_transfer_seconds(&r, COMM_SEND, g, 1e9) > 1.9 * before);
    r.level[1].pair_Bps = 1e9, r.level[1].pair_latency_s = 3;
    assert_true(fabs(cost_transfer_seconds(&r, COMM_SEND, g, 1e9) - 4) < 1e-9);
    const CostWork loss = {.op = OP_loss_dx, .dtype = BF16, .light = 4e9, .bytes = 1};
    const double plain = cost_work_seconds(&r, &loss);
    r.logit_bytes = 20;
    assert_true(fabs(cost_work_seconds(&r, &loss) - plain - 20e9 / r.memory_Bps) < 1e-9);
    const double flash = cost_work_seconds(&r, &w);
    r.pair_bytes = 8;
    assert_true(fabs(cost_work_seconds(&r, &w) - flash - 8 * 4e9 / 256 / r.memory_Bps) < 1e-12);
    back.op = OP_attention_dx, back.heavy = 1e10;
    assert_true(fabs(cost_work_seconds(&r, &back) - 1e10 / r.flops_per_s[WORK_ATTENTION][BF16] -
                     r.launch_s - 16 * 1e10 / 640 / r.memory_Bps) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_work_is_never_faster),
                                       cmocka_unit_test(more_bytes_or_members_are_never_faster),
                                       cmocka_unit_test(a_faster_rate_is_never_slower),
                                       cmocka_unit_test(formulas_have_their_values),
                                       cmocka_unit_test(groups_of_lists_and_strides_agree),
                                       cmocka_unit_test(slow_links_are_those_of_the_ring),
                                       cmocka_unit_test(order_of_nodes_moves_groups_across_levels),
                                       cmocka_unit_test(work_of_a_node_follows_its_row),
                                       cmocka_unit_test(experts_share_the_rows),
                                       cmocka_unit_test(fused_experts_are_their_gemms),
                                       cmocka_unit_test(tiles_and_waves_are_whole),
                                       cmocka_unit_test(gemms_do_not_scale_linearly),
                                       cmocka_unit_test(clocks_fall_at_the_power_limit),
                                       cmocka_unit_test(fp8_has_a_rate),
                                       cmocka_unit_test(curves_and_grids_are_interpolated_in_logs),
                                       cmocka_unit_test(tables_of_collectives),
                                       cmocka_unit_test(attention_has_curves_by_keys),
                                       cmocka_unit_test(kernels_reach_parts_of_the_memory),
                                       cmocka_unit_test(epilogues_add_their_operands),
                                       cmocka_unit_test(pairs_have_links_of_their_own),
                                       cmocka_unit_test(state_is_not_in_caches),
                                       cmocka_unit_test(shared_links_and_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
