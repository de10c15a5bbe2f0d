/* runtime.h -- the runtime API of a device with its own memory: queues, events, allocation, copies.
 *
 * A rank opens a context on one device: four queues, library handles and their workspaces. Work in
 * one queue runs in order. Different queues run concurrently; an event recorded in one can block
 * another:
 *
 *     compute  | kernels ........... record e ....... kernels
 *     d2h      |                     wait e, copy out
 *
 *     const DeviceRuntime *rt = device->runtime;                NULL: the device is the host
 *     TRY(rt->open(0, &context));
 *     TRY(rt->alloc(context, bytes, &arena));
 *     call.queue = rt->queue(context, QUEUE_COMPUTE);
 *     TRY(device->kernel[KERNEL_add](&call));                   returns before it has run
 *     TRY(rt->sync(call.queue));                                now it has
 *
 * Graphs, optimizer lists and autotuning are separate tables, which a device may leave out. One
 * thread at a time uses a context. Calls return ERR_NOMEM if memory is short and ERR_IO if the
 * device fails; the failure of a kernel may be returned by a later call. */
#ifndef DEVICE_RUNTIME_H
#define DEVICE_RUNTIME_H

#include "device/device.h"
#include "device/workspace.h"

typedef struct DeviceContext DeviceContext;
typedef struct DeviceQueue DeviceQueue;
typedef struct DeviceEvent DeviceEvent;
typedef struct DeviceList DeviceList;
typedef struct DeviceTimestamps DeviceTimestamps;
typedef struct DeviceGraph DeviceGraph;

/* The queues of an instruction. Work in one queue runs in order; events order work in different
 * queues. A device opens one queue of each kind except QUEUE_HOST, which is the calling thread. */
typedef enum { QUEUE_COMPUTE, QUEUE_COMM, QUEUE_D2H, QUEUE_H2D, QUEUE_HOST, N_QUEUES } Queue;
enum { N_DEVICE_QUEUES = QUEUE_HOST };

typedef struct {
    char name[128]; /* "NVIDIA H200, sm_90; cuBLASLt 13.0.0; ..." */
    size_t total_bytes, free_bytes;
    size_t workspace_bytes;       /* held by the context and its graphs, in addition to `alloc` */
    double bf16_flops, f32_flops; /* per second by the datasheet; 0: not in the table */
    double memory_Bps;            /* by the datasheet */
} DeviceInfo;

/* One tensor of n elements of an optimizer update, in device memory: AdamW, or SGD if m and v are
 * NULL. */
typedef struct {
    const void *grad; /* grad_type: f32 or bf16 */
    float *master;    /* master weights, updated */
    float *m, *v;     /* first and second moments, updated */
    void *weight;     /* receives the new weights as bf16; NULL: programs read `master` */
    int64_t n;
    double decay; /* weight decay */
    DType grad_type;
    bool marks;       /* kernel age_marks, and nothing else */
    double sign_rate; /* > 0: master -= sign_rate * sign(grad), and nothing else */
} UpdatePiece;

/* Step-dependent numbers of an update. They are read from device memory when the update runs, so a
 * captured graph serves every step. */
typedef struct {
    double lr;
    double bias1, bias2; /* Adam's bias correction: 1 - beta1^t, 1 - beta2^t of update t */
} UpdateRates;

/* Numbers of an update. `rates` and `factor` point to device memory. */
typedef struct {
    double beta1, beta2, eps;
    const UpdateRates *rates;
    const double *factor; /* gradient scale, as `clip` writes it; NaN: nothing is updated */
} UpdateNumbers;

/* One block of a gradient: *sum = keep * *sum + the squares of x[n], as kernel sum_squares. */
typedef struct {
    const void *x;
    int64_t n;
    double *sum;
    double keep;
    DType dtype;
} SquaresPiece;

