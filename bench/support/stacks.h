/* stacks.h -- software stacks of published measurements: share/stacks.csv.
 *
 * A stack row says on which cluster the runs of a source were, and how its software differs from
 * the plans of Sheaf: a factor on time, the axes whose transfers hide nothing (serial) and those
 * whose waits stop the host, and its memory (support/published_memory.h). It serves comparisons
 * with published tables alone. */
#ifndef BENCH_SUPPORT_STACKS_H
#define BENCH_SUPPORT_STACKS_H

#include "cost/cluster.h"
#include "support/csv.h"

typedef struct {
    const char *source, *gpu; /* the beginning of gpu_type: "A100" */
    double node_below;        /* GB/s that the row itself measured in its node; 0: any */
    const char *cluster;      /* share/clusters/NAME.yaml */
    double time;              /* factor on predicted times */
    unsigned serial, stops_host;
    bool eager;       /* every op is a kernel of its own */
    bool split_sends; /* the ranks along tp send a part each of a message between stages */
    bool interleaves; /* runs that name no number of chunks have one for each layer of a stage */
    /* Stages take blocks, in order, until they have passed their share of the flops of weights, as
     * nanotron deals them; false: equal numbers of layers. */
    bool stages_by_cost;
    /* Gradients without ZeRO are reduced in buckets that close when they have so many bytes; 0: one
     * for each layer, as Sheaf does. With ZeRO, collectives for each layer. With ZeRO 3, bytes that
     * take as long as one of Sheaf's. */
    double bucket_bytes, zero_calls, zero3_bytes;
    double grad_bytes; /* of a gradient that is reduced without ZeRO; Sheaf's are f32 */
    /* Megatron's fused softmax needs a multiple of so many sequences x heads on a rank; without it
     * an attention is 5 kernels more. 0: any number. */
    int softmax_of;
    /* Memory: support/published_memory.h. weight_bytes 0: the row has no numbers for it. */
    double weight_bytes, replica_bytes, state_bytes, gathered;
    double kept, logit_bytes, reserve_bytes;
    double capacity_bytes; /* of a device */
    /* A run is said to fit if it needs at most this part of the capacity: peaks scatter around the
     * predicted ones, and a false "fits" is worse than the opposite. */
    double fits_share;
    bool peak; /* its measured memory is the peak of a step */
} StackRow;

enum { MAX_STACKS = 64 };
typedef struct {
    int n;
    StackRow row[MAX_STACKS];
} StackTable;

/* Local. ERR_CONFIG names the row and the cell. */
Err stacks_read(const char *path, Arena *arena, StackTable *out);
/* Local. The first row of a source, a GPU and its node; NULL: there is none. */
StackRow *stack_find(StackTable *t, const char *source, const char *gpu, double node_gbps);

#endif
