/* test_schedule_svg.c -- pictures: well-formed, complete, true to the times, and self-contained. */
#include "support/test_arena.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schedule/evict.h"
#include "schedule/expand.h"
#include "schedule/gen/generate.h"
#include "schedule/svg.h"

/* Returns the end of a tag's attributes: each has a name, =, and a value in quotes with no < in
 * it. */
static const char *skip_attributes(const char *p)
{
    for (;;) {
        while (*p == ' ' || *p == '\n') p++;
        if (*p == '>' || *p == '/') return p;
        const char *name = p;
        while ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '-') p++;
        assert_true(p > name && p[0] == '=' && p[1] == '"');
        for (p += 2; *p != '"'; p++) assert_true(*p && *p != '<' && *p != '&');
        p++;
    }
}

/* Checks that elements are closed in the order in which they were opened, and that & starts an
 * entity of XML. */
static void assert_well_formed(const char *p)
{
    char open[8][16];
    int depth = 0, roots = 0;
    for (; *p; p++) {
        if (*p == '&')
            assert_true(!strncmp(p, "&amp;", 5) || !strncmp(p, "&lt;", 4) ||
                        !strncmp(p, "&gt;", 4));
        if (*p != '<') {
            assert_true(depth > 0 || *p == '\n');
            continue;
        }
        const bool close = p[1] == '/';
        char name[16] = "";
        assert_int_equal(sscanf(p + 1 + close, "%15[a-zA-Z]", name), 1);
        p += 1 + close + strlen(name);
        if (close) {
            assert_true(depth > 0 && strcmp(open[--depth], name) == 0 && *p == '>');
            continue;
        }
        p = skip_attributes(p);
        roots += depth == 0;
        if (*p == '/')
            p++;
        else
            strcpy(open[depth++], name);
        assert_true(*p == '>' && depth < 8);
    }
    assert_true(depth == 0 && roots == 1);
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)); p++) n++;
    return n;
}

/* Sums the widths of all elements of this class, and finds the largest right end. */
static void sum_widths(const char *svg, const char *class, double *width, double *right)
{
    char head[32];
    snprintf(head, sizeof head, "<rect class=\"%s\"", class);
    for (const char *p = svg; (p = strstr(p, head)); p++) {
        double x, w;
        int y;
        assert_int_equal(sscanf(p + strlen(head), " x=\"%lf\" y=\"%d\" width=\"%lf\"", &x, &y, &w),
                         3);
        *width += w;
        if (*right < x + w) *right = x + w;
    }
}

static const char *draw(Arena *a, const Schedule *s, const char *title, Play *play)
{
    const char *svg;
    DO(schedule_play(s, &(PlayCosts){0}, a, play));
    DO(schedule_svg(s, play, title, a, &svg));
    assert_well_formed(svg);
    assert_null(strstr(svg, "href"));
    assert_null(strstr(svg, "@import"));
    assert_int_equal(count(svg, "http"), 1); /* the XML namespace */
    assert_int_equal(count(svg, "url("), count(svg, "url(#wait)"));
    return svg;
}

static void check_picture(Arena *a, const Schedule *s, const char *name)
{
    Play play;
    const char *svg = draw(a, s, name, &play);
    double rows = 0, runs = 0, end = 0, right = 0, busy = 0;
    int each[N_PHASES] = {0};
    for (int r = 0; r < s->stages; r++) {
        busy += play.busy[r];
        for (int i = 0; i < s->n[r]; i++)
            if (s->list[r][i].kind == A_RUN) each[s->list[r][i].phase]++;
    }
    for (Phase phase = 0; phase < N_PHASES; phase++) {
        char class[16];
        snprintf(class, sizeof class, "class=\"%s\"", phase_name(phase));
        assert_int_equal(count(svg, class), each[phase]);
        sum_widths(svg, phase_name(phase), &runs, &right);
    }
    sum_widths(svg, "stage", &rows, &end);
    assert_int_equal(count(svg, "class=\"stage\""), s->stages);
    assert_true(fabs(right - end) < 0.02); /* the last RUN ends with the rows */
    /* The uncovered width is the waiting time; each width is rounded to a hundredth. */
    const double waited = s->stages * play.makespan - busy;
    const double scale = rows / (s->stages * play.makespan);
    assert_true(fabs(rows - runs - waited * scale) < 0.01 * (double)(schedule_length(s) + 1));
}

