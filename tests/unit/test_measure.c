/* test_measure.c -- `sheaf profile`: every rate of a cluster is measured, on one rank and on two;
 * slower work is measured as slower. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "support/expect.h"
#include "support/shadow.h"
#include "base/clock.h"
#include "plan/cluster/cluster.h"
#include "plan/measure/parts.h"

typedef struct {
    const Device *device;
    Measurement out;
    int shown; /* calls of progress */
} MeasureWork;

static void count_call(void *context, const char *what)
{
    assert_true(*what);
    (*(int *)context)++;
}

static Err measure_body(WorldRank *r, void *work)
{
    MeasureWork *w = work;
    Measurement mine;
    const MeasureSettings set = {.device = w->device,
                                 .grid = GRID_SMALL,
                                 .budget_s = 0.0005,
                                 .progress = count_call,
                                 .context = &w->shown};
    const Err err = measure_rates(&set, r, &mine);
    if (err == OK && r->rank == 0) w->out = mine;
    world_leave(r, err);
    return err;
}

static Measurement measured(const Device *device, int ranks)
{
    MeasureWork w = {.device = device};
    const WorldSettings set = {
        .ranks = ranks, .in_flight = 16, .records = 64, .body = measure_body, .work = &w};
    DO(world_run(&set));
    assert_true(w.shown >= w.out.n); /* tables are shown and have no row */
    return w.out;
}

static void every_rate_is_measured(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        const Measurement m = measured(&device_ref, ranks);
        assert_int_equal(m.n, ranks == 1 ? 12 : 16);
        for (int i = 0; i < m.n; i++)
            assert_true(isfinite(m.row[i].value) && m.row[i].value > 0 && m.row[i].spread >= 0);
        for (int c = 0; c < N_WORK_CLASSES; c++)
            for (int t = F64; t <= BF16; t++)
                assert_true(isfinite(m.rates.flops_per_s[c][t]) && m.rates.flops_per_s[c][t] > 0);
        for (int t = F64; t <= BF16; t++)
            assert_true(m.peak_flops_per_s[t] >= m.rates.flops_per_s[WORK_GEMM][t]);
        assert_true(m.rates.memory_Bps > 0 && m.rates.host_Bps > 0 && m.rates.launch_s > 0);
        assert_true(ranks == 1 ? m.slow_work == 0 && m.slow_transfer == 0
                               : m.slow_work >= 1 && m.slow_transfer >= 1);
        assert_int_equal(m.rates.n_levels, 1);
        assert_true(m.rates.level[0].Bps > 0 && (ranks == 1) == (m.rates.level[0].latency_s == 0));
    }
}

static void is_curve(const CostCurve *c)
{
    assert_true(c->n > 1);
    for (int i = 0; i < c->n; i++) {
        assert_true(isfinite(c->y[i]) && c->y[i] > 0);
        assert_true(i == 0 || c->x[i] > c->x[i - 1]);
    }
}

/* Tables of kernels, of collectives along every axis of four ranks, and of all pairs; a cluster
 * file has them all. */
