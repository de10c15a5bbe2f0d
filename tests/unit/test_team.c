/* test_team.c -- every tile runs exactly once, for any number of threads. Run it under TSan. */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <pthread.h>
#include <time.h>
#include <cmocka.h>

#include "base/team.h"

enum { MOST = 1031 };

/* Plain memory on purpose: TSan reports a race if two threads run one tile or if the caller reads
 * too early. */
typedef struct {
    int64_t n;
    int hits[MOST];
    int64_t round;
} Work;

static void hit(void *work, int64_t tile)
{
    Work *w = work;
    w->hits[tile] += (int)(1 + w->round);
}

static void expect_hits(const Work *w, int each, int threads)
{
    for (int64_t i = 0; i < MOST; i++) {
        const int want = i < w->n ? each : 0;
        if (w->hits[i] != want)
            fail_msg("%d threads, %d tiles: tile %d ran %d times, not %d", threads, (int)w->n,
                     (int)i, w->hits[i], want);
    }
}

static void every_tile_runs_once(void **state)
{
    static const int threads[] = {1, 2, 3, 4, 7, 16};
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 16, 17, 64, 333, MOST};
    (void)state;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        Team *team;
        assert_int_equal(team_open(&team, threads[t], NULL), OK);
        assert_int_equal(team_threads(team), threads[t]);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            Work w = {.n = sizes[s]};
            team_run(team, w.n, hit, &w);
            expect_hits(&w, 1, threads[t]);
        }
        team_close(team);
    }
}

/* Thousands of runs back to back: a lost wake-up hangs, a late worker hits a tile of the next run.
 * Sometimes the caller rests, so that the workers go to sleep. */
