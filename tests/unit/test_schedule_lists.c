/* test_schedule_lists.c -- the player on lists written by hand: waits, barriers, frames, and lists
 * that break a rule. */
#include "support/test_arena.h"

#include <stdio.h>
#include <string.h>
#include "schedule/check/check.h"
#include "schedule/gen/generate.h"
#include "schedule/play.h"
#include "schedule/text_form.h"

static Schedule parse(Arena *a, const char *text)
{
    Schedule s;
    DO(schedule_parse("test", text, strlen(text), a, &s));
    return s;
}

/* Two stages that both send first: fine with buffers, a deadlock if a send waits for its
 * receive. */
static void waits_follow_the_mode(void **state)
{
    const Schedule s =
        parse(*state, "sheaf schedule 2\nchunks 2 micros 2 slices 1\nstages 0 1\n"
                      "over chunks\n"
                      "stage 0: F0.0 send.F0.0>1 F0.1 send.F0.1>1 recv.B1.0<1 B0.0 "
                      "recv.B1.1<1 B0.1\n"
                      "stage 1: recv.F0.0<0 F1.0 B1.0 send.B1.0>0 recv.F0.1<0 F1.1 B1.1 "
                      "send.B1.1>0\n");
    Play play;
    PlayCosts c = {.latency = 0.5};
    DO(schedule_check(&s, *state));
    DO(schedule_play(&s, &c, *state, &play));
    assert_true(play.start[1][1] == 1.5); /* F1.0: made at 1, available half a unit later */
    assert_true(play.end[0][3] == 2);     /* both sends are in flight */
    c.wait = PLAY_WAIT_AT_RECV;
    DO(schedule_play(&s, &c, *state, &play));
    assert_true(play.end[1][0] == 1.5 && play.end[0][4] == 5); /* B1.0 ends at 4.5 */
    c.wait = PLAY_WAIT_BOTH;
    assert_int_equal(schedule_play(&s, &c, *state, &play), ERR_CHECK);
    assert_string_equal(err_text(),
                        "schedule: deadlock: stage 0, position 3, send.F0.1>1: waits for the "
                        "recv of stage 1; stage 1, position 3, send.B1.0>0: waits for the recv of "
                        "stage 0");
}

static void norm_is_a_barrier_and_frames_are_counted(void **state)
{
    const Schedule s =
        parse(*state, "sheaf schedule 2\nchunks 2 micros 2 slices 1\nstages 0 1\n"
                      "over chunks\n"
                      "stage 0: F0.0 evict.0.0>host F0.1 fetch.0.0<host B0.0 B0.1 norm\n"
                      "stage 1: F1.0 F1.1 I1.0 I1.1 W1.0 W1.1 norm\n");
    Play play;
    DO(schedule_check(&s, *state));
    DO(schedule_play(&s, &(PlayCosts){0}, *state, &play));
    assert_true(play.makespan == 8);
    assert_true(play.end[1][5] == 7 && play.end[1][6] == 8);
    assert_int_equal(play.peak[0], 2); /* fetched while the other is here; 1 in between */
    assert_int_equal(play.peak[1], 2); /* held until W */
    assert_true(play.span == 2 && play.bubble == 2); /* stage 0, between F0.1 and B0.0 */
    assert_true(play.idle == 1 - 12.0 / 16);
}

/* A stage reserves memory for the most frames that other stages evict to it at once. */
static void reserved_frames_are_counted(void **state)
{
    const Schedule s =
        parse(*state, "sheaf schedule 2\nchunks 2 micros 3 slices 1\nstages 0 1\nover chunks\n"
                      "stage 0: F0.0 evict.0.0>1 F0.1 evict.0.1>1 F0.2 fetch.0.1<1 B0.1 "
                      "fetch.0.0<1 evict.0.2>1 B0.0 fetch.0.2<1 B0.2\n"
                      "stage 1: F1.0 F1.1 B1.1 B1.0 F1.2 B1.2\n");
    Play play;
    DO(schedule_check(&s, *state));
    DO(schedule_play(&s, &(PlayCosts){0}, *state, &play));
    assert_int_equal(play.peak[0], 2);
    assert_int_equal(play.peak[1], 2 + 2);

    const Schedule lost = /* two stages evict to one and never fetch: the check would refuse it */
        parse(*state, "sheaf schedule 2\nchunks 3 micros 1 slices 1\nstages 0 1 2\nover chunks\n"
                      "stage 0: F0.0 evict.0.0>1\nstage 1: F1.0\nstage 2: F2.0 evict.2.0>1\n");
    DO(schedule_play(&lost, &(PlayCosts){0}, *state, &play));
    assert_int_equal(play.peak[1], 1 + 1 + 1);
}

