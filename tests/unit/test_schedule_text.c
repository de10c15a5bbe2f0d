/* test_schedule_text.c -- the text form: a printed schedule parses to an equal one; faults are
 * named by line and column. */
#define _GNU_SOURCE
#include "support/test_arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/philox.h"
#include "base/text.h"
#include "schedule/check/check.h"
#include "schedule/expand.h"
#include "schedule/gen/generate.h"
#include "schedule/text_form.h"

#ifndef SHEAF_SOURCE_DIR
#define SHEAF_SOURCE_DIR "."
#endif

static const char *round_trip(Arena *a, const Schedule *s)
{
    const char *text, *reprinted;
    Schedule back;
    DO(schedule_print(s, a, &text));
    DO(schedule_parse("printed", text, strlen(text), a, &back));
    if (!schedule_equal(s, &back)) fail_msg("read back another schedule:\n%s", text);
    DO(schedule_print(&back, a, &reprinted));
    assert_string_equal(text, reprinted);
    return text;
}

static void generated_lists_round_trip(void **state)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++)
        for (int stages = 1; stages <= 6; stages++)
            for (int micros = 1; micros <= 12; micros += 1 + micros / 3)
                for (int slices = 1; slices <= (row[i].slices ? 3 : 1); slices++) {
                    const size_t mark = arena_mark(*state);
                    int16_t first_unit[13] = {0};
                    Schedule s, units;
                    const Pipeline p = {stages, micros, 0, slices, 0};
                    DO(schedule_generate(row[i].name, &p, *state, &s));
                    round_trip(*state, &s);
                    for (int c = 0; c < s.chunks; c++)
                        first_unit[c + 1] = (int16_t)(first_unit[c] + 1 + (c + micros) % 3);
                    s.first_unit = first_unit;
                    round_trip(*state, &s);
                    DO(schedule_expand(&s, EXPAND_STEP, *state, &units));
                    round_trip(*state, &units);
                    arena_rewind(*state, mark);
                }
}

/* A file is loaded for a run that fits, and refused for runs that do not. */
static void loaded_for_a_run(void **state)
{
    char path[] = "/tmp/sheaf_schedule_XXXXXX";
    const int file = mkstemp(path);
    const char *text;
    Schedule s, back;
    const Pipeline fits = {.stages = 3, .micros = 5};
    const struct {
        Pipeline p;
        const char *reason;
    } row[] = {
        {{2, 5, 0, 0, 0}, " is written for 3 stages (mesh.pp); the run has 2"},
        {{3, 4, 0, 0, 0}, " is written for 5 micro-batches; the run has 4"},
        {{3, 5, 1, 0, 0},
         " is written for 6 chunks in all (mesh.pp times parallel.chunks); the run has 3"},
        {{3, 5, 2, 2, 0}, " is written for 1 slices (parallel.slices); the run has 2"},
    };
    DO(schedule_generate("zbv", &fits, *state, &s));
    DO(schedule_print(&s, *state, &text));
    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    assert_true(schedule_is_file(path) && !schedule_is_file("zbv"));
    DO(schedule_load(path, &fits, *state, &back));
    assert_true(schedule_equal(&s, &back));
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_int_equal(schedule_load(path, &row[i].p, *state, &back), ERR_CONFIG);
        if (!strstr(err_text(), row[i].reason)) fail_msg("got: %s", err_text());
    }
    s.n[2]--; /* one backward is missing: the file parses and fails the check */
    DO(schedule_print(&s, *state, &text));
    assert_int_equal(ftruncate(file, 0), 0);
    assert_true(pwrite(file, text, strlen(text), 0) == (ssize_t)strlen(text));
    assert_int_equal(schedule_load(path, &fits, *state, &back), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "parallel.schedule="));
    assert_non_null(strstr(err_text(), "is missing"));
    close(file);
    unlink(path);
    assert_int_equal(schedule_load(path, &fits, *state, &back), ERR_IO);
}

