/* test_schedule_draw.c -- drawings, above all those in the head comments of the generators, which
 * must equal the printed ones. */
#include "support/test_arena.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "schedule/draw.h"
#include "schedule/gen/generate.h"
#include "schedule/text_form.h"

#ifndef SHEAF_SOURCE_DIR
#define SHEAF_SOURCE_DIR "."
#endif

static const char *in_time(Arena *a, const Schedule *s, double unit, const char *before)
{
    Play play;
    const char *text;
    DO(schedule_play(s, &(PlayCosts){0}, a, &play));
    DO(schedule_draw_time(s, &play, unit, before, a, &text));
    return text;
}

/* For every row of the table of generators: gen/NAME.c shows its lists, in order and over time. */
static void head_comments_are_drawn(void **state)
{
    const struct {
        const char *name;
        Pipeline p;
    } row[] = {
        {"gpipe", {4, 6, 0, 0, 0}},       {"1f1b", {4, 6, 0, 0, 0}},
        {"interleaved", {2, 4, 0, 0, 0}}, {"bfs", {3, 3, 0, 0, 0}},
        {"zbh1", {4, 6, 0, 0, 0}},        {"zbh2", {4, 7, 0, 0, 0}},
        {"izb", {3, 3, 0, 0, 0}},         {"zbv", {2, 4, 0, 0, 0}},
        {"dualpipev", {2, 4, 0, 0, 0}},   {"seq1f1b", {2, 2, 0, 2, 0}},
        {"terapipe", {3, 1, 0, 3, 0}},
    };
    int n;
    schedule_generators(&n);
    assert_int_equal(n, sizeof row / sizeof row[0]);
    for (int i = 0; i < n; i++) {
        char path[512];
        const char *source, *text;
        size_t length;
        Schedule s;
        snprintf(path, sizeof path, SHEAF_SOURCE_DIR "/src/schedule/gen/%s.c", row[i].name);
        DO(text_read_file(path, 1 << 20, *state, &source, &length));
        DO(schedule_generate(row[i].name, &row[i].p, *state, &s));
        DO(schedule_draw(&s, " *   ", *state, &text));
        if (!strstr(source, text)) fail_msg("%s does not hold its drawing:\n%s", path, text);
        text = in_time(*state, &s, 1, " *   ");
        if (!strstr(source, text)) fail_msg("%s does not hold its drawing:\n%s", path, text);
    }
}

static Schedule parse(Arena *a, const char *text)
{
    Schedule s;
    DO(schedule_parse("test", text, strlen(text), a, &s));
    return s;
}

/* The drawing of draw.h. */
static void two_stages(void **state)
{
    const char *text;
    Schedule s;
    DO(schedule_generate("1f1b", &(Pipeline){.stages = 2, .micros = 2}, *state, &s));
    DO(schedule_draw(&s, "", *state, &text));
    assert_string_equal(text, "stage 0 | F0 F1 B0 B1\n"
                              "stage 1 | F0 B0 F1 B1\n");
    assert_string_equal(in_time(*state, &s, 1, ""), "stage 0 | F0 F1 .  .  B0 -- .  B1 --\n"
                                                    "stage 1 | .  F0 B0 -- F1 B1 -- .  .\n");
    assert_string_equal(in_time(*state, &s, 3, "  "), "  stage 0 | F1 B0 B1\n"
                                                      "  stage 1 | F0 F1 .\n");
}

