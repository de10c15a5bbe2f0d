/* svg.c -- a played schedule as an SVG picture, which svg.h shows. */
#include "schedule/svg.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "schedule/text_form.h"

enum {
    LEFT = 76,       /* left margin: names of stages */
    RIGHT = 90,      /* right margin: frames held */
    TOP = 58,        /* title and totals */
    PITCH = 26,      /* from one row to the next */
    BAR = 22,        /* height of a row */
    BOTTOM = 78,     /* ticks and legend */
    MIN_WIDTH = 640, /* width of the rows */
    MAX_WIDTH = 8000,
    PER_RUN = 20, /* width of the shortest RUN, if that fits */
    PER_LETTER = 7
};

/* Colors that differ for readers who cannot tell red from green. */
enum { SHADES = 3 }; /* of a stage's first, second and later chunks */
static const char *const colour[SHADES][N_PHASES] = {{"#6cb4ee", "#3aa57a", "#f0b429", "#c58bd8"},
                                                     {"#b5dbf7", "#97d3ba", "#f9dd9a", "#e3c6ec"},
                                                     {"#dbedfb", "#cbe9dc", "#fceecd", "#f1e2f5"}};
static const char *const meaning[N_PHASES] = {"F forward", "I gradients of inputs",
                                              "W gradients of parameters", "B both"};

typedef struct {
    const Schedule *s;
    const Play *play;
    double scale; /* pixels per unit of time */
    double width; /* of the rows */
    bool phase[N_PHASES], lighter, evicts;
    Text *t;
} Picture;

static void add_escaped(Text *t, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '&')
            text_add(t, "&amp;");
        else if (*p == '<')
            text_add(t, "&lt;");
        else if (*p == '>')
            text_add(t, "&gt;");
        else
            text_add(t, "%c", (unsigned char)*p < ' ' ? ' ' : *p);
    }
}

/* Returns the shade of an item: later chunks of a stage are lighter. */
static int shade_of(const Schedule *s, int item)
{
    const int chunk = schedule_chunk_of(s, item);
    int shade = 0;
    for (int c = 0; c < chunk && shade < SHADES - 1; c++)
        shade += s->stage_of[c] == s->stage_of[chunk];
    return shade;
}

/* Chooses a width at which the shortest RUN is legible, between MIN_WIDTH and MAX_WIDTH. */
static Err measure(Picture *p)
{
    double shortest = p->play->makespan;
    int64_t runs = 0;
    for (int stage = 0; stage < p->s->stages; stage++)
        for (int i = 0; i < p->s->n[stage]; i++) {
            const Action *a = &p->s->list[stage][i];
            const double time = p->play->end[stage][i] - p->play->start[stage][i];
            if (a->kind == A_EVICT || a->kind == A_FETCH) p->evicts = true;
            if (a->kind != A_RUN) continue;
            runs++;
            p->phase[a->phase] = true;
            if (shade_of(p->s, a->unit) > 0) p->lighter = true;
            if (time > 0 && time < shortest) shortest = time;
        }
    if (runs > MAX_SVG_RUNS)
        return err_fail(ERR_CONFIG,
                        "a picture of %lld RUNs; allowed are %d: draw fewer stages or "
                        "micro-batches",
                        (long long)runs, MAX_SVG_RUNS);
    const double all = p->play->makespan > 0 ? p->play->makespan : 1;
    p->width = shortest > 0 ? all / shortest * PER_RUN : MIN_WIDTH;
    if (p->width < MIN_WIDTH) p->width = MIN_WIDTH;
    if (p->width > MAX_WIDTH) p->width = MAX_WIDTH;
    p->scale = p->width / all;
    return OK;
}

static void add_head(Picture *p, const char *title)
{
    const double width = LEFT + p->width + RIGHT;
    const int height = TOP + p->s->stages * PITCH + BOTTOM;
    text_add(p->t,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" "
             "viewBox=\"0 0 %.0f %d\" font-family=\"sans-serif\" font-size=\"12\">\n<title>",
             width, height, width, height);
    add_escaped(p->t, title);
    text_add(p->t, "</title>\n"
                   "<defs><pattern id=\"wait\" width=\"6\" height=\"6\" "
                   "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
                   "<rect width=\"6\" height=\"6\" fill=\"#f4f4f4\"/>"
                   "<rect width=\"1.5\" height=\"6\" fill=\"#cccccc\"/></pattern></defs>\n"
                   "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
                   "<text x=\"8\" y=\"20\" font-size=\"15\" font-weight=\"bold\">");
    add_escaped(p->t, title);
    text_add(p->t,
             "</text>\n<text x=\"8\" y=\"42\" fill=\"#444444\">makespan %.6g, bubble %.6g, stages "
             "wait %.1f %% of their time</text>\n",
             p->play->makespan, p->play->bubble, 100 * p->play->idle);
}

