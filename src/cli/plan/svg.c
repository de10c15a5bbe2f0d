/* svg.c -- the frontier as a plot: memory to the right, time upwards, a step for each plan. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/new_file.h"
#include "cli/plan/plan.h"

enum { WIDTH = 640, HEIGHT = 400, LEFT = 72, BOTTOM = 48, TOP = 32, RIGHT = 24 };

typedef struct {
    double memory, slow, fast; /* greatest memory; greatest and smallest time */
} PlotRange;

static PlotRange range_of(const PlanReport *r)
{
    PlotRange p = {0, 0, r->frontier[0].time.step_s};
    for (int i = 0; i < r->n_frontier; i++) {
        const PlanRow *row = &r->frontier[i];
        if (row->limit_bytes > p.memory) p.memory = row->limit_bytes;
        if (row->time.step_s > p.slow) p.slow = row->time.step_s;
        if (row->time.step_s < p.fast) p.fast = row->time.step_s;
    }
    const double margin = p.slow > p.fast ? (p.slow - p.fast) / 10 : p.slow / 10;
    p.slow += margin;
    p.fast -= margin;
    return p;
}

static double x_of(const PlotRange *p, double bytes)
{
    return LEFT + bytes / p->memory * (WIDTH - LEFT - RIGHT);
}

static double y_of(const PlotRange *p, double seconds)
{
    return TOP + (p->slow - seconds) / (p->slow - p->fast) * (HEIGHT - TOP - BOTTOM);
}

static void axes(const PlanReport *r, const PlotRange *p, Text *t)
{
    char a[24];
    text_add(t,
             "<text x=\"%d\" y=\"20\">%s on %s: time of a step against memory of a rank</text>\n",
             LEFT, r->model->name, r->cluster->name);
    text_add(t, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#333\"/>\n", LEFT, TOP,
             HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (int i = 0; i <= 4; i++) {
        const double s = p->fast + (p->slow - p->fast) * i / 4, b = p->memory * i / 4;
        text_add(t, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g ms</text>\n", LEFT - 6,
                 y_of(p, s) + 4, 1e3 * s);
        text_add(t, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x_of(p, b),
                 HEIGHT - BOTTOM + 18, text_bytes((int64_t)b, a));
    }
}

/* A plan is the best from the memory that it needs up to its limit. */
static Err points(const PlanReport *r, const PlotRange *p, Arena *temp, Text *t)
{
    for (int i = 0; i < r->n_frontier; i++) {
        const PlanRow *row = &r->frontier[i];
        const double y = y_of(p, row->time.step_s), x = x_of(p, row->memory_bytes);
        const char *words;
        Text w = text_in(temp);
        plan_point_text(&row->point, &w);
        TRY(text_done(&w, &words));
        text_add(t,
                 "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#36c\" "
                 "stroke-width=\"2\"/>\n",
                 x, y, x_of(p, row->limit_bytes), y);
        text_add(t,
                 "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#36c\"><title>%d ranks: %s: "
                 "%.3f ms</title></circle>\n",
                 x, y, row->ranks, words, 1e3 * row->time.step_s);
    }
    return OK;
}

Err plan_report_svg(const PlanReport *r, const char *path, Arena *temp)
{
    const PlotRange p = range_of(r);
    Arena words = {0};
    const char *text;
    Text t = text_in(temp);
    TRY(arena_open(&words, "words", (size_t)1 << 20));
    text_add(&t,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
             "font-family=\"sans-serif\" font-size=\"12\">\n",
             WIDTH, HEIGHT);
    text_add(&t, "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n");
    axes(r, &p, &t);
    Err err = points(r, &p, &words, &t);
    text_add(&t, "</svg>\n");
    if (err == OK) err = text_done(&t, &text);
    arena_close(&words);
    TRY(err);
    return new_file_write("--svg", path, text);
}
