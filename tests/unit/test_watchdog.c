/* test_watchdog.c -- the parent's watchdog finds ranks that hang, names them with their transfer,
 * and leaves others alone. Time is an argument. */
#define _DEFAULT_SOURCE
#include "support/expect.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/watchdog.h"

typedef struct {
    FlightRecorder *b;
    Watchdog dog;
    Arena temp;
    const char *why;
} Fixture;

static char *no_launcher(const char *name)
{
    (void)name;
    return NULL;
}

static void open_dog(Fixture *f, int ranks, double timeout_s)
{
    char *argv[] = {(char *)"train"};
    DO(flight_recorder_open(&f->b));
    DO(arena_open(&f->temp, "test", (size_t)1 << 24));
    watchdog_open(&f->dog, f->b, 1, argv, no_launcher, &f->temp);
    f->dog.worker = fork();
    if (f->dog.worker == 0) {
        pause();
        _exit(0);
    }
    DO(flight_recorder_rank(f->b, ranks, 0, ranks, 16));
    f->b->timeout_s = timeout_s;
}

static void close_dog(Fixture *f)
{
    kill(f->dog.worker, SIGKILL);
    waitpid(f->dog.worker, NULL, 0);
    watchdog_close(&f->dog);
    arena_close(&f->temp);
    flight_recorder_close(f->b);
}

static bool look(Fixture *f, double at_s)
{
    Text t = text_in(&f->temp);
    const bool end = watchdog_look(&f->dog, at_s, &t);
    DO(text_done(&t, &f->why));
    return end;
}

/* A transfer that the rank has begun; done_s < 0: it is in flight. */
static void post(RankStatus *s, double done_s)
{
    Recorder *r = &s->recorder;
    Record *x = &r->ring[r->total % r->cap];
    *x = (Record){.number = r->total,
                  .sequence = 54,
                  .kind = COMM_ALL_REDUCE,
                  .instr = 1,
                  .done_s = done_s,
                  .n_ranks = 2,
                  .rank = {0, 1}};
    r->total++;
}

/* Looks from `from` to `to` every half second; returns the time of the verdict, or 0. */
static double look_until(Fixture *f, double from, double to)
{
    for (double at = from; at <= to; at += 0.5)
        if (look(f, at)) return at;
    return 0;
}

static void a_stuck_rank_is_named(void **state)
{
    (void)state;
    Fixture f = {0};
    open_dog(&f, 2, 15);
    for (int i = 0; i < 2; i++) {
        atomic_store(&f.b->status[i].watch.step, 3);
        post(&f.b->status[i], i == 0 ? 0.5 : -1);
    }
    assert_true(look_until(&f, 100, 116.5) == 0); /* the ranks themselves report first */
    assert_true(look(&f, 117.5));
    assert_non_null(strstr(f.why, "rank 1 of 2 ("));
    assert_non_null(strstr(f.why, "has not moved for 17.5 s: step 3"));
    assert_non_null(strstr(f.why, "with all-reduce #54 over {0 1}, instruction 1 in flight"));
    assert_non_null(strstr(f.why, "(run.timeout_s=15)"));
    close_dog(&f);
}

/* A transfer that is on the device is no longer in flight on the host: it is named as the
 * latest. */
static void a_rank_stuck_on_its_device_is_named(void **state)
{
    (void)state;
    Fixture f = {0};
    open_dog(&f, 2, 5);
    for (int i = 0; i < 2; i++) {
        atomic_store(&f.b->status[i].watch.step, 3);
        post(&f.b->status[i], 0.5);
    }
    assert_true(look_until(&f, 100, 106.5) == 0);
    assert_true(look(&f, 107.5));
    assert_non_null(strstr(f.why, "rank 1 of 2 ("));
    assert_non_null(strstr(f.why, "its latest transfer was all-reduce #54 over {0 1}"));
    close_dog(&f);
}

/* One rank that moves is enough: the others wait for it, and their own timeout counts. */
static void a_rank_that_moves_is_left_alone(void **state)
{
    (void)state;
    Fixture f = {0};
    open_dog(&f, 2, 4);
    post(&f.b->status[1], -1);
    atomic_store(&f.b->status[0].watch.step, 1);
    for (int at = 0; at < 100; at++) {
        atomic_store(&f.b->status[0].watch.instr, at);
        assert_false(look(&f, 100 + 0.5 * at));
    }
    close_dog(&f);
}

static void idle_ranks_are_left_alone(void **state)
{
    (void)state;
    Fixture f = {0};
    open_dog(&f, 2, 4);
    post(&f.b->status[0], 1.0); /* ended: the ranks load, save or compile */
    assert_true(look_until(&f, 100, 200) == 0);
    close_dog(&f);
}

/* After a failure the process has 10 s to end; then the rank that hangs is named. */
static void a_failed_run_ends(void **state)
{
    (void)state;
    Fixture f = {0};
    open_dog(&f, 2, 600);
    look(&f, 100);
    strcpy(f.b->why, "rank 0: waited 5 s for all-reduce #54");
    atomic_store(&f.b->status[0].ended, 1);
    atomic_store(&f.b->failed, 1);
    assert_true(look_until(&f, 101, 200) == 111);
    assert_non_null(strstr(f.why, "rank 0: waited 5 s for all-reduce #54; 10 s later rank 1 of 2"));
    close_dog(&f);
}

/* SIGTERM ends a single rank that hangs in a step; without a signal it may take its time. */
static void a_signal_ends_a_stuck_run(void **state)
{
    (void)state;
    Fixture f = {0};
    open_dog(&f, 1, 5);
    atomic_store(&f.b->status[0].watch.step, 7);
    assert_true(look_until(&f, 100, 140) == 0);
    f.dog.told_s = 140;
    assert_true(look_until(&f, 140.5, 200) == 145);
    assert_non_null(strstr(f.why, "step 7"));
    assert_non_null(strstr(f.why, "does not end as it was told"));
    close_dog(&f);
}

/* Ctrl-Z stops parent and worker, a debugger only the worker: neither counts as time. */
static void stopped_time_does_not_count(void **state)
{
    (void)state;
    Fixture f = {0};
    open_dog(&f, 2, 5);
    post(&f.b->status[1], -1);
    assert_true(look_until(&f, 100, 104) == 0);
    assert_true(look_until(&f, 504, 506) == 0); /* 400 s away, 6 s idle */
    kill(f.dog.worker, SIGSTOP);
    while (!process_is_stopped(f.dog.worker)) usleep(1000);
    assert_true(look_until(&f, 506.5, 600) == 0);
    kill(f.dog.worker, SIGCONT);
    while (process_is_stopped(f.dog.worker)) usleep(1000);
    assert_true(look_until(&f, 600.5, 700) == 607);
    close_dog(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stuck_rank_is_named),
        cmocka_unit_test(a_rank_stuck_on_its_device_is_named),
        cmocka_unit_test(a_rank_that_moves_is_left_alone),
        cmocka_unit_test(idle_ranks_are_left_alone),
        cmocka_unit_test(a_failed_run_ends),
        cmocka_unit_test(a_signal_ends_a_stuck_run),
        cmocka_unit_test(stopped_time_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
