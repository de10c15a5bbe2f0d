/* published_memory.h -- the memory of a rank under another stack, from five numbers of its row.
 *
 *     weight_bytes   for each parameter of the rank, at any ZeRO stage
 *     state_bytes    for each parameter of the rank; shared along dp and cp from ZeRO 1 on
 *     kept           activations kept for backward, over those of a plain transformer layer
 *     logit_bytes    for each logit of the last stage
 *     reserve_gib    context, communicators, workspaces */
#ifndef BENCH_SUPPORT_PUBLISHED_MEMORY_H
#define BENCH_SUPPORT_PUBLISHED_MEMORY_H

#include "support/csv.h"
#include "support/stacks.h"

/* Local. Bytes of the rank that needs most, of the first and the last stage. */
double stack_bytes(const StackRow *s, const CsvTable *t, int row);

#endif
