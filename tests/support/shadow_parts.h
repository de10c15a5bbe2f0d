/* shadow_parts.h -- private header of the shadow device: queues (shadow.c), the work of operations
 * (shadow_work.c), captures (shadow_graph.c). shadow_slots.h declares the functions of the runtime
 * table. */
#ifndef SUPPORT_SHADOW_PARTS_H
#define SUPPORT_SHADOW_PARTS_H

#include <pthread.h>
#include "base/philox.h"
#include "support/shadow.h"

typedef enum {
    DO_KERNEL,
    DO_COPY,
    DO_SET,
    DO_RECORD,
    DO_TIMESTAMP,
    DO_WAIT,
    DO_LIST,
    DO_CLIP,
    DO_FOLD,
    DO_TRY
} ShadowOpKind;

typedef struct ShadowOp {
    struct ShadowOp *next;
    ShadowOpKind what;
    KernelId kernel;
    Call call;
    char *to;
    const char *from;
    size_t bytes;
    int byte;
    DeviceQueue *queue; /* of a wait: runs up to its operation `number`, inclusive */
    int64_t number;
    DeviceQueue *of; /* in a graph: the queue it was put into */
    double *when;    /* of a timestamp */
    const DeviceList *list;
    UpdateNumbers numbers;
    DeviceClip clip;
    DeviceFold fold;
    const void *x[MAX_DEVICE_FOLD];
    void *out[MAX_DEVICE_FOLD];
    ShadowTry *try;
    void (*drop)(void *arg); /* of an operation of a graph */
    void *arg;
} ShadowOp;

struct DeviceQueue {
    DeviceContext *context;
    ShadowOp *first, **last;
    int64_t put, ran;
    bool running;             /* an operation of it is running, in an outer call */
    DeviceGraph *graph;       /* receives operations during a capture; NULL: they run */
    int64_t appended, joined; /* operations in the graph; those that the first queue waits for */
    int64_t base;             /* `put` when the graph was launched */
    DeviceQueue *more;        /* next queue of the context from queue_open */
};

struct DeviceContext {
    DeviceContext *next;
    DeviceQueue queue[N_DEVICE_QUEUES], *more;
    DeviceQueue *gone; /* closed queues, whose events may live */
    int ordinal;
    bool open;
};

struct DeviceEvent {
    DeviceQueue *queue; /* NULL: never recorded */
    int64_t number;
    DeviceGraph *graph; /* recorded in this graph; NULL: in a queue */
};

/* The operations put into the queues of a context during a capture, in order. */
struct DeviceGraph {
    DeviceQueue *queue; /* that began the capture */
    ShadowOp *first, **last;
    int64_t n;
    int epoch;
    const char *wrong; /* why a GPU would refuse the capture; NULL: it would not */
};

struct DeviceTimestamps {
    int n;
    double when[]; /* seconds; 0: not reached yet */
};

struct DeviceList {
    SquaresPiece *squares;
    UpdatePiece *update;
    int n;
};

/* All contexts, under one lock. */
typedef struct {
    pthread_mutex_t lock;
    DeviceContext *contexts; /* closed ones too: their events may still be waited for */
    Random random;
    uint64_t drawn;
    ShadowPace pace;
    ShadowCount count;
    bool loaded[N_KERNELS], library_began; /* see shadow_unload */
} ShadowAll;
extern ShadowAll shadow_all;

/* shadow.c. Makes an operation; puts it into a queue, where it may run at once. put_locked and
 * run_until need the lock. */
ShadowOp *op_new(ShadowOpKind what);
Err put(DeviceQueue *q, ShadowOp *op);
void put_locked(DeviceQueue *q, ShadowOp *op);
/* Returns false if an operation before `number` waits for others. */
bool run_until(DeviceQueue *q, int64_t number);
/* Without the lock: returns once the operation has run. */
void run_wait(DeviceQueue *q, int64_t number);

/* shadow_graph.c. Under the lock: captures an operation, a record, a wait for an event. */
void graph_capture_op(DeviceQueue *q, ShadowOp *op);
void graph_record(DeviceQueue *q, DeviceEvent *e);
void graph_wait(DeviceQueue *q, const DeviceEvent *e);
/* Without the lock: ERR_IO if the context captures; for calls that a GPU cannot capture. */
Err graph_forbids(const DeviceContext *c, const char *what);
Err graph_error(const DeviceQueue *q);
Err shadow_capture_begin(DeviceQueue *q);
Err shadow_capture_end(DeviceQueue *q, DeviceGraph **out);
Err shadow_graph_run(DeviceQueue *q, DeviceGraph *g);
bool shadow_graph_fits(const DeviceGraph *g);
void shadow_graph_close(DeviceGraph *g);

/* shadow_work.c. Under the lock. */
Err run_kernel(KernelId id, const Call *call);
Err run_squares(const DeviceList *l);
Err run_update(const DeviceList *l, const UpdateNumbers *u);
void run_clip(const DeviceClip *c);
void run_fold(const DeviceFold *f);

#endif
