/* `sheaf profile` of ranks whose device memory NCCL moves: collectives, pairs, and work beside a
 * transfer. */
#define _GNU_SOURCE
#include "support/expect.h"

#include <math.h>
#include "nccl/nccl_test.h"
#include "plan/measure/measure.h"

static struct {
    TransportSettings transport;
    Measurement out;
} profile;

static Err measure_body(WorldRank *r, void *work)
{
    Measurement *mine;
    const MeasureSettings set = {.device = setup.device,
                                 .grid = GRID_SMALL,
                                 .budget_s = 0.0005,
                                 .transport = &profile.transport};
    (void)work;
    Err err = ARENA_NEW(r->arena, 1, &mine);
    if (err == OK) err = measure_rates(&set, r, mine);
    if (err == OK && r->rank == 0) profile.out = *mine;
    world_leave(r, err);
    return err;
}

static void links_are_measured(void **state)
{
    const int ranks = setup.on_shadow || setup.many ? FIRST_RANKS : 1;
    const WorldSettings set = {
        .ranks = ranks, .in_flight = 16, .records = 64, .timeout_s = 60, .body = measure_body};
    (void)state;
    if (world_run(&set) != OK) fail_msg("%s", err_text());
    const CostRates r = measurement_rates(&profile.out);
    printf("%s\n", profile.out.transport);
    assert_true(strstr(profile.out.transport, "NCCL") && r.gemm[BF16] && r.keyed[BF16]);
    for (int i = 0; i < profile.out.n; i++) {
        const Measured *row = &profile.out.row[i];
        printf("%-18s %12.3f %-8s %6.1f%%\n", row->what, row->value, row->unit, 100 * row->spread);
        assert_true(isfinite(row->value) && row->value > 0);
    }
    if (ranks == 1) return;
    assert_int_equal(r.n_tables, 6); /* three kinds, of two members and of four */
    for (int i = 0; i < r.n_tables; i++)
        for (int k = 0; k < r.table[i].seconds.n; k++) assert_true(r.table[i].seconds.y[k] > 0);
    assert_true(r.pairs && r.pairs->n == FIRST_RANKS);
    for (int i = 0; i < 6; i++) assert_true(r.pairs->Bps[i] > 0 && r.pairs->latency_s[i] > 0);
    assert_true(profile.out.slow_work >= 1 && profile.out.slow_transfer >= 1);
}

/* All transfers of device memory were calls of NCCL, none of a group that was not opened. */
static void nothing_is_left(void **state)
{
    (void)state;
    if (!setup.on_shadow) skip();
    const StandinCount count = setup.count();
    if (count.misuses > 0) fail_msg("%s", count.misuse);
    assert_true(count.launches > 100 && count.open == 0 && count.aborted == 0);
    assert_true(shadow_count().contexts == 0 && shadow_count().bytes == 0);
}

int main(int argc, char **argv)
{
    const int opened = graph_test_open(argc, argv);
    if (opened) return opened;
    profile.transport = (TransportSettings){
        .device = setup.device,
        .requested = TRANSPORT_NCCL,
        .object = access(SHEAF_NCCL_OBJECT, R_OK) == 0 ? SHEAF_NCCL_OBJECT : NULL,
        .library = argc > 1 ? argc > 2 ? argv[2] : NULL : STANDIN_OBJECT};
    const struct CMUnitTest tests[] = {cmocka_unit_test(links_are_measured),
                                       cmocka_unit_test(nothing_is_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
