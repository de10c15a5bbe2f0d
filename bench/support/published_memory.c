/* published_memory.c -- sums parameters, frames and logits of the first and the last stage. */
#include "support/published_memory.h"

#include <math.h>
#include <string.h>

typedef struct {
    double layers, width, ff, vocab, tokens, kv, tp, pp, dp, cp, micros, zero;
    bool tied, gated;
} StackShape;

static double cell(const CsvTable *t, int row, const char *column)
{
    return csv_number(t, row, column, 1);
}

static StackShape read_shape(const CsvTable *t, int row)
{
    const char *notes = csv_text(t, row, "notes");
    StackShape s = {.layers = cell(t, row, "layers"),
                    .width = cell(t, row, "hidden"),
                    .ff = cell(t, row, "ffn"),
                    .vocab = cell(t, row, "vocab"),
                    .tp = cell(t, row, "tp"),
                    .pp = cell(t, row, "pp"),
                    .dp = cell(t, row, "dp"),
                    .cp = cell(t, row, "cp"),
                    .zero = csv_number(t, row, "zero", 0),
                    .tied = strstr(notes, "tied=1") != NULL,
                    .gated = strstr(notes, "gated=1") != NULL};
    const double micro = cell(t, row, "micro_batch");
    s.tokens = micro * cell(t, row, "seq_len") / s.cp;
    s.kv = s.width * cell(t, row, "kv_heads") / cell(t, row, "heads");
    s.micros = cell(t, row, "global_batch") / (micro * s.dp);
    return s;
}

/* Parameters of a rank of the stage; layers are dealt in equal numbers, rounded up. */
static double stage_params(const StackShape *s, bool first, bool last)
{
    const double layer = 2 * s->width * (s->width + s->kv) + (s->gated ? 3 : 2) * s->width * s->ff;
    const double tables = (first ? 1 : 0) + (last && !(s->tied && s->pp == 1) ? 1 : 0);
    return (ceil(s->layers / s->pp) * layer + tables * s->vocab * s->width) / s->tp;
}

static double stage_bytes(const StackRow *r, const StackShape *s, bool first, bool last)
{
    const double params = stage_params(s, first, last), shared = s->zero >= 1 ? s->dp * s->cp : 1;
    const double frames = fmin(s->micros, first ? s->pp : 1);
    const double layer = 2 * s->tokens * (10 * s->width + 3 * s->ff + 2 * s->kv) / s->tp;
    const double logits = last ? r->logit_bytes * s->tokens * s->vocab / s->tp : 0;
    return params * (r->weight_bytes + r->state_bytes / shared) +
           r->kept * layer * ceil(s->layers / s->pp) * frames + logits + r->reserve_bytes;
}

double stack_bytes(const StackRow *r, const CsvTable *t, int row)
{
    const StackShape s = read_shape(t, row);
    return fmax(stage_bytes(r, &s, true, s.pp == 1), stage_bytes(r, &s, s.pp == 1, true));
}
