/* profile.h -- measurements of this machine: the GEMM peak of a device.
 *
 *     mfu = flops of the model's GEMMs and attention in a step / (seconds * GEMM peak)
 *
 * The peak is the best rate of several large GEMMs on the same device, data type and thread count.
 * It is stored in a JSON file of the user's cache folder, one entry per device, type, thread count
 * and processor. Outside run/, profile.c and measure/measure.c alone make Calls (device/device.h).
 * */
#ifndef PLAN_PROFILE_H
#define PLAN_PROFILE_H

#include "device/runtime.h"

typedef struct {
    const Device *device;
    DType dtype;
    Team *team;
    const char *processor; /* its name: part of the key in the cache file */
    const char *text;      /* description of the device: part of the key too */
} ProfileTarget;

/* Local. Measures the GEMM peak in flops per second; takes about 25 ms on a fast device. */
Err profile_peak_measure(const ProfileTarget *t, double *flops_per_s);
/* Local. Reads the peak from the file `cache`; measures it and adds it to the file if it is not
 * there. `cache` == NULL measures always. *measured is true if it was measured now. A file that
 * cannot be read or written is no error; the peak is measured again the next time. */
Err profile_peak_load(const ProfileTarget *t, const char *cache, double *flops_per_s,
                      bool *measured);
/* Local. Replaces the stored peak if `flops_per_s` is higher: a peak measured on a busy machine is
 * too low, and a training step may exceed it. */
void profile_peak_raise(const ProfileTarget *t, const char *cache, double flops_per_s);

#endif
