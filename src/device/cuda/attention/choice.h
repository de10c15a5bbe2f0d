/* choice.h -- which kernels run an attention call: ours for sm_90a, cuDNN's, or our generic ones.
 *
 * A shape runs on the first kernels of that order that fit it, until the context measures; then all
 * that fit are timed on the caller's operands, as the fusions of GEMMs are, and the fastest is kept
 * with the other choices of the autotuner. A call that is promised to be causal is timed with that
 * mask, since it may be measured before its own is there. Calls that add to their outputs are not
 * timed, and take the choice of the same shape that overwrites them. The generic kernels are not
 * timed where those for sm_90a fit: they take about twice as long. */
#ifndef DEVICE_CUDA_ATTENTION_CHOICE_H
#define DEVICE_CUDA_ATTENTION_CHOICE_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are those of the autotune file. */
typedef enum { BY_ANY, BY_HOPPER, BY_CUDNN, BY_GENERIC, N_ATTENTION_KERNELS } AttentionKernels;

/* Everything that the choice depends on; compared as bytes. */
typedef struct {
    int64_t backward, any_order, rows, keys, heads, key_heads, channels, causal, out_type;
} AttentionKey;

enum { ATTENTION_NUMBERS = sizeof(AttentionKey) / sizeof(int64_t) };

typedef struct {
    AttentionKey shape;
    AttentionKernels by;
} AttentionEntry;

typedef struct {
    AttentionEntry *entry;
    int n, cap;
} AttentionTable;

/* attention.cu. A complete run of the call by these kernels; NULL if it does not fit them. */
typedef Err (*AttentionRun)(const Call *call);
AttentionRun attention_run_by(AttentionKernels by, const Call *call, bool backward);

/* Local. Runs the call by the kernels of its choice, which is measured first if it must be. */
Err attention_choice_run(const Call *call, bool backward);
/* Local. Sets the choice of a shape, from a file. */
Err attention_choice_put(AttentionTable *all, const AttentionKey *shape, AttentionKernels by);
void attention_choice_close(AttentionTable *all);

#ifdef __cplusplus
}
#endif

#endif
