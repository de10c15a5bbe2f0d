/* shadow.h -- a device with memory of its own, for machines that have none.
 *
 *     its memory      has two addresses: the one that it hands out, which nobody may touch (a fault),
 *                     and one that only its kernels know
 *     its queues      run late: what is put into one has run when a coin says so, or when the host
 *                     waits for it, or another queue for an event behind it; and not before
 *     its kernels     are those of `ref`
 *
 * So a host that reaches into the device crashes, and an event that is missing shows in the numbers,
 * which are otherwise those of `ref` to the bit. All contexts share one lock. */
#ifndef SUPPORT_SHADOW_H
#define SUPPORT_SHADOW_H

#include "device/memory.h"

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
} ShadowCount;
ShadowCount shadow_count(void);

extern const Device device_shadow;

#endif
