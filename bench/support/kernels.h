/* kernels.h -- times kernels of a device with its own memory, one by one, on random tensors.
 *
 *     bench_open -> { bench_make, .. -> bench_time -> say_bytes | say_flops -> bench_clear }
 *         -> bench_close
 *
 * Tensors are pushed into one allocation and released together. Values are random, because zeros
 * run faster. Any failure ends the program. */
#ifndef BENCH_SUPPORT_KERNELS_H
#define BENCH_SUPPORT_KERNELS_H

#include "device/runtime.h"

enum { BENCH_REPEATS = 20 };

typedef struct {
    const Device *device;
    const DeviceRuntime *m;
    DeviceContext *context;
    DeviceQueue *q;
    char *base; /* one allocation: tensors, then the random values they are filled with */
    size_t bytes, used;
    bool measures; /* autotune GEMM; else the library's first suggestion */
    uint16_t *random_bf16;
    float *random_f32;
} Bench;

void must(Err err);
/* Local. Opens the first GPU of a device with `bytes` bytes for tensors. */
void bench_open(Bench *b, const Device *device, size_t bytes);
void bench_close(Bench *b);
/* Local. A tensor, valid until bench_clear. Extents of 0 are missing dims. */
Tensor bench_make(Bench *b, DType type, int64_t n0, int64_t n1, int64_t n2);
/* Local. Integers below `below`: spread, or 0, 1, .. repeated. */
Tensor bench_ints(Bench *b, int64_t n, int64_t below, bool positions);
/* Local. Ranges by which row t attends to its sequence up to itself. */
Tensor bench_ranges(Bench *b, int64_t n, int64_t seq);
void bench_clear(Bench *b);

/* Local. Seconds of one call, in a sequence of BENCH_REPEATS. */
double bench_time(Bench *b, KernelId id, const Call *call);
/* Local. Bytes of all tensors of a call, each counted once. */
double bytes_of(const Call *c);
/* Local. Prints a line: the time, the rate, and its share of the rate of an H200. */
void say_bytes(const char *what, double s, double bytes);
void say_flops(const char *what, double s, double flops);
/* Local. Times the call, prints the line and releases the tensors. */
void bench_bytes(Bench *b, const char *what, KernelId id, const Call *c);

#endif
