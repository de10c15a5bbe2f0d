/* parts.h -- internal to the measurement of a machine.
 *
 *     measure.c    repetitions, operands, single rates
 *     tables.c     grids and curves of kernels
 *     links.c      collectives and pairs
 *     nodes.c      links between nodes, from the pairs
 *     overlap.c    work beside transfers
 *     card.h       kernels of a device with memory of its own */
#ifndef PLAN_MEASURE_PARTS_H
#define PLAN_MEASURE_PARTS_H

#include "device/runtime.h"
#include "plan/measure/measure.h"

enum { MAX_REPEATS = 2000, LEAST_REPEATS = 3 };

typedef struct {
    const MeasureSettings *s;
    WorldRank *r;
    Measurement *out;
    double *seconds;   /* [MAX_REPEATS] */
    double *cell;      /* one number, registered with the comm: the barrier */
    int32_t *all;      /* [ranks] */
    size_t link_bytes; /* of the largest transfer; ARENA_LOOP has twice that, where the device has
                        * its memory */
    Arena *operands;   /* of kernels: the rank's arena, or a block of the device's memory */
    /* A device with memory of its own; NULL: the host. */
    const DeviceRuntime *rt;
    DeviceContext *context;
    DeviceQueue *queue;
    double spread; /* of the last kernel of a device */
} Measurer;

/* A repetition: a kernel, or a transfer. */
typedef Err Repeat(Measurer *m, void *work);

typedef struct {
    Kernel kernel;
    Call call;
} TimedCall;

/* Collective. Runs the repetition once to warm up, then until the budget is spent, and sets the
 * median seconds and the spread of the row. All ranks start together. fixed: the number of
 * repetitions, equal on all ranks, which a transfer needs; 0: by the budget. */
Err measure_repeat(Measurer *m, Repeat *one, void *work, int fixed, Measured *row);
/* Local. Sorts x. */
double measure_median(double *x, int n);
/* Local. A repetition of a TimedCall. */
Err measure_call(Measurer *m, void *timed_call);
/* Local. An operand in m->operands, zero on the host. */
Err measure_tensor(Measurer *m, DType dtype, int ndim, const int64_t *n, Tensor *out);
/* Local. Appends a row; its value becomes `amount` per second in units of `unit`. */
void measure_keep(Measurer *m, Measured row, double amount, double unit);
/* Local. Says on rank 0 what is measured. */
void measure_progress(const Measurer *m, const char *what);

/* Local. Keeps a row whose value is a time: `seconds`. */
void measure_keep_time(Measurer *m, Measured row, double seconds);
/* Collective. An all-reduce over all ranks, in place. */
Err measure_all_reduce(Measurer *m, int arena, int64_t count, DType dtype);
/* Collective over its group: a transfer, complete on this rank when it returns. */
Err measure_transfer(Measurer *m, const Transfer *t);

/* Collective. */
Err measure_links(Measurer *m);
Err measure_gemm_grid(Measurer *m, DType dtype);
Err measure_attention_curve(Measurer *m, DType dtype);
Err measure_memory_curve(Measurer *m);
/* Collective. Of several ranks. */
Err measure_overlap(Measurer *m);
/* Local. Finds links between nodes that are slower than others, from the matrix of pairs. */
void measure_nodes(Measurement *out);
/* Local. All kernels of a device with memory of its own. */
Err measure_card(Measurer *m);

#endif