static void every_schedule_is_drawn(void **state)
{
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    for (int i = 0; i < n; i++)
        for (int stages = 1; stages <= 5; stages += 2) {
            const size_t mark = arena_mark(*state);
            Schedule s;
            DO(schedule_generate(row[i].name, &(Pipeline){.stages = stages, .micros = 11}, *state,
                                 &s));
            check_picture(*state, &s, row[i].name);
            DO(schedule_expand(&s, EXPAND_STEP, *state, &s));
            check_picture(*state, &s, row[i].name);
            arena_rewind(*state, mark);
        }
}

static void texts_and_colors(void **state)
{
    Schedule s;
    Play play;
    DO(schedule_generate("1f1b", &(Pipeline){.stages = 8, .micros = 20}, *state, &s));
    const char *svg = draw(*state, &s, "a < b & c > \"d\"\n", &play);
    assert_non_null(strstr(svg, "<title>a &lt; b &amp; c &gt; \"d\" </title>"));
    assert_non_null(strstr(svg, ">makespan 81, bubble 21, stages wait 25.9 % of their time<"));
    assert_non_null(strstr(svg, "<title>B7.0: 8 to 10</title>"));
    assert_non_null(strstr(svg, ">stage 7<"));
    assert_non_null(strstr(svg, ">holds 8<"));
    assert_non_null(strstr(svg, ">F forward<"));
    assert_non_null(strstr(svg, ">B both<"));
    assert_non_null(strstr(svg, ">waits<"));
    assert_null(strstr(svg, "lighter"));
    assert_null(strstr(svg, "frame"));
    assert_null(strstr(svg, ">W grad"));
    DO(schedule_evict(&s, 0, *state, &s));
    svg = draw(*state, &s, "bpipe", &play);
    assert_non_null(strstr(svg, "<title>evict.0.6&gt;7</title>"));
    assert_non_null(strstr(svg, "<title>fetch.0.6&lt;7</title>"));
    assert_non_null(strstr(svg, ">frame evicted<"));
    DO(schedule_generate("izb", &(Pipeline){.stages = 2, .micros = 2}, *state, &s));
    svg = draw(*state, &s, "izb", &play);
    assert_non_null(strstr(svg, "lighter: a later chunk"));
    assert_int_equal(count(svg, "#b5dbf7"), 2 * 2 + 1); /* F of second chunks, and the legend */
    assert_int_equal(count(svg, "#6cb4ee"), 2 * 2 + 1);
    assert_non_null(strstr(svg, ">W gradients of parameters<"));
}

static void extreme_sizes(void **state)
{
    Schedule s;
    Play play;
    const char *svg;
    DO(schedule_generate("gpipe", &(Pipeline){.stages = 2, .micros = 2000}, *state, &s));
    svg = draw(*state, &s, "wide", &play);
    assert_int_equal(count(svg, "width=\"8166\""), 1); /* rows, names and peaks */
    for (int r = 0; r < 2; r++) s.n[r] = 0;
    draw(*state, &s, "empty", &play);
    DO(schedule_generate("gpipe", &(Pipeline){.stages = 2, .micros = 30000}, *state, &s));
    DO(schedule_play(&s, &(PlayCosts){0}, *state, &play));
    assert_int_equal(schedule_svg(&s, &play, "", *state, &svg), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "a picture of 120000 RUNs; allowed are 100000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_drawn),
        cmocka_unit_test(texts_and_colors),
        cmocka_unit_test(extreme_sizes),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
