/* kernels.h -- kernels of a device with memory of its own, timed one by one on random tensors.
 *
 *     bench_open -> { bench_make, .. -> bench_time -> say_bytes | say_flops -> bench_clear } -> bench_close
 *
 * Tensors are pushed into one allocation and forgotten together. Values are random: zeros run
 * faster. What fails ends the program. */
#ifndef BENCH_SUPPORT_KERNELS_H
#define BENCH_SUPPORT_KERNELS_H

#include "device/runtime.h"

enum { BENCH_REPEATS = 20 };

typedef struct {
    const Device *device;
    const DeviceRuntime *m;
    DeviceContext *context;
    DeviceQueue *q;
    char *base; /* one allocation: tensors, and behind them the random values they are filled by */
    size_t bytes, used;
    bool measures; /* algorithms of products; else the library's first suggestions */
    uint16_t *random_bf16;
    float *random_f32;
} Bench;

void must(Err err);
/* Local. The first card of a device, and so many bytes of it for tensors. */
void bench_open(Bench *b, const Device *device, size_t bytes);
void bench_close(Bench *b);
/* Local. Until bench_clear. Extents of 0 are dims that are not there. */
Tensor bench_make(Bench *b, DType type, int64_t n0, int64_t n1, int64_t n2);
/* Local. Numbers below `below`: spread, or 0, 1, .. again and again. */
Tensor bench_ints(Bench *b, int64_t n, int64_t below, bool positions);
/* Local. Row t sees the keys of its sequence up to itself. */
Tensor bench_ranges(Bench *b, int64_t n, int64_t seq);
void bench_clear(Bench *b);

/* Local. Seconds of one call, in a row of them. */
double bench_time(Bench *b, KernelId id, const Call *call);
/* Local. Bytes of all tensors of a call, each once. */
double bytes_of(const Call *c);
/* Local. A line: the time, the rate, and its share of what an H200 can do. */
void say_bytes(const char *what, double s, double bytes);
void say_flops(const char *what, double s, double flops);
/* Local. All of it, and forgets the tensors. */
void bench_bytes(Bench *b, const char *what, KernelId id, const Call *c);

#endif