static void add_run(Picture *p, int stage, int at, int y)
{
    const Action *a = &p->s->list[stage][at];
    const double start = p->play->start[stage][at], end = p->play->end[stage][at];
    const double x = LEFT + start * p->scale, width = (end - start) * p->scale;
    char text[ACTION_TEXT_BYTES], label[24];
    const int letters =
        snprintf(label, sizeof label, p->s->slices > 1 ? "%d.%d" : "%d", a->micro, a->slice);
    text_add(p->t,
             "<g><rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
             "stroke=\"#ffffff\" stroke-width=\"0.5\"/>",
             phase_name(a->phase), x, y, width, BAR, colour[shade_of(p->s, a->unit)][a->phase]);
    if (width >= letters * PER_LETTER + 4)
        text_add(p->t, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%s</text>", x + width / 2,
                 y + 15, label);
    text_add(p->t, "<title>%s: %.6g to %.6g</title></g>\n", action_text(a, p->s->slices, text),
             start, end);
}

/* Draws a line downward for an evicted frame, upward for a fetched one. */
static void add_frame(Picture *p, int stage, int at, int y)
{
    const Action *a = &p->s->list[stage][at];
    const double x = LEFT + p->play->start[stage][at] * p->scale;
    char text[ACTION_TEXT_BYTES];
    text_add(p->t, "<path d=\"M %.2f %d v %d\" stroke=\"%s\" stroke-width=\"2.5\"><title>", x,
             a->kind == A_EVICT ? y + BAR / 2 : y - 2, BAR / 2 + 2,
             a->kind == A_EVICT ? "#b00020" : "#1a3e8c");
    add_escaped(p->t, action_text(a, p->s->slices, text)); /* the text contains < or > */
    text_add(p->t, "</title></path>\n");
}

static void add_stage(Picture *p, int stage)
{
    const int y = TOP + stage * PITCH;
    text_add(p->t, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">stage %d</text>\n", LEFT - 8,
             y + 15, stage);
    text_add(p->t,
             "<rect class=\"stage\" x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
             "fill=\"url(#wait)\"/>\n",
             LEFT, y, p->width, BAR);
    for (int i = 0; i < p->s->n[stage]; i++)
        if (p->s->list[stage][i].kind == A_RUN) add_run(p, stage, i, y);
    for (int i = 0; i < p->s->n[stage]; i++) {
        const int kind = p->s->list[stage][i].kind;
        if (kind == A_EVICT || kind == A_FETCH) add_frame(p, stage, i, y);
    }
    text_add(p->t, "<text x=\"%.2f\" y=\"%d\" fill=\"#444444\">holds %d</text>\n",
             LEFT + p->width + 8, y + 15, p->play->peak[stage]);
}

/* Draws ticks at 1, 2 or 5 times a power of ten, about 100 pixels apart. */
static void add_ticks(Picture *p)
{
    const int y = TOP + p->s->stages * PITCH;
    double step = 1e-9;
    for (int i = 0; step * p->scale < 80; i++) step *= i % 3 == 1 ? 2.5 : 2;
    for (int i = 0; i * step <= p->play->makespan * (1 + 1e-9); i++)
        text_add(p->t,
                 "<path d=\"M %.2f %d v 5\" stroke=\"#888888\"/><text x=\"%.2f\" y=\"%d\" "
                 "text-anchor=\"middle\" fill=\"#444444\">%.6g</text>\n",
                 LEFT + i * step * p->scale, y, LEFT + i * step * p->scale, y + 18, i * step);
}

/* Draws a legend entry and returns the position of the next one. */
static double add_sample(Picture *p, double x, const char *fill, const char *text)
{
    const int y = TOP + p->s->stages * PITCH + 34;
    text_add(p->t,
             "<rect class=\"legend\" x=\"%.0f\" y=\"%d\" width=\"14\" height=\"14\" "
             "fill=\"%s\"/><text x=\"%.0f\" y=\"%d\">%s</text>\n",
             x, y, fill, x + 20, y + 11, text);
    return x + 36 + PER_LETTER * (double)strlen(text);
}

static void add_legend(Picture *p)
{
    double x = LEFT;
    for (int phase = 0; phase < N_PHASES; phase++)
        if (p->phase[phase]) x = add_sample(p, x, colour[0][phase], meaning[phase]);
    x = add_sample(p, x, "url(#wait)", "waits");
    if (p->lighter) x = add_sample(p, x, colour[1][PHASE_F], "lighter: a later chunk");
    if (p->evicts) {
        x = add_sample(p, x, "#b00020", "frame evicted");
        add_sample(p, x, "#1a3e8c", "frame fetched");
    }
}

Err schedule_svg(const Schedule *s, const Play *play, const char *title, Arena *arena,
                 const char **out)
{
    Text t = text_in(arena);
    Picture p = {.s = s, .play = play, .t = &t};
    TRY(measure(&p));
    add_head(&p, title);
    for (int stage = 0; stage < s->stages; stage++) add_stage(&p, stage);
    add_ticks(&p);
    add_legend(&p);
    text_add(&t, "</svg>\n");
    return text_done(&t, out);
}
