/* test_launch.c -- cores of the ranks of a run: threads of one process, processes of a launcher,
 * and too few cores. */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "cli/launch.h"
#include "world/flight_recorder.h"

/* A run with these keys, launched as process `mine` of `ranks` on this machine; ranks == 1: without
 * a launcher. */
static Launch launched(int ranks, int mine, const char *threads, const char *pin)
{
    static char mesh[32], size[16], rank[16];
    Arena arena;
    Config config;
    Launch l = {.by = {.ranks = ranks, .rank = mine, .by = "mpirun"}};
    const char *set[] = {"model.name=gpt2-tiny", mesh, pin, threads};
    const Args args = {.set = set, .n_set = threads ? 4 : 3};
    snprintf(mesh, sizeof mesh, "mesh.dp=%d", ranks);
    snprintf(size, sizeof size, "%d", ranks);
    snprintf(rank, sizeof rank, "%d", mine);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", size, 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", rank, 1);
    assert_int_equal(arena_open(&arena, "launch", (size_t)1 << 28), OK);
    if (launch_config(&l, &args, &arena, &config) != OK) fail_msg("%s", err_text());
    arena_close(&arena);
    return l;
}

static const char *threads_text(int n)
{
    static char text[32];
    snprintf(text, sizeof text, "run.threads=%d", n);
    return text;
}

/* Skips the test if a quota or a mask limits the cores. */
static int whole_cores(void)
{
    Cores c;
    cores_find(&c);
    if (c.quota < c.n || c.bound) skip();
    return c.n;
}

/* The message names what the user can change: the launcher's number of ranks. */
static void ranks_that_do_not_fit_the_mesh(void **state)
{
    static const struct {
        int ranks;
        const char *set[2], *message;
    } row[] = {
        {3,
         {"mesh.tp=2", "mesh.pp=1"},
         "mpirun started 3 ranks, and tp x cp x pp = 2 x 1 x 1 = 2 does not divide them; use -n 2 "
         "or -n 4"},
        {3,
         {"mesh.tp=2", "mesh.pp=4"},
         "mpirun started 3 ranks, and tp x cp x pp = 2 x 1 x 4 = 8 does not divide them; use -n "
         "8, or change the mesh"},
        {6,
         {"mesh.tp=2", "mesh.dp=2"},
         "mpirun started 6 ranks, and the mesh dp x tp x cp x pp = 2 x 2 x 1 x 1 has 4; use -n 4, "
         "or mesh.dp=-1"},
        {2,
         {"mesh.dp=1", "mesh.pp=1"},
         "mpirun started 2 ranks, and the mesh dp x tp x cp x pp = 1 x 1 x 1 x 1 has 1; use -n 1"},
        {6, {"mesh.tp=2", "mesh.dp=-1"}, NULL},
        {6, {"mesh.tp=2", "mesh.dp_shard=3"}, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Arena arena;
        Config config;
        Launch l = {.by = {.ranks = row[i].ranks, .by = "mpirun"}};
        const char *set[] = {"model.name=gpt2-tiny", row[i].set[0], row[i].set[1]};
        const Args args = {.set = set, .n_set = 3};
        assert_int_equal(arena_open(&arena, "launch", (size_t)1 << 28), OK);
        const Err err = launch_config(&l, &args, &arena, &config);
        assert_int_equal(err, row[i].message ? ERR_CONFIG : OK);
        if (row[i].message && !strstr(err_text(), row[i].message)) fail_msg("%s", err_text());
        arena_close(&arena);
    }
}

static void threads_of_one_process(void **state)
{
    const int n = whole_cores();
    (void)state;
    Launch l = launched(1, 0, threads_text(n), "run.pin=auto");
    assert_true(l.pins);
    assert_string_equal(l.why_free, "");
    assert_false(launched(1, 0, threads_text(n), "run.pin=false").pins);
    l = launched(1, 0, threads_text(n + 1), "run.pin=true");
    assert_false(l.pins);
    assert_non_null(strstr(l.why_free, "threads are not pinned: 1 ranks of"));
    if (n == 1) return;
    assert_false(
        launched(1, 0, threads_text(1), "run.pin=auto").pins); /* other ranks may use the rest */
    assert_true(launched(1, 0, threads_text(1), "run.pin=true").pins);
}

static void processes_of_one_machine(void **state)
{
    const int n = whole_cores();
    cpu_set_t during;
    Team *team;
    (void)state;
    if (n == 1) skip();
    for (int rank = 0; rank < n; rank++) {
        const Launch l = launched(n, rank, NULL, "run.pin=auto");
        assert_int_equal(l.threads, 1);
        assert_true(l.pins);
        assert_int_equal(launch_team(&l, 0, &team), OK);
        sched_getaffinity(0, sizeof during, &during);
        team_close(team);
        assert_int_equal(CPU_COUNT(&during), 1);
        assert_true(CPU_ISSET((size_t)l.cores.cpu[rank], &during));
    }
    const Launch l = launched(n + 1, n, NULL, "run.pin=auto");
    assert_int_equal(l.threads, 1);
    assert_false(l.pins);
    assert_non_null(strstr(l.why_free, "threads are not pinned"));
}

/* A launcher that binds each process to its own cores has made the choice. */
static void bound_process(void **state)
{
    cpu_set_t all, one;
    const int n = whole_cores();
    Cores c;
    (void)state;
    if (n == 1) skip();
    cores_find(&c);
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    CPU_SET((size_t)c.cpu[n - 1], &one);
    sched_setaffinity(0, sizeof one, &one);
    const Launch l = launched(n, 0, NULL, "run.pin=auto");
    sched_setaffinity(0, sizeof all, &all);
    assert_int_equal(l.sharing, 1);
    assert_int_equal(l.threads, 1);
    assert_true(l.pins);
    assert_int_equal(l.cores.cpu[0], c.cpu[n - 1]);
}

/* Refused before anything is allocated for each rank. */
static void too_many_threads_are_refused(void **state)
{
    const char *set[] = {"model.name=gpt2-tiny", "mesh.dp=1048576", "batch.global=1048576"};
    const Args args = {.set = set, .n_set = 3};
    Launch l = {.by = {.ranks = 1}};
    Arena arena;
    Config config;
    (void)state;
    assert_int_equal(arena_open(&arena, "launch", (size_t)1 << 28), OK);
    assert_int_equal(launch_config(&l, &args, &arena, &config), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "1048576 ranks as threads of one process: "));
    assert_non_null(strstr(err_text(), " are the most; start more as processes, with mpirun"));
    arena_close(&arena);
}

static void the_most_threads_fit_the_flight_recorder(void **state)
{
    FlightRecorder *f;
    int64_t most = 1;
    (void)state;
    while (flight_recorder_check(most + 1) == OK) most++;
    assert_true(most >= 1024);
    assert_int_equal(flight_recorder_open(&f), OK);
    assert_int_equal(flight_recorder_rank(f, (int)most, 0, (int)most, 1 << 20), OK);
    assert_true(f->status[most - 1].recorder.cap >= 16);
    flight_recorder_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_do_not_fit_the_mesh),
        cmocka_unit_test(too_many_threads_are_refused),
        cmocka_unit_test(the_most_threads_fit_the_flight_recorder),
        cmocka_unit_test(threads_of_one_process),
        cmocka_unit_test(processes_of_one_machine),
        cmocka_unit_test(bound_process),
    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
