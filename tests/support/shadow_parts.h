/* shadow_parts.h -- between the files of the shadow device: its queues (shadow.c), what operations do
 * (shadow_work.c), what is noted (shadow_graph.c), and what run/ and comm/ call by the table
 * (shadow_context.c, shadow_events.c, shadow_puts.c; shadow_slots.h). */
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
    DO_MARK,
    DO_WAIT,
    DO_LIST,
    DO_CLIP,
    DO_FOLD,
    DO_TRY
} Doing;

typedef struct Op {
    struct Op *next;
    Doing what;
    KernelId kernel;
    Call call;
    char *to;
    const char *from;
    size_t bytes;
    int byte;
    DeviceQueue *queue; /* of a wait: runs up to and with its operation `number` */
    int64_t number;
    double *when; /* of a mark */
    const DeviceList *list;
    UpdateNumbers numbers;
    DeviceClip clip;
    DeviceFold fold;
    const void *x[MAX_DEVICE_FOLD];
    void *out[MAX_DEVICE_FOLD];
    ShadowTry *try;
    void *arg;
} Op;

struct DeviceQueue {
    DeviceContext *context;
    Op *first, **last;
    int64_t put, ran;
    bool running;          /* something of it is, further out */
    DeviceGraph *graph;    /* that what is put goes into; NULL: it is to run */
    int64_t noted, joined; /* operations there, and those that the first queue has waited for */
    DeviceQueue *more;     /* the context's next one, of those that were opened */
};

struct DeviceContext {
    DeviceContext *next;
    DeviceQueue queue[N_DEVICE_QUEUES], *more,
        *gone; /* gone: closed, and events of theirs may live */
    int ordinal;
    bool open;
};

struct DeviceEvent {
    DeviceQueue *queue; /* NULL: never recorded */
    int64_t number;
    DeviceGraph *graph; /* was recorded in it: then number is of those noted. NULL: in a queue */
};

/* What the queues of a context were told while they noted, in that order. */
struct DeviceGraph {
    DeviceQueue *queue; /* that began it */
    Op *first, **last;
    int64_t n;
    int epoch;
    const char *wrong; /* what no GPU would note; NULL: nothing */
};

struct DeviceTimestamps {
    int n;
    double when[]; /* seconds; 0: not yet passed */
};

struct DeviceList {
    SquaresPiece *squares;
    UpdatePiece *update;
    int n;
};

/* All contexts, under one lock. */
typedef struct {
    pthread_mutex_t lock;
    DeviceContext *contexts; /* closed ones too: events of theirs may still be waited for */
    Random random;
    uint64_t drawn;
    ShadowPace pace;
    ShadowCount count;
} ShadowAll;
extern ShadowAll shadow_all;

/* shadow.c. A new operation; it goes into a queue, and may run at once. run_until: under the lock. */
Op *op_new(Doing what);
Err put(DeviceQueue *q, Op *op);
void put_locked(DeviceQueue *q, Op *op);
/* False: something before it waits for others, and may not run yet. */
bool run_until(DeviceQueue *q, int64_t number);
/* Without the lock: until it has run. */
void run_wait(DeviceQueue *q, int64_t number);

/* shadow_graph.c. Under the lock: an operation is noted; an event is, or is waited for. */
void graph_note(DeviceQueue *q, Op *op);
void graph_record(DeviceQueue *q, DeviceEvent *e);
void graph_wait(DeviceQueue *q, const DeviceEvent *e);
/* Without: ERR_IO when the context notes, and this is not for graphs. */
Err graph_forbids(const DeviceContext *c, const char *what);
Err graph_wrong(const DeviceQueue *q);
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
