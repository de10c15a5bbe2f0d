/* test_clock_devices.c -- nodes whose devices differ: sums by hand, properties of every mesh. */
#include <math.h>
#include <stdlib.h>

#include "clock_cases.h"
#include "plan/search/map.h"

enum { MAX_TEST_NODES = 32 };

/* A cluster and the devices of its nodes; each starts at speed 1. */
typedef struct {
    Cluster cluster;
    CostNodes nodes;
    CostDevice device[MAX_TEST_NODES];
} Machine;

static void open_machine(Machine *m, const Cluster *cluster)
{
    *m = (Machine){.cluster = *cluster};
    for (int i = 0; i < MAX_TEST_NODES; i++) m->device[i].speed = 1;
    m->nodes = (CostNodes){.n_devices = MAX_TEST_NODES, .device = m->device};
    m->cluster.rates.nodes = &m->nodes;
}

static StepTime played(Fixture *f, const Cluster *cluster)
{
    StepTime t;
    const ClockInput in = {
        .cluster = cluster, .job = &f->set, .mesh = &f->mesh, .every_rank = true};
    DO(clock_step(&in, &f->arena, &f->temp, &t));
    return t;
}

/* Ranks with links that take no time, and work that is flops of GEMMs and attention alone. */
static Cluster flops_alone(int ranks_of_a_node)
{
    Cluster c = slow_cluster(true);
    for (int l = 0; l < 2; l++) {
        c.rates.level[l].latency_s = 0;
        c.rates.level[l].Bps = (double)INFINITY;
    }
    c.rates.level[0].ranks = ranks_of_a_node;
    c.rates.memory_Bps = c.rates.host_Bps = (double)INFINITY;
    c.rates.launch_s = 0;
    for (int t = 0; t < N_DTYPES; t++) {
        c.rates.flops_per_s[WORK_ATTENTION][t] = c.rates.flops_per_s[WORK_GEMM][t] = 1e9;
        c.rates.flops_per_s[WORK_POINTWISE][t] = (double)INFINITY;
    }
    return c;
}

