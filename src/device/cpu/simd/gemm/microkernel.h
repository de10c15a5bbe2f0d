/* microkernel.h -- micro-kernels: an MR x NR tile of C in registers, from two packed micro-panels.
 *
 *     micro-kernel       dword        MR x NR   needs
 *     MICROKERNEL_FMA    one f32      12 x 32   AVX-512 (AVX2: 6 x 16, portable: 6 x 8)
 *     MICROKERNEL_DOT    VNNI pair    12 x 32   AVX512-BF16
 *     MICROKERNEL_AMX    VNNI pair    32 x 32   AMX
 *
 * A dword is one step along k of a packed panel: one f32, or a VNNI pair of two bf16 (pack.h).
 *
 * An element of C is one chain of additions along k, whatever the sizes of tiles and blocks. So its
 * bits depend on the micro-kernel, never on the blocking. */
#ifndef DEVICE_CPU_SIMD_GEMM_MICROKERNEL_H
#define DEVICE_CPU_SIMD_GEMM_MICROKERNEL_H

#include "device/cpu/microkernels.h"
#include "device/cpu/simd/gemm/microkernel_store.h"
#include "device/cpu/simd/gemm/pack.h"
#include "device/cpu/simd/gemm/prefetch.h"

#define microkernel_fma CPU_NAME(microkernel_fma)
#define microkernel_dot CPU_NAME(microkernel_dot)
#define microkernel_amx CPU_NAME(microkernel_amx)
#define microkernel_amx_emulated CPU_NAME(microkernel_amx_emulated)
#define microkernel_for CPU_NAME(microkernel_for)

typedef struct {
    int64_t dwords;                 /* along k, of both micro-panels */
    const uint32_t *a, *b;          /* [dwords / k_group][mr][k_group], [dwords][nr] */
    float *c;                       /* partial sums, [mr][nr], aligned to a cache line */
    bool add;                       /* starts from the partial sums; else c is not read */
    float *to;                      /* output, [mr][nr]; may be c */
    const MicrokernelStore *store;  /* not NULL: registers go to C, not to `to`; needs stores_c */
    PrefetchQueue *prefetch;        /* issued once per PREFETCH_DWORDS; or NULL */
    void (*background)(void *work); /* called once per k_group dwords; or NULL */
    void *work;
} MicrokernelArgs;

typedef struct {
    DType type;          /* of the packed panels */
    int mr, nr;          /* rows and columns of a micro-tile of C */
    int k_group;         /* dwords of a row of A that are adjacent in its micro-panel */
    int kc, mc;          /* dwords of a k block; rows of a block of A */
    int a_buffer_dwords; /* a thread's packing buffer for A, in L2 */
    void (*begin)(void), (*end)(void); /* around the calls of a thread */
    void (*multiply)(const MicrokernelArgs *args);
    bool a_in_l1;         /* a panel of A stays in L1 and panels of B stream; else the reverse */
    bool stores_c;        /* multiply can store full micro-tiles to C itself */
    bool team_packs_a;    /* too fast for packing A once per C block where k is large */
    bool overlaps_stores; /* multiply leaves most of the core idle and runs background work */
} Microkernel;

extern const Microkernel microkernel_fma, microkernel_dot, microkernel_amx,
    microkernel_amx_emulated;

/* Local. The micro-kernel for GEMMs of this type, by the choice of microkernels.h. */
const Microkernel *microkernel_for(DType type);

/* Local. Measures flops per second of the micro-kernel alone, on this thread. */
double CPU_NAME(peak)(DType type);

#endif