/* Schedules with a single difference are not equal. */
static void equal_means_all_equal(void **state)
{
    static const char text[] =
        "sheaf schedule 2\nchunks 2 micros 2 slices 1\nstages 0 1\nunits 2 1\n"
        "over chunks\nstage 0: F0.0 send.F0.0>1\nstage 1: F1.0\n";
    static const char *const change[][2] = {
        {"F0.0 send", "F0.1 send"},
        {"F0.0 send", "I0.0 send"},
        {"F0.0 send", "drop.0 send"},
        {"stage 1: F1", "stage 1: F0"},
        {" send.F0.0>1", ""},
        {">1", ">0"},
        {"stages 0 1", "stages 1 0"},
        {"units 2 1", "units 1 2"},
        {"over chunks", "over units"},
        {"micros 2", "micros 3"},
        {"stage 1: F1.0\n", "stage 1: F1.0\nstage 2:\n"},
        {"stage 1: F1.0", "stage 1: F1.0 B1.0"},
    };
    Schedule s, other;
    DO(schedule_parse("equal", text, strlen(text), *state, &s));
    DO(schedule_parse("equal", text, strlen(text), *state, &other));
    assert_true(schedule_equal(&s, &other));
    for (size_t i = 0; i < sizeof change / sizeof change[0]; i++) {
        char changed[512];
        const char *at = strstr(text, change[i][0]);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, change[i][1],
                 at + strlen(change[i][0]));
        DO(schedule_parse("changed", changed, strlen(changed), *state, &other));
        if (schedule_equal(&s, &other)) fail_msg("equal to\n%s", changed);
    }
    s.list[0][0].slice = 1; /* which a text with one slice cannot express */
    DO(schedule_parse("equal", text, strlen(text), *state, &other));
    assert_false(schedule_equal(&s, &other));
}

/* Written by hand: comments, blank lines, a list in pieces, out of order, a stage without a
 * chunk. */
static const char by_hand[] = "# two chunks on stage 2, none on stage 1\n"
                              "sheaf schedule 2   # the version\n"
                              "\n"
                              "chunks 3 micros 2 slices 2\n"
                              "\tstages 2 0 2\r\n"
                              "units 1 2 1\n"
                              "over units\n"
                              "stage 2: F0.0.0 send.F0.0.1>0#no space before\n"
                              "stage 0: recv.F0.0.1<2 recv.I3.1.0<2 evict.1.0.1>1 fetch.1.0.1<1\n"
                              "stage 2: gather.3 drop.3 reduce.3 reduce.3.1 norm update.0\n"
                              "stage 0: evict.2.1.1>host fetch.2.1.1<host bind.0 bind.32766\n"
                              "  stage 2:   I3.1.1   W3.1.0 B0.1.0\n"
                              "stage 3:";

static void written_by_hand(void **state)
{
    Schedule s;
    DO(schedule_parse("hand", by_hand, strlen(by_hand), *state, &s));
    assert_string_equal(round_trip(*state, &s),
                        "sheaf schedule 2\n"
                        "chunks 3 micros 2 slices 2\n"
                        "stages 2 0 2\n"
                        "units 1 2 1\n"
                        "over units\n"
                        "stage 0: recv.F0.0.1<2 recv.I3.1.0<2 evict.1.0.1>1 fetch.1.0.1<1 "
                        "evict.2.1.1>host fetch.2.1.1<host\n"
                        "stage 0: bind.0 bind.32766\n" /* 100 columns are full */
                        "stage 1:\n"
                        "stage 2: F0.0.0 send.F0.0.1>0 gather.3 drop.3 reduce.3 reduce.3.1 norm "
                        "update.0 I3.1.1 W3.1.0 B0.1.0\n"
                        "stage 3:\n");
    assert_int_equal(s.stages, 4);
    const Action recv = s.list[0][1], evict = s.list[0][2], host = s.list[0][4];
    assert_true(recv.kind == A_RECV && recv.phase == PHASE_I && recv.unit == 3 && recv.micro == 1 &&
                recv.slice == 0 && recv.peer == 2);
    assert_true(evict.kind == A_EVICT && evict.unit == 1 && evict.micro == 0 && evict.slice == 1 &&
                evict.peer == 1);
    assert_int_equal(host.peer, -1);
    assert_true(s.list[2][4].micro == -1 && s.list[2][5].micro == 1);
}

/* A file of version 1 names stages by `rank` and `place`, and is the same schedule. */
static void version_one_is_read(void **state)
{
    static const char *const file[] = {"version1_1f1b_4x6_units", "1f1b_4x6_units"};
    static const char mixed[] =
        "sheaf schedule 1\nchunks 1 micros 1 slices 1\nplace 0\nover chunks\nstage 0: F0.0 B0.0\n";
    Schedule s[2];
    for (int i = 0; i < 2; i++) {
        char path[512];
        const char *text;
        size_t length;
        snprintf(path, sizeof path, SHEAF_SOURCE_DIR "/tests/golden/schedule/%s.txt", file[i]);
        DO(text_read_file(path, 1 << 20, *state, &text, &length));
        assert_int_equal(strncmp(text, i == 0 ? "sheaf schedule 1\n" : "sheaf schedule 2\n", 17),
                         0);
        DO(schedule_parse(path, text, length, *state, &s[i]));
    }
    assert_true(schedule_equal(&s[0], &s[1]));
    round_trip(*state, &s[0]);
    assert_int_equal(schedule_parse("mixed", mixed, strlen(mixed), *state, &s[0]), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "mixed:5:1: 'stage': expected `rank`"));
}

