/* test_ranks_world.c -- a body on every rank: world_run returns the first error with its rank, and
 * no wait outlives it. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/team.h"
#include "base/clock.h"
#include "world/world.h"

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static Err sum(WorldRank *w, double *x)
{
    TRY(comm_register(w->comm, 0, x, sizeof *x));
    const Ref at = {w->rank, 0, 0, 1, F64};
    const Transfer t = {
        .kind = COMM_ALL_REDUCE, .group = w->all, .from = at, .to = at, .instr = 17};
    const Err err = comm_do(w->comm, &t);
    world_leave(w, err); /* x is on the caller's stack */
    return err;
}

static WorldSettings world_of(int ranks, Err (*body)(WorldRank *, void *), void *work)
{
    return (WorldSettings){
        .ranks = ranks, .in_flight = 8, .records = 64, .timeout_s = 20, .body = body, .work = work};
}

static Err every_rank_runs(WorldRank *w, void *work)
{
    double x = 1 << w->rank;
    TRY(sum(w, &x));
    ((double *)work)[w->rank] = x;
    return w->place == w->rank && w->ranks == w->all.n ? OK : err_fail(ERR_CHECK, "lost");
}

static void all_ranks_run(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++) {
        double x[5] = {0};
        const WorldSettings set = world_of(ranks, every_rank_runs, x);
        if (world_run(&set) != OK) fail_msg("%s", err_text());
        for (int i = 0; i < ranks; i++) assert_true(x[i] == (1 << ranks) - 1);
    }
}

/* Rank `*work` fails while the others wait for it; later failures are not reported. */
static Err one_fails(WorldRank *w, void *work)
{
    double x = 1;
    TRY(sum(w, &x));
    if (w->rank != *(int *)work) return sum(w, &x);
    sleep_ms(30);
    return err_fail(ERR_NOMEM, "planted %d", w->rank);
}

static void the_first_error_is_returned(void **state)
{
    (void)state;
    for (int bad = 0; bad < 4; bad++) {
        char want[64];
        const WorldSettings set = world_of(4, one_fails, &bad);
        const double start = now_s();
        assert_int_equal(world_run(&set), ERR_NOMEM);
        assert_true(now_s() - start < 5); /* the timeout is 20 */
        snprintf(want, sizeof want, "rank %d: planted %d", bad, bad);
        assert_string_equal(err_text(), want);
    }
}

static Err alone_fails(WorldRank *w, void *work)
{
    (void)w, (void)work;
    return err_fail(ERR_CONFIG, "planted");
}

static void one_rank_is_not_named(void **state)
{
    (void)state;
    const WorldSettings set = world_of(1, alone_fails, NULL);
    assert_int_equal(world_run(&set), ERR_CONFIG);
    assert_string_equal(err_text(), "planted");
}

/* Two ranks fail before a phase that all enter; the lower one is reported. */
static Err two_disagree(WorldRank *w, void *work)
{
    (void)work;
    const Err mine = w->rank == 2 || w->rank == 3 ? err_fail(ERR_CONFIG, "no %d", w->rank) : OK;
    if (w->rank == 3) sleep_ms(20);
    TRY(world_agree(w, mine));
    return err_fail(ERR_CHECK, "not reached");
}

static void ranks_agree_before_a_phase(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        const WorldSettings set = world_of(5, two_disagree, NULL);
        assert_int_equal(world_run(&set), ERR_CONFIG);
        assert_string_equal(err_text(), "rank 2: no 2");
    }
}

/* The same fault on all ranks is reported without a rank. */
static Err all_refuse(WorldRank *w, void *work)
{
    (void)work;
    TRY(world_agree(w, err_fail(ERR_CONFIG, "no such key")));
    return OK;
}

static void a_fault_of_all_names_none(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        const WorldSettings set = world_of(4, all_refuse, NULL);
        assert_int_equal(world_run(&set), ERR_CONFIG);
        assert_string_equal(err_text(), "no such key");
    }
}

/* Rank 1 does not reach the second sum in time. */
static Err one_stops(WorldRank *w, void *work)
{
    double x = 1;
    (void)work;
    TRY(sum(w, &x));
    if (w->rank == 1) sleep_ms(400);
    return sum(w, &x);
}