/* Several chunks on a stage and several slices are named; only RUNs are drawn. */
static void chunks_and_slices_are_named(void **state)
{
    const char *text;
    const Schedule s = parse(*state, "sheaf schedule 2\nchunks 3 micros 1 slices 2\nstages 0 1 0\n"
                                     "over chunks\n"
                                     "stage 0: gather.0 F0.0.0 F0.0.1 F2.0.0 F2.0.1 B2.0.1 B2.0.0 "
                                     "B0.0.1 B0.0.0 drop.0\n"
                                     "stage 1: F1.0.0 F1.0.1 I1.0.1 I1.0.0 W1.0.0 W1.0.1\n");
    DO(schedule_draw(&s, "", *state, &text));
    assert_string_equal(text, "stage 0 | F0.0.0 F0.0.1 F2.0.0 F2.0.1 B2.0.1 B2.0.0 B0.0.1 B0.0.0\n"
                              "stage 1 | F1.0.0 F1.0.1 I1.0.1 I1.0.0 W1.0.0 W1.0.1\n");
    assert_string_equal(
        in_time(*state, &s, 1, ""),
        "stage 0 | F0.0.0 F0.0.1 F2.0.0 F2.0.1 B2.0.1 --     B2.0.0 --     B0.0.1 --     B0.0.0 "
        "--\n"
        "stage 1 | .      F1.0.0 F1.0.1 .      .      .      I1.0.1 .      I1.0.0 W1.0.0 W1.0.1 "
        ".\n");
}

/* Two chunks on every stage: the second is in lower case, in any chunk order. */
static void second_chunks_are_small(void **state)
{
    const char *text;
    Schedule s;
    DO(schedule_generate("zbv", &(Pipeline){.stages = 2, .micros = 1}, *state, &s));
    DO(schedule_draw(&s, "", *state, &text));
    assert_string_equal(text, "stage 0 | F0 f0 i0 w0 I0 W0\n"
                              "stage 1 | F0 f0 i0 w0 I0 W0\n");
    DO(schedule_generate("bfs", &(Pipeline){.stages = 1, .micros = 1, .chunks = 3}, *state, &s));
    DO(schedule_draw(&s, "", *state, &text));
    assert_string_equal(text, "stage 0 | F0.0 F1.0 F2.0 B2.0 B1.0 B0.0\n");
}

/* One chunk on each stage: cells do not name it, whatever other actions the list has. */
static void single_chunks_are_not_named(void **state)
{
    const char *text;
    const Schedule s =
        parse(*state, "sheaf schedule 2\nchunks 1 micros 1 slices 1\nstages 0\n"
                      "over chunks\nstage 0: bind.3 F0.0 I0.0 bind.4 W0.0 norm update.0\n");
    DO(schedule_draw(&s, "", *state, &text));
    assert_string_equal(text, "stage 0 | F0 I0 W0\n");
}

static void stages_are_aligned(void **state)
{
    const char *text;
    Schedule s;
    DO(schedule_generate("1f1b", &(Pipeline){.stages = 11, .micros = 1}, *state, &s));
    DO(schedule_draw(&s, "", *state, &text));
    assert_non_null(strstr(text, "stage 9  | F0 B0\nstage 10 | F0 B0\n"));
    DO(schedule_generate("1f1b", &(Pipeline){.stages = 10, .micros = 1}, *state, &s));
    DO(schedule_draw(&s, "", *state, &text));
    assert_non_null(strstr(text, "stage 9 | F0 B0\n"));
}

static void too_many_cells_are_refused(void **state)
{
    Schedule s;
    Play play;
    const char *text;
    DO(schedule_generate("gpipe", &(Pipeline){.stages = 2, .micros = 3}, *state, &s));
    DO(schedule_play(&s, &(PlayCosts){0}, *state, &play));
    assert_int_equal(schedule_draw_time(&s, &play, 1e-4, "", *state, &text), ERR_CONFIG);
    assert_string_equal(err_text(), "a drawing of 12 in cells of 0.0001; allowed are 10000 cells");
    assert_int_equal(schedule_draw_time(&s, &play, 0, "", *state, &text), ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_comments_are_drawn),     cmocka_unit_test(two_stages),
        cmocka_unit_test(chunks_and_slices_are_named), cmocka_unit_test(second_chunks_are_small),
        cmocka_unit_test(single_chunks_are_not_named), cmocka_unit_test(stages_are_aligned),
        cmocka_unit_test(too_many_cells_are_refused),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
