/* context_svg.c -- attention plans as SVG, which context_svg.h shows. */
#include "job/context_svg.h"

#include <stdio.h>
#include "base/text.h"

enum {
    LEFT = 64,      /* names of ranks */
    TOP = 40,       /* title */
    HEAD = 26,      /* of a panel */
    PITCH = 44,     /* from one rank to the next */
    BAR = 20,       /* height of a visit */
    LINE = 12,      /* height of an arrival */
    BOTTOM = 44,    /* legend */
    WIDTH = 760,    /* of the longer panel */
    LABEL = 40,     /* a visit this wide has its label */
    PER_LETTER = 7, /* of a legend */
};

static const char *const colour[N_PAYLOADS] = {"#6cb4ee", "#3aa57a", "#f0b429",
                                               "#b98bd8", "#e8825d", "#6cb4ee",
                                               "#3aa57a", "#b98bd8", "#e8825d"};
static const char *const meaning[N_PAYLOADS] = {
    "kv keys and values",      "q queries", "o, lse",   "dkv gradients of keys",
    "dq gradients of queries", "k keys",    "v values", "dk gradients of keys",
    "dv gradients of values"};
static const char own[] = "#9aa7b5", other[] = "#cfd7df";

typedef struct {
    const ContextPlan *p;
    ContextSpans spans;
    double scale; /* pixels per second */
    int y;        /* of the panel */
    bool moves[N_PAYLOADS];
    Text *t;
} PlanPicture;

static const char *half_name(ContextBlock b)
{
    return b.halves == HALF_FIRST ? "a" : b.halves == HALF_LATER ? "b" : "";
}

static void add_visit(PlanPicture *w, int rank, int i, int y)
{
    static const char *const pass[] = {"", "s", "v"};
    const ContextStep *s = &w->p->list[rank][i];
    const double start = w->spans.start_s[rank][i], end = w->spans.end_s[rank][i];
    const double x = LEFT + start * w->scale, width = (end - start) * w->scale;
    text_add(w->t,
             "<g><rect class=\"visit\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
             "fill=\"%s\" stroke=\"#ffffff\"/>",
             x, y, width, BAR, s->k.rank == rank && s->q.rank == rank ? own : other);
    if (width >= LABEL)
        text_add(w->t, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%d%sx%d%s</text>",
                 x + width / 2, y + 14, s->q.rank, half_name(s->q), s->k.rank, pass[s->pass]);
    text_add(w->t, "<title>queries %d%s with keys %d: %.3g to %.3g</title></g>\n", s->q.rank,
             half_name(s->q), s->k.rank, start, end);
}

static void add_arrival(PlanPicture *w, int rank, int i, int y)
{
    const ContextStep *s = &w->p->list[rank][i];
    const double start = w->spans.start_s[rank][i], end = w->spans.end_s[rank][i];
    const char *name = context_payload_name((ContextPayload)s->payload);
    w->moves[s->payload] = true;
    text_add(w->t,
             "<g><rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
             "fill=\"%s\"/>",
             name, LEFT + start * w->scale, y + BAR + 2, (end - start) * w->scale, LINE,
             colour[s->payload]);
    if ((end - start) * w->scale >= LABEL)
        text_add(
            w->t, "<text x=\"%.2f\" y=\"%d\" font-size=\"9\" text-anchor=\"middle\">%s%d%s</text>",
            LEFT + (start + end) / 2 * w->scale, y + BAR + 11, name, s->in.rank, half_name(s->in));
    text_add(w->t, "<title>%s of block %d%s from rank %d: %.3g to %.3g</title></g>\n", name,
             s->in.rank, half_name(s->in), s->from, start, end);
}

static void add_rank(PlanPicture *w, int rank)
{
    const int y = w->y + HEAD + rank * PITCH;
    text_add(w->t, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">rank %d</text>\n", LEFT - 8, y + 14,
             rank);
    text_add(w->t,
             "<rect class=\"rank\" x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
             "fill=\"url(#wait)\"/>\n",
             LEFT, y, w->spans.seconds * w->scale, BAR);
    for (int i = 0; i < w->p->n[rank]; i++) {
        const ContextStep *s = &w->p->list[rank][i];
        if (s->kind == CONTEXT_VISIT)
            add_visit(w, rank, i, y);
        else if (s->from >= 0)
            add_arrival(w, rank, i, y);
    }
}

static void add_panel(PlanPicture *w)
{
    text_add(w->t, "<text x=\"8\" y=\"%d\" font-weight=\"bold\">%s</text>\n", w->y + 14,
             w->p->backward ? "backward" : "forward");
    for (int rank = 0; rank < w->p->shape.ranks; rank++) add_rank(w, rank);
}

static double add_sample(PlanPicture *w, double x, const char *fill, const char *text)
{
    text_add(w->t,
             "<rect class=\"legend\" x=\"%.0f\" y=\"%d\" width=\"14\" height=\"14\" "
             "fill=\"%s\"/><text x=\"%.0f\" y=\"%d\">%s</text>\n",
             x, w->y + 16, fill, x + 20, w->y + 27, text);
    double letters = 0;
    for (const char *c = text; *c; c++) letters++;
    return x + 34 + PER_LETTER * letters;
}

static void add_legend(PlanPicture *w)
{
    double x = add_sample(w, 8, own, "own keys");
    x = add_sample(w, x, other, "others");
    x = add_sample(w, x, "url(#wait)", "waits");
    for (int i = 0; i < N_PAYLOADS; i++)
        if (w->moves[i]) x = add_sample(w, x, colour[i], meaning[i]);
}

static void add_head(Text *t, const char *title, int height)
{
    const int width = LEFT + WIDTH + 16;
    text_add(t,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
             "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
             "<title>%s</title>\n"
             "<defs><pattern id=\"wait\" width=\"6\" height=\"6\" "
             "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
             "<rect width=\"6\" height=\"6\" fill=\"#f4f4f4\"/>"
             "<rect width=\"1.5\" height=\"6\" fill=\"#cccccc\"/></pattern></defs>\n"
             "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
             "<text x=\"8\" y=\"22\" font-size=\"15\" font-weight=\"bold\">%s</text>\n",
             width, height, width, height, title, title);
}

Err context_svg(const ContextPlan plan[2], const ContextLoad *load, const char *title, Arena *arena,
                const char **out)
{
    const int ranks = plan[0].shape.ranks, panel = HEAD + ranks * PITCH;
    Text t = text_in(arena);
    PlanPicture w = {.t = &t, .y = TOP};
    ContextSpans spans[2];
    if (ranks > MAX_SVG_RANKS)
        return err_fail(ERR_CONFIG, "a picture of an attention plan of %d ranks; allowed are %d",
                        ranks, MAX_SVG_RANKS);
    for (int i = 0; i < 2; i++) TRY(context_clock_spans(&plan[i], load, arena, &spans[i]));
    const double longer = spans[0].seconds > spans[1].seconds ? spans[0].seconds : spans[1].seconds;
    w.scale = WIDTH / longer;
    add_head(&t, title, TOP + 2 * panel + BOTTOM);
    for (int i = 0; i < 2; i++) {
        w.p = &plan[i];
        w.spans = spans[i];
        add_panel(&w);
        w.y += panel;
    }
    add_legend(&w);
    text_add(&t, "</svg>\n");
    return text_done(&t, out);
}
