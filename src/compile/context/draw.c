/* draw.c -- attention plans as text; plan.h explains a line. */
#include <ctype.h>
#include <stdio.h>

#include "base/text.h"
#include "compile/context/plan.h"

/* "2", or "2a" and "2b" for the first and the later half. */
static const char *block_text(ContextBlock b, char buffer[16])
{
    const char *half = b.halves == HALF_FIRST ? "a" : b.halves == HALF_LATER ? "b" : "";
    snprintf(buffer, 16, "%d%s", b.rank, half);
    return buffer;
}

static void draw_move(Text *t, const ContextStep *s)
{
    char name[8], block[16];
    snprintf(name, sizeof name, "%s", context_payload_name(s->payload));
    for (char *c = name; *c && s->bulk; c++) *c = (char)toupper(*c);
    if (s->to >= 0) text_add(t, "%s%s>%d", name, block_text(s->out, block), s->to);
    if (s->from < 0) return;
    text_add(t, "%s%s%s<%d", s->to >= 0 ? "," : "", name, block_text(s->in, block), s->from);
}

Err context_draw(const ContextPlan *p, const char *before, Arena *arena, const char **out)
{
    static const char *const pass[] = {"", "s", "v"};
    const int columns = snprintf(NULL, 0, "%d", p->shape.ranks - 1);
    char q[16], k[16];
    Text t = text_in(arena);
    for (int rank = 0; rank < p->shape.ranks; rank++) {
        text_add(&t, "%srank %-*d |", before, columns, rank);
        for (int i = 0; i < p->n[rank]; i++) {
            const ContextStep *s = &p->list[rank][i];
            text_add(&t, " ");
            if (s->kind == CONTEXT_VISIT)
                text_add(&t, "%sx%s%s", block_text(s->q, q), block_text(s->k, k), pass[s->pass]);
            else
                draw_move(&t, s);
        }
        text_add(&t, "\n");
    }
    return text_done(&t, out);
}
