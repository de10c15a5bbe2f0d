/* runtime.h -- devices whose memory is not the host's: queues, allocations, copies, lists.
 *
 * A rank opens a context on one device: four queues, the handles of libraries and a workspace of
 * their own. What is put into one queue runs in order; queues run beside each other, and an event
 * recorded in one holds another back:
 *
 *     compute  | kernels ........... record e ....... kernels
 *     d2h      |                     wait e, copy out
 *
 *     const DeviceRuntime *m = device->runtime;                   NULL: the device is the host
 *     TRY(m->open(0, &context));
 *     TRY(m->alloc(context, bytes, &arena));
 *     call.queue = m->queue(context, QUEUE_COMPUTE);
 *     TRY(device->kernel[KERNEL_add](&call));                   returns before it has run
 *     TRY(m->sync(call.queue));                                 now it has
 *
 * A context is used by one thread at a time. Calls fail with ERR_NOMEM when memory is short and
 * with ERR_IO when the device is at fault; a fault of a kernel shows at a later call. */
#ifndef DEVICE_RUNTIME_H
#define DEVICE_RUNTIME_H

#include "device/device.h"

typedef struct DeviceContext DeviceContext;
typedef struct DeviceQueue DeviceQueue;
typedef struct DeviceEvent DeviceEvent;
typedef struct DeviceList DeviceList;
typedef struct DeviceTimestamps DeviceTimestamps;
typedef struct DeviceGraph DeviceGraph;

/* The queues of an instruction. Work in one queue runs in order; work in different queues is ordered
 * by events. A device opens one queue of each kind except QUEUE_HOST, which is the calling thread. */
typedef enum { QUEUE_COMPUTE, QUEUE_COMM, QUEUE_D2H, QUEUE_H2D, QUEUE_HOST, N_QUEUES } Queue;
enum { N_DEVICE_QUEUES = QUEUE_HOST };

typedef struct {
    char name[128]; /* "NVIDIA H200, sm_90; cuBLASLt 13.0.0; ..." */
    size_t total_bytes, free_bytes;
    size_t workspace_bytes;       /* held by the context and its graphs, beside what alloc gave */
    double bf16_flops, f32_flops; /* per second by the datasheet; 0: not in our table */
    double memory_Bps;            /* by the datasheet */
} DeviceInfo;

/* One tensor of an update: grad[n] in f32 or bf16, the others f32 but `weight`, which takes the new
 * weights as bf16, or is NULL. Without moments (both NULL) it is SGD, else AdamW. */
typedef struct {
    const void *grad;
    float *master, *m, *v;
    void *weight;
    int64_t n;
    double decay;
    DType grad_type;
} UpdatePiece;

/* What is another in each step. It is read from device memory when an update runs, so that a graph
 * (see `capture_begin`) is of any step. */
typedef struct {
    double lr, bias1, bias2;
} UpdateRates;

/* `rates` and `factor` lie in device memory; of the factor see `clip`. One that is NaN updates
 * nothing. */
typedef struct {
    double beta1, beta2, eps;
    const UpdateRates *rates;
    const double *factor;
} UpdateNumbers;

/* A block of a gradient: *sum = keep * *sum + the squares of x[n], as kernel sum_squares. */
typedef struct {
    const void *x;
    int64_t n;
    double *sum;
    double keep;
    DType dtype;
} SquaresPiece;

/* From sums of squares to a factor: out[1] = the norm = sqrt(left fold of sums[n]) * *mean; out[0] =
 * *mean, times max_norm / norm where max_norm > 0 and the norm is above it. A norm or a loss that is
 * not finite, and a norm above `skip` > 0, make out[0] NaN. All pointers are to device memory. */
typedef struct {
    const double *sums;
    int64_t n;
    const double *mean;
    double max_norm, skip;
    const float *loss; /* loss[i * loss_stride], i < n_losses */
    int64_t n_losses, loss_stride;
    double *out;
} DeviceClip;

enum { MAX_DEVICE_FOLD = 128 };

/* Element by element, a left fold of x[0 .. n), written to out[0 .. n_out): sums, or maxima, of
 * which one over a NaN is NaN. bf16 is folded in f32 and rounded once; sums of integers wrap. An
 * out may be one of the x. n and n_out are at most MAX_DEVICE_FOLD. */
typedef struct {
    DType dtype;
    bool max;
    int n, n_out;
    const void *const *x;
    void *const *out;
    int64_t count;
} DeviceFold;

/* The optimizer of a step as lists of tensors; optional. */
typedef struct {
    /* Many tensors in one launch. A list is made once, of pieces in device memory, and run each
     * step; a rank's UPDATE is squares_run, clip, update_run, and asks the host for nothing. */
    Err (*squares_open)(DeviceContext *c, const SquaresPiece *piece, int n, DeviceList **out);
    Err (*squares_run)(DeviceQueue *q, const DeviceList *l);
    Err (*update_open)(DeviceContext *c, const UpdatePiece *piece, int n, DeviceList **out);
    Err (*update_run)(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *numbers);
    void (*list_close)(DeviceList *l);
    Err (*clip)(DeviceQueue *q, const DeviceClip *clip);
} DeviceLists;

