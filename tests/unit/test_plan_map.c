/* test_plan_map.c -- orders of the nodes: the search against brute force over all orders. */
#include <math.h>
#include <stdlib.h>

#include "clock_cases.h"
#include "plan/search/map.h"

enum { MAX_TEST_NODES = 12 };

/* A cluster of nodes of two ranks; links start as those of the level. */
typedef struct {
    Cluster cluster;
    CostNodes nodes;
    CostLink link[2];
    CostDevice device[MAX_TEST_NODES];
    uint8_t between[MAX_TEST_NODES * MAX_TEST_NODES];
    int n;
} Machine;

static void open_machine(Machine *m, int n)
{
    *m = (Machine){.cluster = slow_cluster(true), .n = n};
    m->link[0] = (CostLink){.latency_s = 2e-4, .Bps = 2e6};
    m->link[1] = (CostLink){.latency_s = 4e-5, .Bps = 3e7};
    m->nodes = (CostNodes){.n = n, .n_links = 2, .link = m->link, .between = m->between};
    m->cluster.rates.nodes = &m->nodes;
}

static void connect_nodes(Machine *m, int a, int b, int link)
{
    m->between[a * m->n + b] = m->between[b * m->n + a] = (uint8_t)link;
}

static void open_mesh(Fixture *f, MeshSizes mesh, int zero)
{
    const ClockCase c = {.mesh = mesh, .zero = zero, .micros = 4, .schedule = "1f1b"};
    open_case(f, &c);
}

static NodeMap mapped_in(Fixture *f, const Machine *m, const double *need, int max_plays)
{
    NodeMap map;
    const ClockInput in = {.cluster = &m->cluster, .job = &f->set, .mesh = &f->mesh};
    DO(plan_map(&in, need, max_plays, &f->arena, &f->temp, &map));
    bool used[MAX_TEST_NODES] = {false};
    assert_int_equal(map.n, m->n);
    if (isinf(map.step_s)) return map;
    for (int i = 0; i < map.n; i++) {
        assert_true(map.at[i] >= 0 && map.at[i] < m->n && !used[map.at[i]]);
        used[map.at[i]] = true;
    }
    return map;
}

static NodeMap mapped(Fixture *f, const Machine *m, int max_plays)
{
    return mapped_in(f, m, NULL, max_plays);
}

/* ---- all orders ---- */

typedef struct {
    Fixture *f;
    StepClock *clock;
    const Machine *machine;
    const double *need; /* as in plan_map */
    int at[MAX_TEST_NODES];
    double best_s, worst_s;
} BruteForce;

static double played(BruteForce *b)
{
    Cluster c;
    StepTime t;
    DO(cluster_ordered(&b->machine->cluster, b->at, b->machine->n, &b->f->temp, &c));
    DO(clock_play(b->clock, &c, &t));
    return t.step_s;
}

static void all_orders(BruteForce *b, int i)
{
    if (i == b->machine->n) {
        const double step_s = played(b);
        if (b->best_s == 0 || step_s < b->best_s) b->best_s = step_s;
        if (step_s > b->worst_s) b->worst_s = step_s;
        return;
    }
    for (int node = 0; node < b->machine->n; node++) {
        bool used = false;
        for (int k = 0; k < i; k++) used = used || b->at[k] == node;
        if (used || (b->need && b->need[i] > b->machine->device[node].memory_bytes)) continue;
        b->at[i] = node;
        all_orders(b, i + 1);
    }
}

static BruteForce brute_force_in(Fixture *f, const Machine *m, const double *need)
{
    BruteForce b = {.f = f, .machine = m, .need = need};
    ClockInput *in; /* of the clock, which outlives this call */
    DO(ARENA_NEW(&f->arena, 1, &in));
    *in = (ClockInput){.cluster = &m->cluster, .job = &f->set, .mesh = &f->mesh};
    DO(clock_open(in, &f->arena, &f->temp, &b.clock));
    all_orders(&b, 0);
    return b;
}

static BruteForce brute_force(Fixture *f, const Machine *m) { return brute_force_in(f, m, NULL); }

/* ---- tests ---- */

/* Random links between 4 nodes: the answer is the best of all 24 orders, and has its time. */
static void answers_are_the_best_of_all_orders(void **state)
{
    static const MeshSizes mesh[] = {{.dp_shard = 4, .pp = 2},
                                     {.pp = 4, .tp = 2},
                                     {.dp_shard = 8},
                                     {.dp_shard = 2, .pp = 2, .cp = 2},
                                     {.pp = 4, .dp_shard = 2}};
    int matters = 0;
    (void)state;
    srand(5);
    for (int i = 0; i < 15; i++) {
        Fixture f;
        Machine m;
        open_machine(&m, 4);
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < a; b++) connect_nodes(&m, a, b, rand() % 3);
        open_mesh(&f, mesh[i % 5], i % 4);
        const BruteForce all = brute_force(&f, &m);
        const NodeMap map = mapped(&f, &m, 10000);
        if (fabs(map.step_s - all.best_s) > 1e-9 * all.best_s)
            fail_msg("case %d: %.9g s, the best order takes %.9g s", i, map.step_s, all.best_s);
        assert_true(map.complete && map.bound_s == map.step_s);
        assert_true(map.alike_s <= map.step_s * (1 + 1e-9) && map.step_s <= map.in_order_s);
        BruteForce own = {.f = &f, .clock = all.clock, .machine = &m};
        for (int k = 0; k < 4; k++) own.at[k] = map.at[k];
        assert_true(played(&own) == map.step_s);
        matters += all.worst_s > 1.02 * all.best_s;
        close_case(&f);
    }
    assert_true(matters > 8);
}

