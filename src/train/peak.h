/* peak.h -- how fast this device can multiply, measured once and kept.
 *
 *     mfu = flops of the model's products and attention in a step / (seconds * peak)
 *
 * The peak is the best of several large products on the same device, type and threads. It is kept
 * in a file of the user's cache folder, by device, type, threads and processor. */
#ifndef TRAIN_PEAK_H
#define TRAIN_PEAK_H

#include "device/runtime.h"

typedef struct {
    const Device *device;
    DType dtype;
    Team *team;
    const char *processor, *text; /* its name, and the device in words: for the key */
} PeakOf;

/* Local. Flops per second; takes about 25 ms on a fast device. */
Err peak_measure(const PeakOf *of, double *flops_per_s);
/* Local. From the file, else measured and written there; a file that cannot be read or written only
 * costs the time of measuring again. cache == NULL: always measured. *measured tells which. */
Err peak_load(const PeakOf *of, const char *cache, double *flops_per_s, bool *measured);

/* Local. Keeps a higher rate that was seen later: a peak measured on a busy machine is too low. */
void peak_raise(const PeakOf *of, const char *cache, double flops_per_s);

#endif