static void many_small_runs(void **state)
{
    static const int threads[] = {2, 3, 5};
    (void)state;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        Team *team;
        Work w = {.n = 0};
        int expected[MOST] = {0};
        assert_int_equal(team_open(&team, threads[t], NULL), OK);
        for (int round = 0; round < 3000; round++) {
            w.n = 1 + round % 11;
            w.round = round % 13;
            team_run(team, w.n, hit, &w);
            for (int i = 0; i < w.n; i++) expected[i] += 1 + round % 13;
            assert_memory_equal(w.hits, expected, sizeof expected);
            if (round % 300 == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        team_close(team);
    }
}

static void note_thread(void *work, int64_t tile) { ((pthread_t *)work)[tile] = pthread_self(); }

static void a_team_of_one_stays_on_the_calling_thread(void **state)
{
    pthread_t who[5];
    Team *one;
    (void)state;
    assert_int_equal(team_open(&one, 1, NULL), OK);
    Team *const teams[] = {NULL, one};
    for (int i = 0; i < 2; i++) {
        memset(who, 0, sizeof who);
        team_run(teams[i], 5, note_thread, who);
        for (int tile = 0; tile < 5; tile++) assert_true(pthread_equal(who[tile], pthread_self()));
        assert_int_equal(team_threads(teams[i]), 1);
    }
    team_close(one);
    team_close(NULL);
}

/* Each tile waits until the other has begun: only two threads at once can get through. */
static void meet(void *work, int64_t tile)
{
    (void)tile;
    pthread_barrier_wait(work);
}

static void threads_run_at_the_same_time(void **state)
{
    pthread_barrier_t barrier;
    Team *team;
    (void)state;
    assert_int_equal(team_open(&team, 3, NULL), OK);
    pthread_barrier_init(&barrier, NULL, 3);
    team_run(team, 6, meet, &barrier);
    pthread_barrier_destroy(&barrier);
    team_close(team);
}

static void *own_team(void *work)
{
    Work *w = work;
    Team *team;
    if (team_open(&team, 2, NULL) != OK) return NULL;
    for (int i = 0; i < 200; i++) team_run(team, w->n, hit, w);
    team_close(team);
    return w;
}

static void teams_are_independent(void **state)
{
    pthread_t rank[3];
    Work w[3];
    (void)state;
    memset(w, 0, sizeof w);
    for (int i = 0; i < 3; i++) {
        w[i].n = 5 + 4 * i;
        assert_int_equal(pthread_create(&rank[i], NULL, own_team, &w[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *done;
        pthread_join(rank[i], &done);
        assert_ptr_equal(done, &w[i]);
        expect_hits(&w[i], 200, 2);
    }
}

typedef struct {
    pthread_barrier_t all;
    bool alone[4];
} Alone;

/* As many tiles as threads, and each waits for the others: each thread runs one. */
static void note_cores(void *work, int64_t tile)
{
    Alone *c = work;
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    c->alone[tile] = CPU_COUNT(&cores) == 1;
    pthread_barrier_wait(&c->all);
}

/* More threads than cores, and a core that no machine has: the team works, unpinned. */
static void pinning_is_undone_and_never_fails(void **state)
{
    cpu_set_t before, during, after;
    int first = 0, want = 0, got = 0;
    Alone c = {.alone = {false}};
    Team *team;
    (void)state;
    sched_getaffinity(0, sizeof before, &before);
    while (!CPU_ISSET((size_t)first, &before)) first++;
    const int cpus[4] = {first, first + 1, first + 2, first + 3};
    assert_int_equal(team_open(&team, 4, &(TeamPinning){.cpu = cpus}), OK);
    sched_getaffinity(0, sizeof during, &during);
    assert_int_equal(CPU_COUNT(&during), 1);
    assert_true(CPU_ISSET((size_t)first, &during));
    pthread_barrier_init(&c.all, NULL, 4);
    team_run(team, 4, note_cores, &c);
    pthread_barrier_destroy(&c.all);
    for (int i = 0; i < 4; i++) {
        want += CPU_ISSET((size_t)(first + i), &before) != 0;
        got += c.alone[i];
    }
    assert_in_range(got, want, 4);
    team_close(team);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));

    Work w = {.n = 12};
    const int nowhere[2] = {1000000, -1};
    assert_int_equal(team_open(&team, 2, &(TeamPinning){.cpu = nowhere, .oversubscribed = true}),
                     OK);
    team_run(team, w.n, hit, &w);
    expect_hits(&w, 1, 2);
    team_close(team);
}

/* A run does not wait for a worker that is late. Here workers never run, since the caller keeps the
 * only core busy. All tiles must run, on the caller's time. */
static void a_run_does_not_wait_for_late_workers(void **state)
{
    cpu_set_t before;
    int first = 0;
    (void)state;
    sched_getaffinity(0, sizeof before, &before);
    while (!CPU_ISSET((size_t)first, &before)) first++;
    const int cpus[3] = {first, first, first};
    Work w = {.n = 40};
    Team *team;
    assert_int_equal(team_open(&team, 3, &(TeamPinning){.cpu = cpus, .oversubscribed = true}), OK);
    for (int i = 0; i < 500; i++) team_run(team, w.n, hit, &w);
    expect_hits(&w, 500, 3);
    team_close(team);
}

typedef struct {
    pthread_barrier_t all;
    pthread_t who[12];
} Shares;

/* The first tile of each share waits for the other threads, so no thread can steal before all have
 * begun. The thread of each share's first tile is then determined. */
static void note_share(void *work, int64_t tile)
{
    Shares *s = work;
    s->who[tile] = pthread_self();
    if (tile % 4 == 0) pthread_barrier_wait(&s->all);
}

static void each_thread_begins_with_its_share(void **state)
{
    Shares a, b;
    Team *team;
    (void)state;
    assert_int_equal(team_open(&team, 3, NULL), OK);
    pthread_barrier_init(&a.all, NULL, 3);
    pthread_barrier_init(&b.all, NULL, 3);
    team_run(team, 12, note_share, &a);
    team_run(team, 12, note_share, &b);
    for (int tile = 0; tile < 12; tile += 4) assert_true(pthread_equal(a.who[tile], b.who[tile]));
    assert_true(pthread_equal(a.who[0], pthread_self()));
    pthread_barrier_destroy(&a.all);
    pthread_barrier_destroy(&b.all);
    team_close(team);
}

static void impossible_sizes_are_refused(void **state)
{
    static const int threads[] = {0, -3, 1025};
    (void)state;
    for (int i = 0; i < 3; i++) {
        Team *team = NULL;
        assert_int_equal(team_open(&team, threads[i], NULL), ERR_CONFIG);
        assert_non_null(strstr(err_text(), "run.threads is between 1 and 1024"));
        assert_null(team);
    }
}

typedef struct {
    pthread_t caller;
    int tiles;            /* that the caller has run */
    int polls, strangers; /* calls; calls on other threads than the caller */
} Polled;

static void count_tile(void *polled, int64_t tile)
{
    Polled *p = polled;
    (void)tile;
    if (pthread_equal(pthread_self(), p->caller)) p->tiles++;
}

static void count_poll(void *polled)
{
    Polled *p = polled;
    p->polls++;
    if (!pthread_equal(pthread_self(), p->caller)) p->strangers++;
}

static void polls_after_each_tile_of_the_caller(void **state)
{
    static const int threads[] = {1, 2, 5};
    (void)state;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        Team *team;
        Polled p = {.caller = pthread_self()};
        assert_int_equal(team_open(&team, threads[t], NULL), OK);
        team_set_poll(team, count_poll, &p);
        for (int64_t n = 1; n < MOST; n += 31) team_run(team, n, count_tile, &p);
        assert_true(p.tiles > 0); /* the caller alone runs a region of one tile */
        assert_int_equal(p.polls, p.tiles);
        assert_int_equal(p.strangers, 0);
        team_set_poll(team, NULL, NULL);
        team_run(team, MOST, count_tile, &p);
        team_run(team, 1, count_tile, &p);
        assert_true(p.polls < p.tiles);
        team_close(team);
    }
    team_set_poll(NULL, count_poll, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_runs_once),
        cmocka_unit_test(polls_after_each_tile_of_the_caller),
        cmocka_unit_test(many_small_runs),
        cmocka_unit_test(a_team_of_one_stays_on_the_calling_thread),
        cmocka_unit_test(threads_run_at_the_same_time),
        cmocka_unit_test(teams_are_independent),
        cmocka_unit_test(pinning_is_undone_and_never_fails),
        cmocka_unit_test(a_run_does_not_wait_for_late_workers),
        cmocka_unit_test(each_thread_begins_with_its_share),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
