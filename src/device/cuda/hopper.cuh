/* hopper.cuh -- PTX instructions of sm_90a without CUDA C++ equivalent: mbarrier, TMA, setmaxnreg,
 * stmatrix. wgmma.cuh has those of the tensor cores.
 *
 * Addresses are 32-bit shared memory addresses. An mbarrier has phases; a waiting thread passes the
 * parity of the phase that it waits for, and may be one phase behind, not two. A TMA box has rows
 * of 128 bytes with 128-byte swizzle: chunk p of 16 bytes of row r is stored at p ^ r % 8. */
#ifndef DEVICE_CUDA_HOPPER_CUH
#define DEVICE_CUDA_HOPPER_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>

static __device__ inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ---- */

static __device__ inline void mbarrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

static __device__ inline void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives at the same barrier of a block of the cluster. Orders preceding reads; publishes no
 * writes. */
static __device__ inline void mbarrier_arrive_cluster(uint32_t barrier, int block)
{
    asm volatile("{ .reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
                 "r"(block)
                 : "memory");
}

/* Arrives; the phase completes when `bytes` more bytes have been copied. */
static __device__ inline void mbarrier_expect_tx(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

static __device__ inline void mbarrier_wait(uint32_t barrier, int parity)
{
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over: }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

static __device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
}

static __device__ inline int cluster_rank()
{
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* ---- TMA: a box has its first column x and first row y; outside the matrix it reads as 0 and is
 * not written ---- */

static __device__ inline void tma_load(uint32_t to, const CUtensorMap *from, int x, int y,
                                       uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}

/* Copies the box to the same offset in both blocks of a cluster and completes on both barriers. */
static __device__ inline void tma_load_multicast(uint32_t to, const CUtensorMap *from, int x, int y,
                                                 uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(x), "r"(y), "h"((uint16_t)3)
                 : "memory");
}

static __device__ inline void tma_store(const CUtensorMap *to, uint32_t from, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(x), "r"(y)
                 : "memory");
}

/* The same for a tensor [z, y, x] of three dims. */
static __device__ inline void tma_load_3d(uint32_t to, const CUtensorMap *from, int x, int y, int z,
                                          uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

static __device__ inline void tma_store_3d(const CUtensorMap *to, uint32_t from, int x, int y,
                                           int z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* Copies contiguous bytes, a multiple of 16. */
static __device__ inline void bulk_load(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Waits until all but the last N stores of this thread have read shared memory; or until all are
 * done. */
template <int N> static __device__ inline void tma_stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

static __device__ inline void tma_stores_done()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Makes this thread's writes to shared memory visible to TMA stores. */
static __device__ inline void tma_store_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- warpgroups ---- */

/* Sets the register count of each thread of the warpgroup. */
template <int N> static __device__ inline void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ inline void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* Waits at a named barrier, 1 to 15, until `threads` threads have arrived; or arrives only. */
static __device__ inline void named_sync(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

static __device__ inline void named_arrive(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* ---- ldmatrix and stmatrix: four 8 x 8 matrices of 16 bits, in the accumulator layout ---- */

static __device__ inline void ldmatrix_trans(uint32_t at, uint32_t *x)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

static __device__ inline void stmatrix_trans(uint32_t at, const uint32_t *x)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* Four matrices, not transposed. */
static __device__ inline void stmatrix(uint32_t at, const uint32_t (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* Two bf16 to floats, and back. */
static __device__ inline float2 bf16x2_floats(uint32_t x)
{
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

static __device__ inline uint32_t bf16x2_pack(float low, float high)
{
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

#endif
