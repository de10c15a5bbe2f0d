/* stages.c -- deals layers to stages by their share of the flops. */
#include "support/stages.h"

void stages_by_cost(const ModelConfig *c, int pp, StageShape *out)
{
    const double h = (double)c->width, layer = 4 * h * h + 3 * h * (double)c->ff_width;
    const double head = h * (double)c->vocab, total = layer * (double)c->n_layers + head;
    double sum = 0;
    int stage = 0;
    *out = (StageShape){.units = {1}}; /* the embedding */
    for (int64_t i = 0; i <= c->n_layers; i++) {
        const double share = total * (stage + 1) / pp;
        sum += i < c->n_layers ? layer : head;
        out->units[stage]++;
        if (i == c->n_layers)
            out->loss_apart = sum > share && stage < pp - 1;
        else if (sum >= share && stage < pp - 1)
            stage++;
    }
    out->n = stage + 1;
}

double buckets_per_layer(const ModelConfig *c, int tp, double bucket_bytes)
{
    const double h = (double)c->width, ff = (double)c->ff_width;
    const double kv = h * (double)c->n_kv_heads / (double)c->n_heads;
    const double bytes[] = {2 * ff * h, 4 * ff * h, 2 * h * h, 2 * h * (h + 2 * kv)};
    double held = 0, buckets = 0;
    for (int64_t i = 0; i < 4 * c->n_layers; i++) {
        held += bytes[i % 4] / tp;
        if (held < bucket_bytes) continue;
        buckets++;
        held = 0;
    }
    return (buckets + (held > 0)) / (double)c->n_layers;
}