/* Two islands, whose nodes alternate in the order of numbers: each stage gets one. */
static void stages_stay_on_islands(void **state)
{
    Fixture f;
    Machine m;
    (void)state;
    open_machine(&m, 6);
    for (int a = 0; a < 6; a++)
        for (int b = 0; b < a; b++) connect_nodes(&m, a, b, (a - b) % 2);
    open_mesh(&f, (MeshSizes){.dp_shard = 6, .pp = 2}, 1);
    const BruteForce all = brute_force(&f, &m);
    const NodeMap map = mapped(&f, &m, 10000);
    assert_true(map.complete && fabs(map.step_s - all.best_s) <= 1e-9 * all.best_s);
    assert_true(map.step_s < 0.9 * map.in_order_s && map.plays < 300);
    for (int i = 0; i < 6; i++) assert_int_equal(map.at[i] % 2, map.at[i / 3 * 3] % 2);
    close_case(&f);
}

/* One slow link, which pipeline stages need not use: the step is that without it. */
static void slow_pairs_are_avoided(void **state)
{
    Fixture f;
    Machine m;
    (void)state;
    open_machine(&m, 4);
    connect_nodes(&m, 1, 2, 1);
    open_mesh(&f, (MeshSizes){.tp = 2, .pp = 4}, 0);
    const BruteForce all = brute_force(&f, &m);
    const NodeMap map = mapped(&f, &m, 10000);
    assert_true(map.complete && map.step_s <= 1.02 * all.best_s);
    assert_true(map.step_s == map.alike_s && map.in_order_s > 1.2 * map.step_s);
    close_case(&f);
}

/* If the plays do not suffice, the bound is one of all orders. */
static void too_few_plays_leave_a_bound(void **state)
{
    Fixture f;
    Machine m;
    (void)state;
    open_machine(&m, 4);
    srand(11);
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < a; b++) connect_nodes(&m, a, b, a == 3 || b == 0 ? 1 : 2);
    open_mesh(&f, (MeshSizes){.dp_shard = 2, .pp = 4}, 1);
    const BruteForce all = brute_force(&f, &m);
    int incomplete = 0;
    for (int plays = 3; plays < 24; plays += 4) {
        const NodeMap map = mapped(&f, &m, plays);
        assert_true(map.plays <= plays + 1 && map.bound_s <= all.best_s * (1 + 1e-9));
        assert_true(map.step_s >= all.best_s * (1 - 1e-9) && map.bound_s <= map.step_s);
        incomplete += !map.complete;
    }
    assert_true(incomplete > 0);
    close_case(&f);
}

/* 12 nodes that are alike but for one slow link and one island: few orders differ. */
static void like_nodes_are_tried_once(void **state)
{
    Fixture f;
    Machine m;
    (void)state;
    open_machine(&m, 12);
    connect_nodes(&m, 3, 7, 1);
    for (int b = 0; b < 12; b++)
        if (b != 11) connect_nodes(&m, 11, b, 2);
    open_mesh(&f, (MeshSizes){.dp_shard = 12, .tp = 2}, 1);
    const NodeMap map = mapped(&f, &m, 3000);
    assert_true(map.complete && map.plays < 3000);
    close_case(&f);
}

/* Random links, speeds and memory: the answer is the best of the orders whose nodes have room. */
static void nodes_have_room(void **state)
{
    int limited = 0, none = 0;
    (void)state;
    srand(17);
    for (int i = 0; i < 24; i++) {
        Fixture f;
        Machine m;
        double need[4];
        open_machine(&m, 4);
        m.nodes.n_devices = 4;
        m.nodes.device = m.device;
        for (int a = 0; a < 4; a++) {
            m.device[a] = (CostDevice){1 - 0.2 * (rand() % 3), 1e6 * (1 + rand() % 4)};
            need[a] = 1e6 * (1 + rand() % 3 * (rand() % 2)) - 1;
            for (int b = 0; b < a; b++) connect_nodes(&m, a, b, rand() % 3);
        }
        open_mesh(&f, i % 2 ? (MeshSizes){.pp = 4, .tp = 2} : (MeshSizes){.pp = 2, .dp_shard = 4},
                  1);
        const BruteForce any = brute_force(&f, &m), all = brute_force_in(&f, &m, need);
        const NodeMap map = mapped_in(&f, &m, need, 10000);
        assert_true(map.complete && isinf(map.step_s) == (all.best_s == 0));
        none += all.best_s == 0;
        if (all.best_s > 0) {
            assert_true(fabs(map.step_s - all.best_s) <= 1e-9 * all.best_s);
            for (int b = 0; b < 4; b++) assert_true(need[b] <= m.device[map.at[b]].memory_bytes);
            limited += all.best_s > any.best_s * (1 + 1e-9);
        }
        close_case(&f);
    }
    assert_true(limited > 3 && none > 0);
}

static void odd_ranks_are_refused(void **state)
{
    Fixture f;
    Machine m;
    NodeMap map;
    (void)state;
    open_machine(&m, 4);
    open_mesh(&f, (MeshSizes){.dp_shard = 3}, 0);
    const ClockInput in = {.cluster = &m.cluster, .job = &f.set, .mesh = &f.mesh};
    expect_error("3 ranks", plan_map(&in, NULL, 10, &f.arena, &f.temp, &map), ERR_CONFIG,
                 "3 ranks are no whole number of nodes of 2 ranks");
    close_case(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_the_best_of_all_orders),
                                       cmocka_unit_test(stages_stay_on_islands),
                                       cmocka_unit_test(slow_pairs_are_avoided),
                                       cmocka_unit_test(too_few_plays_leave_a_bound),
                                       cmocka_unit_test(like_nodes_are_tried_once),
                                       cmocka_unit_test(nodes_have_room),
                                       cmocka_unit_test(odd_ranks_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