static void stuck_stages_are_all_named(void **state)
{
    Schedule s =
        parse(*state, "sheaf schedule 2\nchunks 3 micros 2 slices 1\nstages 0 1 2\nover chunks\n"
                      "stage 0: F0.0 B0.0 F0.1 B0.1\n"
                      "stage 1: F1.1 F1.0 B1.0 B1.1\n"
                      "stage 2: F2.0 B2.0 F2.1 B2.1\n");
    Play play;
    assert_int_equal(schedule_play(&s, &(PlayCosts){0}, *state, &play), ERR_CHECK);
    assert_string_equal(err_text(),
                        "schedule: deadlock: stage 0, position 1, B0.0: waits for B1.0, or its "
                        "I; stage 1, position 0, F1.1: waits for F0.1; stage 2, position 0, F2.0: "
                        "waits for F1.0");

    /* more than a message holds */
    DO(schedule_generate("1f1b", &(Pipeline){.stages = 200, .micros = 3}, *state, &s));
    s.list[0][0] = action_run(PHASE_B, 0, 0, 0);
    assert_int_equal(schedule_play(&s, &(PlayCosts){0}, *state, &play), ERR_CHECK);
    assert_non_null(strstr(err_text(), "more stages"));
    assert_true(strlen(err_text()) < 1600);
}

/* Lists that were not checked: the player stops where a rule is broken. */
static void unchecked_lists_stop(void **state)
{
    const struct {
        const char *head, *lists;
        PlayWait wait;
        const char *reason;
    } row[] = {
        {"chunks 2 micros 1 slices 1\nstages 0 1\n",
         "stage 0: send.F0.0>1 F0.0\nstage 1: recv.F0.0<0", PLAY_WAIT_AT_USE,
         "stage 0, position 0, send.F0.0>1: waits for F0.0"},
        {"chunks 2 micros 1 slices 1\nstages 0 1\n", "stage 0: F0.0 send.F0.0>1\nstage 1: F1.0",
         PLAY_WAIT_AT_USE, "deadlock: stage 1, position 0, F1.0: waits for F0.0"},
        {"chunks 2 micros 1 slices 1\nstages 0 1\n", "stage 0: F0.0\nstage 1: recv.F0.0<0 F1.0",
         PLAY_WAIT_AT_USE, "deadlock: stage 1, position 1, F1.0: waits for F0.0"},
        {"chunks 2 micros 1 slices 1\nstages 0 1\n", "stage 0: F0.0\nstage 1: recv.F0.0<0 F1.0",
         PLAY_WAIT_AT_RECV, "stage 1, position 0, recv.F0.0<0: waits for the send of stage 0"},
        {"chunks 2 micros 1 slices 1\nstages 0 1\n", "stage 0: F0.0\nstage 1: recv.F0.0<0 F1.0",
         PLAY_WAIT_BOTH, "stage 1, position 0, recv.F0.0<0: waits for the send of stage 0"},
        {"chunks 2 micros 1 slices 1\nstages 0 1\n", "stage 0: F0.0 norm\nstage 1: F1.0",
         PLAY_WAIT_AT_USE, "deadlock: stage 0, position 1, norm: waits for the norm of all stages"},
        {"chunks 1 micros 1 slices 1\nstages 0\n", "stage 0: F0.0 W0.0 I0.0", PLAY_WAIT_AT_USE,
         "stage 0, position 1, W0.0: waits for B0.0, or its I"},
        {"chunks 1 micros 1 slices 2\nstages 0\n", "stage 0: F0.0.1 F0.0.0", PLAY_WAIT_AT_USE,
         "stage 0, position 0, F0.0.1: waits for F0.0.0"},
        {"chunks 1 micros 1 slices 2\nstages 0\n", "stage 0: F0.0.0 F0.0.1 B0.0.0",
         PLAY_WAIT_AT_USE, "stage 0, position 2, B0.0.0: waits for B0.0.1, or its I"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[256];
        Play play;
        snprintf(text, sizeof text, "sheaf schedule 2\n%sover chunks\n%s", row[i].head,
                 row[i].lists);
        const Schedule s = parse(*state, text);
        const PlayCosts c = {.wait = row[i].wait};
        assert_int_equal(schedule_play(&s, &c, *state, &play), ERR_CHECK);
        if (!strstr(err_text(), row[i].reason))
            fail_msg("wanted: %s\n got: %s", row[i].reason, err_text());
    }
}

/* A send and its receive end together, and the actions after them start together. */
static void rendezvous_takes_both(void **state)
{
    const Schedule s = parse(*state, "sheaf schedule 2\nchunks 2 micros 1 slices 1\nstages 0 1\n"
                                     "over chunks\n"
                                     "stage 0: F0.0 send.F0.0>1 recv.B1.0<1 B0.0\n"
                                     "stage 1: recv.F0.0<0 F1.0 B1.0 send.B1.0>0\n");
    Play play;
    DO(schedule_play(&s, &(PlayCosts){.latency = 0.5, .wait = PLAY_WAIT_BOTH}, *state, &play));
    assert_true(play.end[0][1] == 1.5 && play.end[1][0] == 1.5); /* F0.0, to stage 1 */
    assert_true(play.end[0][2] == 5 && play.end[1][3] == 5);     /* B1.0, to stage 0 */
    assert_true(play.makespan == 7 && play.bubble == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_follow_the_mode),
        cmocka_unit_test(norm_is_a_barrier_and_frames_are_counted),
        cmocka_unit_test(reserved_frames_are_counted),
        cmocka_unit_test(stuck_stages_are_all_named),
        cmocka_unit_test(unchecked_lists_stop),
        cmocka_unit_test(rendezvous_takes_both),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