/* Steps captured as graphs; optional. */
typedef struct {
    /* Between begin and end, what this thread puts into the queue is noted and does not run; likewise
     * what it puts into others of the context that have waited for an event of it, and for which it
     * waits again before the end. Addresses and numbers are those that calls were given; memory that
     * they name is read when the graph runs. Nothing may wait for a queue, or allocate, meanwhile.
     * The end is called also after an error, and leaves no queue noting; out NULL: what was noted is
     * dropped. */
    Err (*capture_begin)(DeviceQueue *q);
    Err (*capture_end)(DeviceQueue *q, DeviceGraph **out);
    /* All of it, in the order of the queue. One that no longer fits must not run: what the context
     * keeps for kernels (scratch, choices of algorithms) is another by now. */
    Err (*graph_run)(DeviceQueue *q, DeviceGraph *g);
    bool (*graph_fits)(const DeviceGraph *g);
    void (*graph_close)(DeviceGraph *g); /* when it does not run */
} DeviceGraphs;

/* The choice of a GEMM algorithm for each shape; optional. */
typedef struct {
    /* Which algorithm each product runs by. Measured: the first call of a shape times the library's
     * candidates, and later ones take turns at those that are close, each timed where it stands;
     * the fastest stays when measuring ends. Else its first suggestion is taken. left: how
     * many products have several left. Saved and loaded as text; a file of another device or
     * library is refused, and one of another version: its first line is "sheaf autotune VERSION". */
    void (*measure)(DeviceContext *c, bool on);
    int (*left)(const DeviceContext *c);
    Err (*save)(DeviceContext *c, const char *path);
    Err (*load)(DeviceContext *c, const char *path);
} DeviceAutotune;

typedef struct DeviceRuntime {
    /* Devices here; 0 with a message in err_text when there is none. */
    int (*count)(void);
    Err (*open)(int ordinal, DeviceContext **out);
    void (*close)(DeviceContext *c); /* waits for its queues */
    DeviceQueue *(*queue)(DeviceContext *c, Queue queue);
    Err (*info)(DeviceContext *c, DeviceInfo *out);
    /* A number that is the card's own, on all hosts. */
    Err (*identify)(int ordinal, uint64_t *out);
    /* One more queue, for a library that puts work into it by itself; and what that library calls it:
     * of CUDA a cudaStream_t, whose GPU is then this thread's. */
    Err (*queue_open)(DeviceContext *c, DeviceQueue **out);
    void (*queue_close)(DeviceQueue *q); /* waits for it */
    Err (*native)(DeviceQueue *q, void **out);

    Err (*alloc)(DeviceContext *c, size_t bytes, void **out);
    void (*free)(DeviceContext *c, void *at);
    /* Host memory that copies do not stop at, and that kernels see at the same address. */
    Err (*alloc_host)(DeviceContext *c, size_t bytes, void **out);
    void (*free_host)(DeviceContext *c, void *at);

    /* In the order of the queue; each side on the device or on the host. */
    Err (*copy)(DeviceQueue *q, void *to, const void *from, size_t bytes);
    Err (*set)(DeviceQueue *q, void *to, int byte, size_t bytes);

    Err (*event_open)(DeviceContext *c, DeviceEvent **out);
    void (*event_close)(DeviceEvent *e);
    Err (*record)(DeviceQueue *q, DeviceEvent *e);
    Err (*wait)(DeviceQueue *q, DeviceEvent *e); /* the queue waits; the host goes on */
    Err (*done)(DeviceEvent *e, bool *out);      /* the host looks */
    Err (*sync_event)(DeviceEvent *e);           /* the host waits */
    Err (*sync)(DeviceQueue *q);                 /* likewise, for all that is in the queue */

    /* Moments at which a queue passed: for who asks how long its work took. */
    Err (*timestamps_open)(DeviceContext *c, int n, DeviceTimestamps **out);
    void (*timestamps_close)(DeviceTimestamps *m);
    Err (*timestamp)(DeviceQueue *q, DeviceTimestamps *t, int i);
    /* Seconds from mark 0 to each of the first n, all of which have passed. */
    Err (*timestamps_read)(const DeviceTimestamps *m, int n, double *seconds);

    Err (*fold)(DeviceQueue *q, const DeviceFold *fold);

    /* Whether calls give the same bits every time, which is so at first. Off, a library may add in
     * any order where that is faster: the gradient of attention; what is recomputed may be
     * rounded elsewhere than it was: the gelu of a product; and what is made with another output may
     * be summed otherwise than alone: the rows of a gelu's gradient. */
    void (*deterministic)(DeviceContext *c, bool on);
    /* Optional parts; NULL: the device has none. */
    const DeviceLists *lists;
    const DeviceGraphs *graphs;
    const DeviceAutotune *autotune;
} DeviceRuntime;

enum { AUTOTUNE_VERSION = 5 }; /* of the text of `save`; shapes of an older file are measured again */

#endif
