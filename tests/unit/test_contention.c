/* test_contention.c -- when a pinned team is released from its cores and pinned again, by a clock
 * of the test; the kernel's count of waiting time; and a team whose core has a busy neighbor. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/contention.h"
#include "base/team.h"

#define MS INT64_C(1000000)

/* Checks every 100 ms from *now on, with threads that waited `percent` of the time, until the
 * verdict is not CORES_KEEP or `limit_ms` have passed. */
static CoresVerdict play(Contention *c, int64_t *now, int percent, int64_t limit_ms)
{
    const int64_t end = *now + limit_ms * MS;
    while (*now < end) {
        *now += 100 * MS;
        assert_true(contention_due(c, *now));
        const CoresVerdict verdict = contention_check(c, *now, percent * MS);
        assert_false(contention_due(c, *now + 99 * MS));
        if (verdict != CORES_KEEP) return verdict;
    }
    return CORES_KEEP;
}

static void free_cores_are_kept(void **state)
{
    (void)state;
    Contention c = {0};
    int64_t now = 7000 * MS;
    assert_int_equal(play(&c, &now, 9, 3600000), CORES_KEEP);
    for (int i = 0; i < 50; i++) { /* a short disturbance now and then */
        assert_int_equal(play(&c, &now, 80, 100), CORES_KEEP);
        assert_int_equal(play(&c, &now, 0, 100), CORES_KEEP);
    }
}

/* Time that a thread waited before the first check is not counted. */
static void contended_cores_are_released(void **state)
{
    (void)state;
    Contention c = {0};
    int64_t now = 7000 * MS;
    const int64_t start = now;
    assert_int_equal(play(&c, &now, 50, 10000), CORES_RELEASE);
    assert_int_equal(now - start, 300 * MS);
}

/* The pause grows while the neighbor stays: the share of time that is lost falls below 1 in 100. */
static void pauses_grow(void **state)
{
    (void)state;
    Contention c = {0};
    int64_t now = 7000 * MS, lost = 0;
    const int64_t start = now;
    for (int64_t pause = 5000; pause <= 160000; pause *= 2) {
        int64_t from = now;
        assert_int_equal(play(&c, &now, 50, 10000), CORES_RELEASE);
        lost += now - from;
        from = now;
        assert_int_equal(play(&c, &now, 50, 1000000), CORES_PIN);
        assert_int_equal(now - from, pause * MS);
    }
    assert_true(lost * 100 < now - start);
    assert_int_equal(play(&c, &now, 0, 400000), CORES_KEEP); /* the neighbor has gone */
    assert_int_equal(play(&c, &now, 50, 10000), CORES_RELEASE);
    const int64_t from = now;
    assert_int_equal(play(&c, &now, 0, 1000000), CORES_PIN);
    assert_int_equal(now - from, 5000 * MS);
}

static atomic_bool stop;

/* Runs on one core until `stop`; returns the time that it has waited for the core. */
static void *busy(void *core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t) * (int *)core, &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    while (!atomic_load(&stop)) spin_pause();
    *(int *)core = contention_waited_ns((int)syscall(SYS_gettid)) > 50 * MS;
    return NULL;
}

static void nothing(void *work, int64_t tile)
{
    (void)work;
    (void)tile;
}

/* Two busy threads on the core of the team: it is released within a few seconds, gets all its cores
 * back, and both neighbors have waited. */
static void a_neighbor_releases_the_team(void **state)
{
    (void)state;
    cpu_set_t before, after;
    Cores cores;
    Team *team;
    cores_find(&cores);
    int core[2] = {cores.cpu[0], cores.cpu[0]};
    pthread_t neighbor[2];
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    for (int i = 0; i < 2; i++) pthread_create(&neighbor[i], NULL, busy, &core[i]);
    assert_int_equal(team_open(&team, 1, &(TeamPinning){cores.cpu, false}), OK);
    const double start = now_s();
    while (now_s() < start + 0.5) team_run(team, 1, nothing, NULL);
    assert_int_equal(team_releases(team), 0); /* pinned in any case */
    team_share_cores(team);
    while (team_releases(team) == 0 && now_s() < start + 60) team_run(team, 1, nothing, NULL);
    assert_int_equal(team_releases(team), 1);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) pthread_join(neighbor[i], NULL);
    assert_true(core[0] && core[1]);
    team_close(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(free_cores_are_kept),
        cmocka_unit_test(contended_cores_are_released),
        cmocka_unit_test(pauses_grow),
        cmocka_unit_test(a_neighbor_releases_the_team),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