#define HEAD "sheaf schedule 2\nchunks 2 micros 4 slices 1\nstages 0 1\nover chunks\n"
#define SLICED "sheaf schedule 2\nchunks 2 micros 4 slices 2\nstages 0 1\nover units\n"

static const struct {
    const char *text, *message;
} wrong[] = {
    {"", "f:1:1: expected `sheaf`"},
    {"schedule 1", "f:1:1: 'schedule': expected `sheaf`"},
    {"sheaf schedule 3", "f:1:16: '3': expected the version of the form, 1 to 2"},
    {"sheaf schedule 2 1", "f:1:18: '1': nothing more is allowed after the version"},
    {"sheaf schedule 2\nchunks 0", "f:2:8: '0': expected a number of chunks, 1 to 32767"},
    {"sheaf schedule 2\nchunks 2 micros 32768", "'32768': expected a number of micros, 1 to 32767"},
    {"sheaf schedule 2\nchunks 2 micros 99999999999999999999", "expected a number of micros"},
    {"sheaf schedule 2\nchunks 2 micros -1", "'-1': expected a number of micros"},
    {"sheaf schedule 2\nchunks 2 micros 1x", "'1x': expected a number of micros"},
    {"sheaf schedule 2\nchunks 2 micros", "f:2:16: the line ends; expected a number of micros"},
    {"sheaf schedule 2\nchunks 2 micro 4", "f:2:10: 'micro': expected `micros`"},
    {"sheaf schedule 2\nchunks 2 micros 4 slices 1\nstages 0\n",
     "the line ends; expected the stage"},
    {"sheaf schedule 2\nchunks 2 micros 4 slices 1\nstages 0 1 2\n",
     "f:3:12: '2': nothing more is allowed after one number for each of 2 chunks"},
    {"sheaf schedule 2\nchunks 2 micros 4 slices 1\nstages 0 32767\n",
     "stage of each chunk, 0 to 32766"},
    {"sheaf schedule 2\nchunks 2 micros 4 slices 1\nstages 0 1\nunits 1 0\n",
     "f:4:9: '0': expected the units of each chunk, 1 to 32767"},
    {"sheaf schedule 2\nchunks 2 micros 4 slices 1\nstages 0 1\nunits 32767 1\n",
     "32768 units in chunks 0 to 1; allowed are 32767 in all"},
    {"sheaf schedule 2\nchunks 2 micros 4 slices 1\nstages 0 1\nstage 0:",
     "'stage': expected `over`"},
    {"sheaf schedule 2\nchunks 2 micros 4 slices 1\nstages 0 1\nover layers",
     "f:4:6: 'layers': expected `chunks` or `units`"},
    {HEAD "F0.0", "f:5:1: 'F0.0': expected `stage`"},
    {HEAD "stage 0 F0.0", "f:5:7: '0': expected a stage and a colon, 0: to 32766:"},
    {HEAD "stage 0:F0.0", "f:5:7: '0:F0.0': expected a stage and a colon"},
    {HEAD "stage 32767:", "expected a stage and a colon, 0: to 32766:"},
    {HEAD "stage :", "expected a stage and a colon"},
    {HEAD "stage", "f:5:6: expected a stage and a colon"},
    {HEAD "stage 0: F2.0", "f:5:10: 'F2.0': chunk 2 is not there; allowed are 0 to 1"},
    {HEAD "stage 0: F0.0 F0.4", "f:5:15: 'F0.4': micro-batch 4 is not there; allowed are 0 to 3"},
    {HEAD "stage 0: F0.99999999999", "micro-batch 99999999999 is not there"},
    {HEAD "stage 0: F0.0.0", "a third number is a slice, and slices is 1"},
    {HEAD "stage 0: F0", "'F0': expected '.' before the micro-batch"},
    {HEAD "stage 0: F.0", "expected the chunk, a number"},
    {HEAD "stage 0: F0.", "expected the micro-batch, a number"},
    {HEAD "stage 0: G0.0", "expected a phase: F, I, W or B"},
    {HEAD "stage 0: F0.0x", "the action ends before its last 1 characters"},
    {HEAD "stage 0: send.W0.0>1", "W makes no value for another stage; allowed are F, I and B"},
    {HEAD "stage 0: send.F0.0<1", "expected '>' before the stage"},
    {HEAD "stage 0: recv.F0.0>1", "expected '<' before the stage"},
    {HEAD "stage 0: send.F0.0>2", "stage 2 is not there; allowed are 0 to 1"},
    {HEAD "stage 0: send.F0.0>host", "expected the stage, a number"},
    {HEAD "stage 0: sned.F0.0>1",
     "no such action (did you mean send?); allowed are F I W B send recv"},
    {HEAD "stage 0: run.F0.0", "no such action"},
    {HEAD "stage 0: gather", "expected '.' before the rest of the action"},
    {HEAD "stage 0: gather.2", "chunk 2 is not there"},
    {HEAD "stage 0: norm.1", "the action ends before its last 2 characters"},
    {HEAD "stage 0: reduce.1.4", "micro-batch 4 is not there"},
    {HEAD "stage 0: evict.0.1", "expected '>' before the stage, or `host`"},
    {HEAD "stage 0: evict.0.1>hos", "expected the stage, a number"},
    {HEAD "stage 0: bind.32767", "slot 32767 is not there; allowed are 0 to 32766"},
    {HEAD "stage 0: F0.000000000000000000000000000000000000000001",
     "45 characters; an action has at most 40"},
    {HEAD "stage 0: \x01\x80", "f:5:10: '?"
                               "?': expected a phase"},
    {SLICED "stage 0: F0.0", "expected '.' before the slice"},
    {SLICED "stage 0: F0.0.2", "slice 2 is not there; allowed are 0 to 1"},
    {SLICED "stage 0: F2.0.1", "unit 2 is not there; allowed are 0 to 1"},
};

