/* shadow.h -- a device with memory of its own, for machines that have none.
 *
 *     its memory      has two addresses: the one that it hands out, which nobody may touch (a fault),
 *                     and one that only its kernels know
 *     its queues      run late: what is put into one has run when a coin says so, or when the host
 *                     waits for it, or another queue for an event behind it; and not before
 *     its kernels     are those of `ref`
 *     its graphs      have what was put into queues while it was noted, with the numbers of then; what
 *                     a GPU refuses to note is refused
 *
 * So a host that reaches into the device crashes, and an event that is missing shows in the numbers,
 * which are otherwise those of `ref` to the bit. All contexts share one lock. */
#ifndef SUPPORT_SHADOW_H
#define SUPPORT_SHADOW_H

#include "device/runtime.h"

typedef enum {
    SHADOW_COIN,  /* by a seeded coin, this queue or another of its context goes on */
    SHADOW_LATEST /* nothing runs until it is waited for */
} ShadowPace;

/* Local. For what is put into queues from now on. */
void shadow_set(uint64_t seed, ShadowPace pace);
/* Local. Since the last set: operations that have run, and that ran later than they were put. */
typedef struct {
    int64_t ran, late, contexts; /* contexts: open now */
    int64_t bytes;               /* of memory handed out now */
    int64_t graphs;              /* open now */
} ShadowCount;
ShadowCount shadow_count(void);

/* What a library puts into a queue by itself: called, under the lock, until it is true. Until then
 * nothing behind it runs. */
typedef bool ShadowTry(void *arg);
void shadow_put(DeviceQueue *q, ShadowTry *try, void *arg);
/* Local. Is all of it memory that the queue's context was handed out? */
bool shadow_owns(const DeviceQueue *q, const void *at, size_t bytes);
/* Local. Where who is called in a queue finds the device's memory. */
void *shadow_at(const void *at);
/* Local. A fold as the device does it, there. */
void shadow_fold(const DeviceFold *f);
/* Local. Queues go on by themselves too, as a GPU's do: for what waits for other ranks, which may
 * never look at theirs. Off again by false. */
void shadow_runs(bool on);

/* Local. A capture is refused at its operation of this number, from 0, as by a library that cannot be
 * captured; -1: none is. */
void shadow_refuses(int64_t at);
/* Local. What was captured up to now no longer fits: as when scratch has grown. */
void shadow_moves(void);

/* Local. So many products have several algorithms left, from now on. */
void shadow_opens(int products);

extern const Device device_shadow;

/* Local. The shadow device without some of its optional tables. The Device points into *runtime. */
Device shadow_without(bool lists, bool graphs, bool autotune, DeviceRuntime *runtime);

#endif