/* Gradient clipping, from sums of squares to the gradient scale. All pointers are to device memory.
 *
 *     out[1] = norm = sqrt(left fold of sums[n]) * *mean       norm of the mean gradient
 *     out[0] = *mean                                           if norm <= max_norm or max_norm = 0
 *              *mean * max_norm / norm                         above max_norm
 *              NaN: the step is skipped                        norm or a loss is not finite, or
 *                                                              skip > 0 and norm > skip */
typedef struct {
    const double *sums;
    int64_t n;
    const double *mean; /* 1 / live tokens of the step */
    double max_norm, skip;
    const float *loss; /* loss[i * loss_stride], i < n_losses */
    int64_t n_losses, loss_stride;
    double *out;
} DeviceClip;

enum { MAX_DEVICE_FOLD = 128 };

/* An elementwise left fold of the arrays x[0 .. n), as sums or maxima; the result is written to
 * each of out[0 .. n_out), which may be one of the x. In a maximum NaN propagates. bf16 is folded
 * in f32 and rounded once; integer sums wrap. */
typedef struct {
    DType dtype;
    bool max;     /* maxima; else sums */
    int n, n_out; /* numbers of arrays, at most MAX_DEVICE_FOLD each */
    const void *const *x;
    void *const *out;
    int64_t count; /* elements of each array */
} DeviceFold;

/* The optimizer step over lists of tensors, many tensors per launch; optional. A list is made once,
 * of pieces in device memory, and run each step. A NORM is squares_run and, if no other rank takes
 * part in the norm, clip; an UPDATE is update_run. `memory` holds the list: device memory of the
 * caller's, of the bytes of list_layout (device/workspace.h); NULL: the device allocates it. */
typedef struct {
    DeviceListShape squares_shape, update_shape;
    Err (*squares_open)(DeviceContext *c, const SquaresPiece *piece, int n, void *memory,
                        DeviceList **out);
    Err (*squares_run)(DeviceQueue *q, const DeviceList *l);
    Err (*update_open)(DeviceContext *c, const UpdatePiece *piece, int n, void *memory,
                       DeviceList **out);
    Err (*update_run)(DeviceQueue *q, const DeviceList *l, const UpdateNumbers *numbers);
    void (*list_close)(DeviceList *l);
    Err (*clip)(DeviceQueue *q, const DeviceClip *clip);
} DeviceLists;

/* Graph capture of a step; optional. */
typedef struct {
    /* Between capture_begin and capture_end, work that this thread puts into the queue is recorded
     * and does not run. So is work in another queue of the context, if that queue waits for an
     * event of this one before the work, and this queue waits for it before the end. Addresses and
     * numbers are those of the recorded calls; memory is read when the graph runs. During a capture
     * the thread must neither synchronize a queue nor allocate. capture_end must also be called
     * after an error, to stop recording. out NULL: the recording is discarded. */
    Err (*capture_begin)(DeviceQueue *q);
    Err (*capture_end)(DeviceQueue *q, DeviceGraph **out);
    /* Runs the whole graph, in the order of the queue. Requires graph_fits. */
    Err (*graph_run)(DeviceQueue *q, DeviceGraph *g);
    /* True unless the context's scratch memory or algorithm choices have changed since the capture;
     * the graph would use the old ones. */
    bool (*graph_fits)(const DeviceGraph *g);
    void (*graph_close)(DeviceGraph *g); /* the graph must not be running */
} DeviceGraphs;

/* The choice of a GEMM algorithm for each shape; optional. */
typedef struct {
    /* Switches measuring on or off. While it is on, the first call of a shape times the library's
     * candidates. Later calls alternate between the candidates that are close, each timed in place.
     * The fastest is chosen when measuring ends. Shapes that were never measured use the library's
     * first suggestion. */
    void (*measure)(DeviceContext *c, bool on);
    int (*left)(const DeviceContext *c); /* number of shapes that still have several candidates */
    /* Writes and reads the choices as text. `load` refuses a file of another device, library
     * version or AUTOTUNE_VERSION: ERR_CONFIG. */
    Err (*save)(DeviceContext *c, const char *path);
    Err (*load)(DeviceContext *c, const char *path);
} DeviceAutotune;