static void mistakes_are_named(void **state)
{
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        Schedule s;
        if (schedule_parse("f", wrong[i].text, strlen(wrong[i].text), *state, &s) != ERR_CONFIG)
            fail_msg("passed:\n%s", wrong[i].text);
        if (!strstr(err_text(), wrong[i].message))
            fail_msg("%s\n  wanted: %s\n  got:    %s", wrong[i].text, wrong[i].message, err_text());
    }
}

/* Changes a few bytes: another letter, some removed, a part repeated. Returns the length. */
static size_t mutate(const Random *random, uint64_t *draw, char *text, size_t length, size_t cap)
{
    static const char letters[] = "0123456789.:<># \nFIWBsendrecvgatherdropplaceunitshost\x00\xff-";
    const int changes = 1 + (int)(random_bits(random, (*draw)++) % 4);
    for (int i = 0; i < changes && length > 0; i++) {
        const size_t at = random_bits(random, (*draw)++) % length;
        const size_t n = random_bits(random, (*draw)++) % 30;
        switch (random_bits(random, (*draw)++) % 3) {
        case 0:
            text[at] = letters[n * 7 % (sizeof letters - 1)];
            break;
        case 1:
            if (at + n > length) break;
            memmove(text + at, text + at + n, length - at - n);
            length -= n;
            break;
        default:
            if (at + n > length || length + n > cap) break;
            memmove(text + at + n, text + at, length - at);
            length += n;
        }
    }
    return length;
}

/* Any input gives an error with a message, or a schedule that prints and parses again. */
static void malformed_text_never_crashes(void **state)
{
    const Random random = random_named(11, "garbage");
    const char *seed[3] = {by_hand};
    Schedule s, units;
    uint64_t draw = 0;
    int read = 0, checked = 0;
    DO(schedule_generate("1f1b", &(Pipeline){.stages = 3, .micros = 3}, *state, &s));
    DO(schedule_print(&s, *state, &seed[1]));
    DO(schedule_expand(&s, EXPAND_STEP, *state, &units));
    DO(schedule_print(&units, *state, &seed[2]));
    for (int trial = 0; trial < 20000; trial++) {
        const size_t mark = arena_mark(*state), cap = 4096;
        size_t length = strlen(seed[trial % 3]);
        char *work = test_malloc(cap), *text;
        memcpy(work, seed[trial % 3], length);
        length = mutate(&random, &draw, work, length, cap);
        text = test_malloc(length +
                           1); /* exact length, so that the sanitizer finds reads past the end */
        memcpy(text, work, length);
        if (schedule_parse("garbage", text, length, *state, &s) == OK) {
            read++;
            round_trip(*state, &s);
            checked += schedule_check(&s, *state) == OK;
        } else {
            assert_int_equal(strncmp(err_text(), "garbage:", 8), 0);
        }
        test_free(text);
        test_free(work);
        arena_rewind(*state, mark);
    }
    assert_true(read > 500 && checked > 50 &&
                checked < read); /* otherwise the test proves nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_lists_round_trip),   cmocka_unit_test(loaded_for_a_run),
        cmocka_unit_test(equal_means_all_equal),        cmocka_unit_test(written_by_hand),
        cmocka_unit_test(version_one_is_read),          cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(malformed_text_never_crashes),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
