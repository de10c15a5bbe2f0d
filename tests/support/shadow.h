/* shadow.h -- a simulated device with its own memory and queues, for tests without a GPU.
 *
 *     memory      has two addresses: a public one that faults on access, and a private one that
 *                 only kernels use
 *     queues      run late: an operation runs when a seeded coin decides, when the host waits for
 *                 it, or when another queue waits for an event behind it
 *     kernels     are those of `ref`
 *     graphs      contain the operations put into queues during a capture, with their numbers at
 *                 that time; operations that a GPU cannot capture are refused
 *
 * Host access to device memory therefore crashes, and a missing event shows in the numbers. These
 * are otherwise equal to `ref` to the bit. All contexts share one lock. */
#ifndef SUPPORT_SHADOW_H
#define SUPPORT_SHADOW_H

#include "device/runtime.h"

typedef enum {
    SHADOW_COIN,  /* by a seeded coin, this queue or another one of its context advances */
    SHADOW_LATEST /* nothing runs until it is waited for */
} ShadowPace;

/* Local. Sets seed and pace of operations from now on. */
void shadow_set(uint64_t seed, ShadowPace pace);
/* Local. Operations since the last set: run; run later than put. */
typedef struct {
    int64_t ran, late, contexts; /* contexts: open now */
    int64_t bytes;               /* allocated now */
    int64_t graphs;              /* open now */
    int64_t loaded_late;         /* kernels, see shadow_unload */
} ShadowCount;
ShadowCount shadow_count(void);

/* Local. No kernel has been called yet: the first call of each loads it, as CUDA does, and counts
 * in loaded_late if a library has put an operation into a queue before. */
void shadow_unload(void);

/* An operation that a library puts into a queue by itself. It is called under the lock until it
 * returns true; operations behind it wait. */
typedef bool ShadowTry(void *arg);
void shadow_put(DeviceQueue *q, ShadowTry *try, void *arg);
/* Local. True between the begin and the end of a capture that the queue is part of. An operation
 * then runs at each launch of the graph; `drop` is called when the graph is closed. */
bool shadow_captures(const DeviceQueue *q);
void shadow_put_captured(DeviceQueue *q, ShadowTry *try, void (*drop)(void *arg), void *arg);
/* Local. True if all of the bytes are memory of the queue's context. */
bool shadow_owns(const DeviceQueue *q, const void *at, size_t bytes);
/* Local. The private address of device memory, for operations in a queue. */
void *shadow_at(const void *at);
/* Local. The device's fold, for operations in a queue. */
void shadow_fold(const DeviceFold *f);
/* Local. Starts or stops a thread that advances all queues, as a GPU does. Operations that wait for
 * other ranks need it, because those may never wait for their own queues. */
void shadow_run_async(bool on);

/* Local. Refuses captures at the operation of this number, from 0, as a library that cannot be
 * captured would; -1: refuses none. */
void shadow_refuse_capture_at(int64_t at);
/* Local. Graphs captured so far no longer fit, as after scratch memory has grown. */
void shadow_invalidate_graphs(void);

/* Local. Sets the number of GEMMs that have several candidate algorithms left. */
void shadow_set_candidates(int gemms);

extern const Device device_shadow;

/* Local. The shadow device without some of its optional tables. The Device points into *runtime. */
Device shadow_without(bool lists, bool graphs, bool autotune, DeviceRuntime *runtime);

#endif