static void a_rank_that_stops_is_named(void **state)
{
    (void)state;
    WorldSettings set = world_of(3, one_stops, NULL);
    set.timeout_s = 0.1;
    assert_int_equal(world_run(&set), ERR_PEER);
    if (!strstr(err_text(), "(run.timeout_s=0.1) for all-reduce #1 over {0 1 2}, instruction 17: "
                            "rank 1 has not posted it"))
        fail_msg("%s", err_text());
}

/* recorder.json of a world that failed reads back to the same report. */
static void flight_recorder_file_reads_back(void **state)
{
    (void)state;
    Arena arena;
    FlightRecorder *recorder, reread;
    const char *words[2], *reason;
    char path[64];
    snprintf(path, sizeof path, "test_ranks_world.%d.json",
             (int)getpid()); /* in the working directory */
    WorldSettings set = world_of(3, one_stops, NULL);
    assert_int_equal(flight_recorder_open(&recorder), OK);
    assert_int_equal(arena_open(&arena, "words", 1 << 24), OK);
    set.timeout_s = 0.1;
    set.flight_recorder = recorder;
    assert_int_equal(world_run(&set), ERR_PEER);
    assert_int_equal(recorder->n_here, 3);
    if (flight_recorder_write(recorder, path, err_text()) != OK) fail_msg("%s", err_text());
    if (flight_recorder_read(path, &arena, &reread, &reason) != OK) fail_msg("%s", err_text());
    assert_string_equal(reason, err_text());
    for (int i = 0; i < 2; i++) {
        Text t = text_in(&arena);
        flight_recorder_report(i ? &reread : recorder, 5, &t);
        assert_int_equal(text_done(&t, &words[i]), OK);
    }
    assert_string_equal(words[0], words[1]);
    assert_non_null(strstr(words[0], "  rank 0: between steps; waits for all-reduce #1 over {0 1 "
                                     "2}, instruction 17: rank 1 has not posted it\n"));
    assert_null(strstr(words[0], "rank 1: between steps; waits"));
    remove(path);
    arena_close(&arena);
    flight_recorder_close(recorder);
}

/* Version 1: the number of ranks is `ranks`, the list is `seats`. */
static void old_recorder_files_are_read(void **state)
{
    (void)state;
    static const char *const text =
        "{\"sheaf\": \"recorder\", \"version\": %d, \"reason\": \"planted\", \"ranks\": 2, "
        "\"seats\": [{\"rank\": 1, \"step\": 12, \"action\": \"run\", \"unit\": \"layer.3\", "
        "\"phase\": \"F\", \"micro\": 1, \"transfers\": 1, \"waits\": 0, \"records\": [{"
        "\"number\": 0, \"kind\": \"all-reduce\", \"sequence\": 31, \"purpose\": 0, \"instr\": 17, "
        "\"peer\": -1, \"group\": 2, \"over\": [0, 1], \"bytes\": 4096, \"sent\": 4096, "
        "\"dtype\": \"f32\", \"posted_s\": 1.5, \"matched_s\": -1, \"done_s\": -1}]}]}";
    char path[64];
    Arena arena;
    FlightRecorder recorder;
    const char *reason, *words;
    snprintf(path, sizeof path, "test_ranks_world.%d.json", (int)getpid());
    assert_int_equal(arena_open(&arena, "words", 1 << 20), OK);
    for (int version = 1; version <= 3; version++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, text, version);
        fclose(f);
        const Err err = flight_recorder_read(path, &arena, &recorder, &reason);
        assert_int_equal(err, version == 1 ? OK : ERR_CHECK); /* its keys are those of version 1 */
        if (err != OK) continue;
        assert_int_equal(recorder.ranks, 2);
        assert_int_equal(recorder.n_here, 1);
        assert_string_equal(reason, "planted");
        Text t = text_in(&arena);
        flight_recorder_report(&recorder, 0, &t);
        assert_int_equal(text_done(&t, &words), OK);
        assert_string_equal(words, "  rank 1: step 12, layer.3, F of micro-batch 1; waits for "
                                   "all-reduce #31 over {0 1}, instruction 17\n");
    }
    remove(path);
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_run),
        cmocka_unit_test(the_first_error_is_returned),
        cmocka_unit_test(one_rank_is_not_named),
        cmocka_unit_test(ranks_agree_before_a_phase),
        cmocka_unit_test(a_fault_of_all_names_none),
        cmocka_unit_test(a_rank_that_stops_is_named),
        cmocka_unit_test(flight_recorder_file_reads_back),
        cmocka_unit_test(old_recorder_files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