static void tables_are_measured(void **state)
{
    static const char *const path = "build/test_measure.yaml";
    Measurement m = measured(&device_ref, 4);
    const CostRates r = measurement_rates(&m);
    Cluster written = {.name = "measured", .rates = r, .memory_bytes = 1e9}, read;
    const char *text;
    Arena a;
    (void)state;
    for (int t = F32; t <= BF16; t++) {
        assert_int_equal(r.gemm[t]->n_m * r.gemm[t]->n_n * r.gemm[t]->n_k, 27);
        for (int i = 0; i < 27; i++) assert_true(r.gemm[t]->rate[i] > 0);
        is_curve(r.attention[t]);
        written.peak_flops_per_s[t] = 1e12;
    }
    is_curve(r.memory);
    assert_int_equal(r.n_tables, 6); /* three kinds, of two members and of four */
    for (int i = 0; i < r.n_tables; i++) {
        is_curve(&r.table[i].seconds);
        assert_true(r.table[i].members == (i < 3 ? 2 : 4));
    }
    assert_true(r.level[0].pair_Bps > 0 && r.level[0].pair_latency_s > 0);
    assert_true(r.pairs && r.pairs->n == 4);
    for (int i = 0; i < 6; i++) {
        assert_true(r.pairs->Bps[i] > 0 && r.pairs->latency_s[i] > 0);
        assert_true((double)r.pairs->Bps[i] >= 0.999 * m.slow_pair_Bps);
    }
    assert_true(m.slow_pair[0] < m.slow_pair[1] && m.slow_pair[1] < 4 && m.slow_pair_Bps > 0);
    DO(arena_open(&a, "cluster", ARENA_PLENTY));
    Text out = text_in(&a);
    cluster_text(&written, &out);
    DO(text_done(&out, &text));
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
    DO(cluster_read(path, &a, &read));
    assert_int_equal(read.rates.n_tables, 6);
    assert_true(fabs((double)(read.rates.pairs->Bps[5] / r.pairs->Bps[5]) - 1) < 1e-3);
    assert_true(fabs(read.rates.gemm[F32]->rate[13] / r.gemm[F32]->rate[13] - 1) < 1e-5);
    remove(path);
    arena_close(&a);
}

/* A device with memory of its own: curves by keys, parts of the memory's rate, an epilogue; and its
 * file. */
static void kernels_of_a_device_are_measured(void **state)
{
    static const char *const path = "build/test_measure_card.yaml";
    Measurement m = measured(&device_shadow, 1);
    const CostRates r = measurement_rates(&m);
    Cluster written = {.name = "card", .rates = r, .memory_bytes = 1e9}, read;
    const char *text;
    Arena a;
    (void)state;
    assert_true(r.gemm[BF16] && r.gemm[BF16]->n_m == 2 && !r.attention[BF16] && r.keyed[BF16]);
    for (int i = 0; i < 8; i++) assert_true(r.gemm[BF16]->rate[i] > 0);
    assert_int_equal(r.keyed[BF16]->n, 2);
    for (int i = 0; i < 2; i++) {
        is_curve(&r.keyed[BF16]->forward[i]);
        is_curve(&r.keyed[BF16]->backward[i]);
    }
    for (int i = 0; i < N_REACHES; i++) assert_true(r.reach[i] > 0 && r.reach[i] <= 1);
    assert_true(r.epilogue > 0 && r.launch_s > 0 && r.host_Bps > 0);
    for (int c = 0; c < N_WORK_CLASSES; c++)
        for (int t = F64; t <= BF16; t++) assert_true(r.flops_per_s[c][t] > 0);
    assert_true(r.flops_per_s[WORK_GEMM][E4M3] > 0);
    assert_int_equal(shadow_count().contexts, 0);
    for (int t = F32; t <= BF16; t++) written.peak_flops_per_s[t] = 1e12;
    DO(arena_open(&a, "cluster", ARENA_PLENTY));
    Text out = text_in(&a);
    cluster_text(&written, &out);
    DO(text_done(&out, &text));
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
    DO(cluster_read(path, &a, &read));
    assert_true(fabs(read.rates.keyed[BF16]->backward[1].y[0] / r.keyed[BF16]->backward[1].y[0] -
                     1) < 1e-5);
    assert_true(fabs(read.rates.epilogue / r.epilogue - 1) < 1e-5);
    remove(path);
    arena_close(&a);
}

/* Two ranks with memory of their own: their links, and work beside a transfer. */
static void links_of_devices_are_measured(void **state)
{
    (void)state;
    shadow_run_async(true);
    Measurement m = measured(&device_shadow, 2);
    shadow_run_async(false);
    const CostRates r = measurement_rates(&m);
    assert_true(r.level[0].latency_s > 0 && r.level[0].Bps > 0 && r.pairs && r.pairs->n == 2);
    assert_int_equal(r.n_tables, 3);
    assert_true(m.slow_work >= 1 && m.slow_transfer >= 1);
    assert_int_equal(shadow_count().contexts, 0);
}

