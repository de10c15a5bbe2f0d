/* stages.h -- the stages of other stacks: blocks dealt in order by the flops of their weights.
 *
 *     share 335 M   layer layer ... layer | layer ... | ... | layer head
 *                   a stage takes blocks until their sum has passed its share of the total: the
 *                   block that passes it is its last one
 *
 * nanotron deals its blocks so; a layer counts 4 h^2 + 3 h ffn, the head vocab x h. */
#ifndef BENCH_SUPPORT_STAGES_H
#define BENCH_SUPPORT_STAGES_H

#include "model/config.h"

enum { MAX_STAGES = 512 };

typedef struct {
    int n;                 /* stages with a block: the embedding, a layer or the head */
    int units[MAX_STAGES]; /* embedding and head count as one each */
    bool loss_apart;       /* the stage behind them computes the loss of the head's logits */
} StageShape;

/* Local. pp: the stages that the plan asks for, at most MAX_STAGES. */
void stages_by_cost(const ModelConfig *c, int pp, StageShape *out);
/* Local. Buckets for each layer of a rank along tp: its bf16 gradients, of the weights of q, k and
 * v, of o, of gate and up, and of down, fill them in this order from the back; one closes when it
 * has bucket_bytes. */
double buckets_per_layer(const ModelConfig *c, int tp, double bucket_bytes);

#endif
