/* published_memory.c -- sums parameters, frames and logits of each stage. */
#include "support/published_memory.h"

#include <math.h>
#include <string.h>

#include "support/stages.h"

static double cell(const CsvTable *t, int row, const char *column)
{
    return csv_number(t, row, column, 1);
}

StackShape stack_shape(const CsvTable *t, int row)
{
    const char *notes = csv_text(t, row, "notes");
    StackShape s = {.layers = cell(t, row, "layers"),
                    .width = cell(t, row, "hidden"),
                    .ff = cell(t, row, "ffn"),
                    .vocab = cell(t, row, "vocab"),
                    .tp = cell(t, row, "tp"),
                    .pp = cell(t, row, "pp"),
                    .zero = csv_number(t, row, "zero", 0),
                    .tied = strstr(notes, "tied=1") != NULL,
                    .gated = strstr(notes, "gated=1") != NULL};
    const double micro = cell(t, row, "micro_batch"), dp = cell(t, row, "dp");
    const double cp = cell(t, row, "cp");
    s.replicas = dp * cp;
    s.tokens = micro * cell(t, row, "seq_len") / cp;
    s.kv = s.width * cell(t, row, "kv_heads") / cell(t, row, "heads");
    s.micros = cell(t, row, "global_batch") / (micro * dp);
    return s;
}

/* The layers of each stage and the stage of the head. */
static void deal(const StackRow *r, const StackShape *s, int layers[MAX_STAGES], int *head)
{
    const ModelConfig c = {.n_layers = (int64_t)s->layers,
                           .width = (int64_t)s->width,
                           .ff_width = (int64_t)s->ff,
                           .vocab = (int64_t)s->vocab};
    const int pp = (int)s->pp;
    StageShape dealt;
    for (int i = 0; i < pp; i++) layers[i] = (int)ceil(s->layers / s->pp);
    *head = pp - 1;
    if (!r->stages_by_cost) return;
    stages_by_cost(&c, pp, &dealt);
    *head = dealt.n - 1;
    for (int i = 0; i < pp; i++)
        layers[i] = i < dealt.n ? dealt.units[i] - (i == 0) - (i == *head) : 0;
}

static double stage_bytes(const StackRow *r, const StackShape *s, int stage, int layers, int head)
{
    const double tables = (stage == 0) + (stage == head) - (s->tied && stage == head && head == 0);
    const double layer = 2 * s->width * (s->width + s->kv) + (s->gated ? 3 : 2) * s->width * s->ff;
    const double params = (layers * layer + tables * s->vocab * s->width) / s->tp;
    const double each = r->weight_bytes + (s->replicas > 1 ? r->replica_bytes : 0) +
                        r->state_bytes / (s->zero >= 1 ? s->replicas : 1);
    const double frames = layers * fmin(s->micros, s->pp - stage);
    const double kept = 2 * s->tokens * (10 * s->width + 3 * s->ff + 2 * s->kv) / s->tp;
    const double whole = s->tp > 1 ? 2 * r->gathered * s->tokens * s->width * frames : 0;
    const double logits = stage == head ? r->logit_bytes * s->tokens * s->vocab / s->tp : 0;
    return params * each + r->kept * kept * frames + whole + logits + r->reserve_bytes;
}

bool stack_fits(const StackRow *s, double bytes)
{
    return bytes <= s->fits_share * s->capacity_bytes;
}

double stack_bytes(const StackRow *r, const StackShape *s)
{
    int layers[MAX_STAGES], head;
    double most = 0;
    if (s->pp > MAX_STAGES) return 0;
    deal(r, s, layers, &head);
    for (int i = 0; i < (int)s->pp; i++) most = fmax(most, stage_bytes(r, s, i, layers[i], head));
    return most;
}
