/* microkernel.h -- what multiplies: a small tile of c, as much as stays in registers, from two panels.
 *
 *     unit           word      tile      needs
 *     MICROKERNEL_FMA       f32       12 x 32   AVX-512 (AVX2: 6 x 16, portable: 6 x 8)
 *     MICROKERNEL_DOT       2 bf16    12 x 32   AVX512-BF16
 *     MICROKERNEL_AMX     2 bf16    32 x 32   AMX
 *
 * An element of c is one chain of additions along k, whatever the tile and the blocks; so its bits
 * depend on the unit, never on how a product is cut. */
#ifndef DEVICE_CPU_SIMD_GEMM_MICROKERNEL_H
#define DEVICE_CPU_SIMD_GEMM_MICROKERNEL_H

#include "device/cpu/simd/gemm/panel.h"
#include "device/cpu/simd/gemm/microkernel_store.h"
#include "device/cpu/simd/gemm/prefetch.h"
#include "device/cpu/microkernels.h"

#define microkernel_fma CPU_NAME(microkernel_fma)
#define microkernel_dot CPU_NAME(microkernel_dot)
#define microkernel_amx CPU_NAME(microkernel_amx)
#define microkernel_amx_emulated CPU_NAME(microkernel_amx_emulated)
#define microkernel_for CPU_NAME(microkernel_for)

typedef struct {
    int64_t words;                 /* of both panels */
    const uint32_t *a, *b;         /* [words / group][rows][group], [words][columns] */
    float *c;                      /* sums so far, [rows][columns], on a cache line */
    bool add;                      /* to what c holds; else c is not read */
    float *to;                     /* where sums go; may be c */
    const MicrokernelStore *end;   /* NULL, or sums go to c, from registers: of units that `end` */
    PrefetchQueue *prefetch;       /* NULL, or what to ask for after each PREFETCH_DWORDS */
    void (*meanwhile)(void *work); /* NULL, or other work: a little after each group of words */
    void *work;
} MicrokernelArgs;

typedef struct {
    DType type;                        /* of what panels hold */
    int rows, columns;                 /* of a tile */
    int group;                         /* words of a row of a that lie side by side */
    int kc;                            /* words of a block */
    int mc, a_buffer_dwords;           /* rows of a strip of a; words of one in the second cache */
    void (*begin)(void), (*end)(void); /* around a thread's products */
    void (*multiply)(const MicrokernelArgs *m);
    bool a_in_l1;      /* a panel of a in the first cache, those of b stream by; else the reverse */
    bool stores_c;     /* multiply finishes whole tiles, where a Micro says how */
    bool team_packs_a; /* is so fast that to pack a strip of a for each tile would tell */
    bool meanwhile;    /* multiply leaves most of the core idle, and does a Micro's other work */
} Microkernel;

extern const Microkernel microkernel_fma, microkernel_dot, microkernel_amx,
    microkernel_amx_emulated;

/* Local. Products of this type, by what units.h says. */
const Microkernel *microkernel_for(DType type);

/* Local. Flops a second of a unit alone, on this thread, measured now. */
double CPU_NAME(peak)(DType type);

#endif
