/* peaks.c -- streams over memory, and GEMM micro-kernels with operands in L1. */
#define _DEFAULT_SOURCE
#include "support/peaks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "device/cpu/cpu.h"
#include "support/clock.h"

enum { TRIES = 4 };

/* Each thread has two ranges of its own. */
typedef struct {
    int threads;
    size_t bytes; /* of a range */
    char *at;
    int rounds;
    uint64_t sum[1024];
} Streams;

/* Four independent vector sums hide the latency of additions. */
static uint64_t read_range(const char *at, size_t bytes)
{
    typedef uint64_t Line __attribute__((vector_size(64)));
    Line sum[4] = {{0}};
    for (size_t i = 0; i + 256 <= bytes; i += 256)
        for (int k = 0; k < 4; k++) sum[k] += *(const Line *)(const void *)(at + i + 64 * k);
    sum[0] += sum[1] + sum[2] + sum[3];
    return sum[0][0] + sum[0][3];
}

static void read_tile(void *work, int64_t tile)
{
    Streams *s = work;
    for (int i = 0; i < s->rounds; i++)
        s->sum[tile] += read_range(s->at + (size_t)(2 * tile) * s->bytes, s->bytes);
}

static void copy_tile(void *work, int64_t tile)
{
    Streams *s = work;
    char *const from = s->at + (size_t)(2 * tile) * s->bytes;
    for (int i = 0; i < s->rounds; i++) memcpy(from + s->bytes, from, s->bytes);
}

static double best_Bps(Team *team, Streams *s, void (*tile)(void *, int64_t), double each)
{
    double best = 1e30;
    for (int i = 0; i < TRIES; i++) {
        const double start = now_s();
        team_run(team, s->threads, tile, s);
        if (now_s() - start < best) best = now_s() - start;
    }
    return each * (double)s->bytes * s->rounds * s->threads / best;
}

static Err stream_Bps(Team *team, size_t bytes, int rounds, double *out)
{
    Streams s = {.threads = team_threads(team), .bytes = bytes, .rounds = rounds};
    const size_t all = 2 * bytes * (size_t)s.threads;
    s.at = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s.at == MAP_FAILED) return err_fail(ERR_NOMEM, "bench: no %zu bytes to stream over", all);
    (void)madvise(s.at, all, MADV_HUGEPAGE);
    memset(s.at, 1, all);
    const double read = best_Bps(team, &s, read_tile, 1), copy = best_Bps(team, &s, copy_tile, 2);
    *out = read > copy ? read : copy;
    munmap(s.at, all);
    return OK;
}

typedef struct {
    DType type;
    double flops[1024];
} GemmPeaks;

/* All threads at once: the clock may be lower when all cores are busy. */
static void gemm_peak_tile(void *work, int64_t tile)
{
    GemmPeaks *p = work;
    p->flops[tile] = device_cpu_peak(p->type);
}

static double gemm_flops(Team *team, DType type)
{
    GemmPeaks p = {.type = type};
    double sum = 0;
    team_run(team, team_threads(team), gemm_peak_tile, &p);
    for (int i = 0; i < team_threads(team); i++) sum += p.flops[i];
    return sum;
}

/* Half of L3; the rest is left to other data. */
static double half_cache(void)
{
    const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? 0.5 * (double)bytes : 4e6;
}

Err peaks_measure(Team *team, Peaks *out)
{
    const size_t share = (size_t)(half_cache() / (2.0 * team_threads(team))) / 4096 * 4096;
    out->cache_bytes = half_cache();
    TRY(stream_Bps(team, (size_t)256 << 20, 1, &out->memory_Bps));
    TRY(stream_Bps(team, share, 16, &out->cache_Bps));
    if (out->cache_Bps < out->memory_Bps) out->cache_Bps = out->memory_Bps;
    out->f32_flops = gemm_flops(team, F32);
    out->bf16_flops = gemm_flops(team, BF16);
    return OK;
}
