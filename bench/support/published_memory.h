/* published_memory.h -- the memory of a rank under another stack, from the numbers of its row.
 *
 *     weight_bytes   for each parameter of the rank, at any ZeRO stage
 *     replica_bytes  more for each parameter, if the rank has replicas: a copy of its gradients
 *     state_bytes    for each parameter of the rank; shared along dp and cp from ZeRO 1 on
 *     gathered       values of the stream's width, for each token of a layer's activations, that a
 *                    rank holds whole along tp: gathered inputs that its allocator cannot reuse yet
 *     kept           activations kept for backward, over those of a plain transformer layer
 *     logit_bytes    for each logit of the stage that has the head
 *     reserve_gib    context, communicators, workspaces
 *
 * replica_bytes and state_bytes are of the stack's documentation. --fit fits the others,
 * weight_bytes near to its documented value: it has the padding and the buffers of all others. */
#ifndef BENCH_SUPPORT_PUBLISHED_MEMORY_H
#define BENCH_SUPPORT_PUBLISHED_MEMORY_H

#include "support/csv.h"
#include "support/stacks.h"

/* The memory that a row of a table reports. */
typedef struct {
    double layers, width, ff, vocab, tokens, kv, tp, pp, replicas, micros, zero;
    bool tied, gated;
} StackShape;

/* Local. */
StackShape stack_shape(const CsvTable *t, int row);
/* Local. Bytes of the rank that needs most, of all stages. */
double stack_bytes(const StackRow *s, const StackShape *shape);
/* Local. True if a rank that needs so many bytes is said to fit. */
bool stack_fits(const StackRow *s, double bytes);

#endif
