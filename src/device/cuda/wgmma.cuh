/* wgmma.cuh -- the asynchronous matrix multiply of sm_90a: d = keep d + a b.
 *
 * a has 64 rows, b' has N, both are 16 deep, bf16; the accumulators d are f32. A warpgroup of 128
 * threads multiplies; thread i of warp w has rows 16 w + i / 4 and 8 more, and in each group of 8
 * columns two adjacent ones: d[4 j + 2 r + e] is row + 8 r, column 8 j + 2 (i % 4) + e.
 *
 * b, and a unless it is in registers, lie in shared memory in boxes of rows of 128 bytes with
 * 128-byte swizzle (hopper.cuh). Usual storage is [rows, depth]; transposed is [depth, rows]. */
#ifndef DEVICE_CUDA_WGMMA_CUH
#define DEVICE_CUDA_WGMMA_CUH

#include <stdint.h>

/* Descriptor of a matrix in boxes of 64 columns of 16 bits: eight rows are 1,024 bytes. The matrix
 * starts `at` its first row and, of the depth, at a multiple of 16; `next` is the distance in bytes
 * of boxes that together hold more than 64 rows of a transposed matrix. */
static __device__ inline uint64_t matrix_descriptor(uint32_t at, int next = 16)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(next >> 4) << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

#define REGS4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define REGS16(d, i) REGS4(d, i), REGS4(d, i + 4), REGS4(d, i + 8), REGS4(d, i + 12)
#define REGS32(d) REGS16(d, 0), REGS16(d, 16)
#define REGS64(d) REGS32(d), REGS16(d, 32), REGS16(d, 48)
#define REGS96(d) REGS64(d), REGS16(d, 64), REGS16(d, 80)

/* The instruction for each size: N/2 accumulators, a, b, keep. A and B: 1 if stored transposed. */
template <int A, int B>
static __device__ inline void wgmma_add(float (&d)[32], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"
                 "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, keep, 1, 1, %35, %36; }\n"
                 : REGS32(d)
                 : "l"(a), "l"(b), "r"(keep), "n"(A), "n"(B));
}

template <int A, int B>
static __device__ inline void wgmma_add(float (&d)[64], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"
                 "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,"
                 "%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,"
                 "%60,%61,%62,%63"
                 "}, %64, %65, keep, 1, 1, %67, %68; }\n"
                 : REGS64(d)
                 : "l"(a), "l"(b), "r"(keep), "n"(A), "n"(B));
}

template <int A, int B>
static __device__ inline void wgmma_add(float (&d)[96], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"
                 "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,"
                 "%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,"
                 "%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,"
                 "%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
                 "}, %96, %97, keep, 1, 1, %99, %100; }\n"
                 : REGS96(d)
                 : "l"(a), "l"(b), "r"(keep), "n"(A), "n"(B));
}

/* The same with a in registers: the accumulator layout of its 16 columns, as pairs of bf16. */
template <int B>
static __device__ inline void wgmma_add_registers(float (&d)[32], const uint32_t (&a)[4],
                                                  uint64_t b, int keep)
{
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"
                 "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, {%32,%33,%34,%35}, %36, keep, 1, 1, %38; }\n"
                 : REGS32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(B));
}

template <int B>
static __device__ inline void wgmma_add_registers(float (&d)[64], const uint32_t (&a)[4],
                                                  uint64_t b, int keep)
{
    asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"
                 "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,"
                 "%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,"
                 "%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, keep, 1, 1, %70; }\n"
                 : REGS64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(B));
}

static __device__ inline void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ inline void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all but the last N committed groups are done. */
template <int N> static __device__ inline void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* After the wait: keeps the compiler from reading d earlier, since it does not know that wgmma
 * writes it. */
template <int N> static __device__ inline void accumulators_fence(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#endif