static bool close_to(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

/* Nodes of one rank, and one micro-batch. Two stages work one after the other, so a step is the sum
 * of both; two ranks along dp work side by side, so a step is that of the slower one. */
static void two_nodes_by_hand(void **state)
{
    const Cluster plain = flops_alone(1);
    Machine m;
    Fixture f;
    (void)state;
    open_machine(&m, &plain);
    open_case(&f, &(ClockCase){.mesh = {.pp = 2}, .micros = 1, .schedule = "1f1b"});
    const StepTime even = played(&f, &plain);
    assert_true(close_to(even.step_s, even.model_flops / 1e9)); /* W0 + W1 */
    m.device[0].speed = 0.25;
    const double first_s = played(&f, &m.cluster).step_s; /* 4 W0 + W1 */
    const double w0 = (first_s - even.step_s) / 3;
    m.device[0].speed = 1;
    m.device[1].speed = 0.5;
    assert_true(w0 > 0.2 * even.step_s && w0 < 0.8 * even.step_s);
    assert_true(close_to(played(&f, &m.cluster).step_s, 2 * even.step_s - w0));
    const int at[] = {1, 0}; /* the slow node has the first stage */
    Cluster turned;
    DO(cluster_ordered(&m.cluster, at, 2, &f.arena, &turned));
    assert_true(close_to(played(&f, &turned).step_s, even.step_s + w0));
    close_case(&f);
    open_case(&f, &(ClockCase){.mesh = {.dp_shard = 2}, .micros = 1, .schedule = "1f1b"});
    const StepTime both = played(&f, &plain), slow = played(&f, &m.cluster);
    assert_true(close_to(both.step_s, both.model_flops / 2e9));
    assert_true(close_to(slow.step_s, 2 * both.step_s));
    assert_true(
        close_to(slow.spent_s[TIME_GEMM] + slow.spent_s[TIME_ATTENTION], 1.5 * both.step_s));
    close_case(&f);
}

static bool same_time(const StepTime *a, const StepTime *b)
{
    bool same = a->step_s == b->step_s && a->played == b->played;
    for (int k = 0; k < N_TIMES; k++)
        same = same && a->spent_s[k] == b->spent_s[k] && a->path_s[k] == b->path_s[k];
    return same;
}

/* Devices of speed 1 change no bit; each slower one makes no step shorter, and some longer. */
static void slower_is_never_shorter(void **state)
{
    int longer = 0, all = 0;
    (void)state;
    srand(3);
    for (int i = 0; i < 2 * N_CASES; i++) {
        const Cluster plain = slow_cluster(i % 2 == 0);
        Machine m;
        Fixture f;
        open_machine(&m, &plain);
        open_case(&f, &cases[i / 2]);
        const StepTime before = played(&f, &plain), same = played(&f, &m.cluster);
        if (!same_time(&before, &same)) fail_msg("case %d: speed 1 changes the step", i);
        double last_s = before.step_s;
        for (int k = 0; k < 4; k++, all++) {
            m.device[rand() % ((f.mesh.world + 1) / 2)].speed *= 0.7;
            const double now_s = played(&f, &m.cluster).step_s;
            if (now_s < last_s * (1 - 1e-12))
                fail_msg("case %d: %.9g s, %.9g s with a slower node", i, last_s, now_s);
            longer += now_s > last_s * (1 + 1e-9);
            last_s = now_s;
        }
        close_case(&f);
    }
    assert_true(2 * longer > all);
}

/* One rank stands for those that have the same devices at all other coordinates. */
static void ranks_with_like_devices_are_played_once(void **state)
{
    int fewer = 0;
    (void)state;
    srand(7);
    for (int i = 0; i < 4 * N_CASES; i++) {
        const Cluster plain = slow_cluster(i % 3 != 0);
        Machine m;
        Fixture f;
        open_machine(&m, &plain);
        open_case(&f, &cases[i / 4]);
        if (i % 2) make_even(&f);
        const int nodes = (f.mesh.world + 1) / 2, runs = 1 + rand() % 3;
        for (int k = 0; k < nodes; k++) m.device[k].speed = 1 - 0.3 * (k * runs / nodes);
        if (i % 5 == 0) m.device[rand() % nodes].speed = 0.2;
        const ClockInput in = {
            .cluster = &m.cluster, .job = &f.set, .mesh = &f.mesh, .keeps_order = true};
        StepTime t;
        DO(clock_step(&in, &f.arena, &f.temp, &t));
        const StepTime all = played(&f, &m.cluster);
        if (!close_to(t.step_s, all.step_s) || !close_to(t.model_flops, all.model_flops))
            fail_msg("case %d: %.9g s, %.9g s by every rank", i, t.step_s, all.step_s);
        for (int k = 0; k < N_TIMES && cases[i / 4].zero == 0; k++) /* no homes of other sizes */
            assert_true(fabs(t.spent_s[k] - all.spent_s[k]) <= 1e-9 * all.step_s);
        fewer += t.played < all.played;
        close_case(&f);
    }
    assert_true(fewer > 20);
}

/* Two slow ranks of eight: means count each rank once, whatever tapes are played. */
static void means_are_over_ranks(void **state)
{
    const Cluster plain = slow_cluster(true);
    Machine m;
    Fixture f;
    StepTime t;
    (void)state;
    open_machine(&m, &plain);
    m.device[1].speed = 0.5;
    open_case(&f, &(ClockCase){.mesh = {.dp_shard = 8}, .micros = 2, .schedule = "1f1b"});
    const ClockInput in = {
        .cluster = &m.cluster, .job = &f.set, .mesh = &f.mesh, .keeps_order = true};
    DO(clock_step(&in, &f.arena, &f.temp, &t));
    const StepTime all = played(&f, &m.cluster);
    assert_int_equal(t.played, 2);
    for (int k = 0; k < N_TIMES; k++) assert_true(fabs(t.spent_s[k] - all.spent_s[k]) < 1e-12);
    close_case(&f);
}

/* All nodes slower by 2, and free links: each second of work is twice as long. */
static void all_slower_is_twice_as_long(void **state)
{
    const Cluster plain = flops_alone(2);
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        Machine m;
        Fixture f;
        open_machine(&m, &plain);
        open_case(&f, &cases[i]);
        const double before = played(&f, &plain).step_s;
        for (int k = 0; k < MAX_TEST_NODES; k++) m.device[k].speed = 0.5;
        assert_true(close_to(played(&f, &m.cluster).step_s, 2 * before));
        assert_true(cost_speeds(&m.cluster.rates, f.mesh.world) == 0.5 * f.mesh.world);
        close_case(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_nodes_by_hand), cmocka_unit_test(slower_is_never_shorter),
        cmocka_unit_test(ranks_with_like_devices_are_played_once),
        cmocka_unit_test(means_are_over_ranks), cmocka_unit_test(all_slower_is_twice_as_long)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
