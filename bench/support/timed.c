/* timed.c -- accounts of kernels. */
#define _DEFAULT_SOURCE
#include "support/timed.h"

#include <string.h>
#include "support/clock.h"

static const Device *inner_device;
static Peaks peaks_now;
static TimedRow row[N_KERNELS];

static Err timed(KernelId id, const Call *call)
{
    const Work work = work_of(id, call); /* before the clock starts */
    const double start = now_s();
    const Err err = inner_device->kernel[id](call);
    row[id].seconds += now_s() - start;
    row[id].calls++;
    row[id].flops += work.flops;
    row[id].bytes += work.bytes;
    row[id].floor_s += work_floor_s(&work, &peaks_now);
    return err;
}

#define KERNEL(id)                                                                                 \
    static Err timed_##id(const Call *call) { return timed(KERNEL_##id, call); }
#include "device/kernels.def"
#undef KERNEL

const Device timed_device = {
    .name = "cpu",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = timed_##id,
#include "device/kernels.def"
#undef KERNEL
        },
};

void timed_open(const Device *inner, const Peaks *peaks)
{
    inner_device = inner;
    peaks_now = *peaks;
    memset(row, 0, sizeof row);
}

const TimedRow *timed_row(KernelId id) { return &row[id]; }