typedef struct DeviceRuntime {
    /* Returns the number of devices; 0 with a message in err_text if there is none. */
    int (*count)(void);
    Err (*open)(int ordinal, DeviceContext **out);
    void (*close)(DeviceContext *c); /* waits for its queues */
    DeviceQueue *(*queue)(DeviceContext *c, Queue queue);
    Err (*info)(DeviceContext *c, DeviceInfo *out);
    /* Writes a number that identifies the card among all hosts. */
    Err (*identify)(int ordinal, uint64_t *out);
    /* Opens one more queue, for a library that enqueues work itself. `native` returns the library's
     * handle: for CUDA a cudaStream_t, whose GPU becomes this thread's current device. */
    Err (*queue_open)(DeviceContext *c, DeviceQueue **out);
    void (*queue_close)(DeviceQueue *q); /* waits for it */
    Err (*native)(DeviceQueue *q, void **out);

    Err (*alloc)(DeviceContext *c, size_t bytes, void **out);
    void (*free)(DeviceContext *c, void *at);
    /* Pinned host memory: copies to and from it are asynchronous, and kernels see it at the same
     * address. */
    Err (*alloc_host)(DeviceContext *c, size_t bytes, void **out);
    void (*free_host)(DeviceContext *c, void *at);

    /* Copy and fill bytes in the order of the queue; `to` and `from` are device or host memory. */
    Err (*copy)(DeviceQueue *q, void *to, const void *from, size_t bytes);
    Err (*set)(DeviceQueue *q, void *to, int byte, size_t bytes);

    Err (*event_open)(DeviceContext *c, DeviceEvent **out);
    void (*event_close)(DeviceEvent *e);
    Err (*record)(DeviceQueue *q, DeviceEvent *e);
    Err (*wait)(DeviceQueue *q, DeviceEvent *e); /* the queue waits; the host continues */
    Err (*done)(DeviceEvent *e, bool *out);      /* polls: *out = the event has passed */
    Err (*sync_event)(DeviceEvent *e);           /* the host waits */
    Err (*sync)(DeviceQueue *q);                 /* the host waits for all work in the queue */

    /* Times at which a queue passed given positions: they measure the duration of its work. */
    Err (*timestamps_open)(DeviceContext *c, int n, DeviceTimestamps **out);
    void (*timestamps_close)(DeviceTimestamps *t);
    Err (*timestamp)(DeviceQueue *q, DeviceTimestamps *t, int i);
    /* Seconds from timestamp 0 to each of the first n, all of which have passed. */
    Err (*timestamps_read)(const DeviceTimestamps *t, int n, double *seconds);

    Err (*fold)(DeviceQueue *q, const DeviceFold *fold); /* in the order of the queue */

    /* True, the default: calls give the same bits every time. False permits faster variants. A
     * library may add in any order (the gradient of attention). A recomputed value may be rounded
     * at another point (the gelu of a GEMM). An output that is fused with another may be summed in
     * another order (the bias gradient of linear_dgelu). */
    void (*deterministic)(DeviceContext *c, bool on);
    /* Gives kernels of the compute queue their scratch: memory of the caller's, of the bytes that
     * device/workspace.h computes. From then on they allocate none, and a kernel that takes more
     * fails with ERR_CHECK. at NULL: takes it back; the device allocates scratch as kernels take
     * it. Captured graphs no longer fit. NULL: the device's kernels take none. */
    Err (*scratch)(DeviceContext *c, void *at, size_t bytes);
    /* Writes which of the device's implementations runs this attention, or its gradient, and why:
     * "cuDNN 9.19.0". NULL: the device has one. */
    void (*attention)(const DeviceContext *c, const Call *call, bool backward, char *out,
                      size_t bytes);
    /* Optional parts; NULL: the device has none. */
    const DeviceLists *lists;
    const DeviceGraphs *graphs;
    const DeviceAutotune *autotune;
} DeviceRuntime;

/* Version of the text that `save` writes; shapes of an older file are measured again. */
enum { AUTOTUNE_VERSION = 6 };

#endif