/* Four nodes of two ranks; between nodes 0 and 2 messages take three times as long, and a ring
 * through all nodes does not pass there; between 2 and 3 it does, at half of the rate. */
static void slow_nodes_have_links_of_their_own(void **state)
{
    static Measurement m;
    (void)state;
    m = (Measurement){.n_tables = 2, .table = {{.level = 0}, {.level = 1}}, .pairs = {.n = 8}};
    m.rates.n_levels = 2;
    m.rates.level[0] = (CostLink){.ranks = 2, .Bps = 100e9};
    m.rates.level[1] = (CostLink){.latency_s = 5e-6, .Bps = 10e9};
    for (int a = 0, at = 0; a < 8; a++)
        for (int b = a + 1; b < 8; b++, at++) {
            const int from = a / 2, to = b / 2;
            const double share = from == 0 && to == 2 ? 1.0 / 3 : from == 2 && to == 3 ? 0.5 : 1;
            m.pair_Bps[at] = (float)(from == to ? 90e9 : 16e9 * share);
            m.pair_latency_s[at] = (float)(from == to ? 1e-6 : 8e-6 / share);
        }
    measure_nodes(&m);
    const CostRates r = measurement_rates(&m);
    assert_true(fabs(r.level[1].Bps / 20e9 - 1) < 1e-6); /* the ring had its slowest hop */
    assert_true(fabs(r.level[1].pair_Bps / 16e9 - 1) < 1e-6);
    assert_true(r.nodes && r.nodes->n == 4 && r.nodes->n_links == 2 && r.n_tables == 1);
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            const int link = r.nodes->between[a * 4 + b];
            const bool third = a + b == 2 && a != b, half = a + b == 5 && a != b;
            assert_int_equal(link > 0, third || half);
            if (!link) continue;
            assert_true(fabs(r.nodes->link[link - 1].Bps / (third ? 20e9 / 3 : 10e9) - 1) < 1e-6);
            assert_true(fabs(r.nodes->link[link - 1].latency_s / (third ? 15e-6 : 10e-6) - 1) <
                        1e-6);
        }
}

static Device slow;
static const void *last_weight;
static int weights, fresh_weights; /* forward GEMMs of the grid, and those after one of another w */

/* gemm that sleeps: a device whose GEMMs take ten milliseconds. */
static Err slow_gemm(const Call *call)
{
    const double end = call->out[0].n[0] == 128 ? now_s() + 0.01 : 0; /* not those of the grid */
    while (now_s() < end) continue;
    if (end > 0 || !call->attr.gemm.tb) return OK;
    weights++;
    fresh_weights += call->in[1].data != last_weight;
    last_weight = call->in[1].data;
    return OK;
}

static void rates_are_work_over_time(void **state)
{
    const double flops = 2.0 * 128 * 128 * 128;
    (void)state;
    slow = device_ref;
    slow.kernel[KERNEL_gemm] = slow_gemm;
    const Measurement m = measured(&slow, 1);
    const double rate = m.rates.flops_per_s[WORK_GEMM][F32];
    assert_true(rate <= flops / 0.01 && m.peak_flops_per_s[F32] <= flops / 0.01);
    assert_true(m.peak_flops_per_s[F32] > flops / 0.05);    /* other processes may have the core */
    assert_true(weights > 100 && fresh_weights == weights); /* none is in the caches */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_rate_is_measured),
                                       cmocka_unit_test(tables_are_measured),
                                       cmocka_unit_test(kernels_of_a_device_are_measured),
                                       cmocka_unit_test(links_of_devices_are_measured),
                                       cmocka_unit_test(slow_nodes_have_links_of_their_own),
                                       cmocka_unit_test(rates_are_work_over_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
