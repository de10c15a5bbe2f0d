/* unit.h -- what multiplies: a small tile of c, as much as stays in registers, from two panels.
 *
 *     unit           word      tile      needs
 *     UNIT_FMA       f32       12 x 32   AVX-512 (AVX2: 6 x 16, portable: 6 x 8)
 *     UNIT_DOT       2 bf16    12 x 32   AVX512-BF16
 *     UNIT_TILES     2 bf16    32 x 32   AMX
 *
 * An element of c is one chain of additions along k, whatever the tile and the blocks; so its bits
 * depend on the unit, never on how a product is cut. */
#ifndef DEVICE_CPU_SIMD_GEMM_UNIT_H
#define DEVICE_CPU_SIMD_GEMM_UNIT_H

#include "device/cpu/simd/gemm/panel.h"
#include "device/cpu/simd/gemm/unit_end.h"
#include "device/cpu/simd/gemm/wish.h"
#include "device/cpu/units.h"

#define unit_fma CPU_NAME(unit_fma)
#define unit_dot CPU_NAME(unit_dot)
#define unit_tiles CPU_NAME(unit_tiles)
#define unit_tiles_in_c CPU_NAME(unit_tiles_in_c)
#define unit_for CPU_NAME(unit_for)

typedef struct {
    int64_t words;                 /* of both panels */
    const uint32_t *a, *b;         /* [words / group][rows][group], [words][columns] */
    float *c;                      /* sums so far, [rows][columns], on a cache line */
    bool add;                      /* to what c holds; else c is not read */
    float *to;                     /* where sums go; may be c */
    const End *end;                /* NULL, or sums go to c, from registers: of units that `end` */
    Wishes *wishes;                /* NULL, or what to ask for after each WISH_WORDS */
    void (*meanwhile)(void *work); /* NULL, or other work: a little after each group of words */
    void *work;
} Micro;

typedef struct {
    DType type;                        /* of what panels hold */
    int rows, columns;                 /* of a tile */
    int group;                         /* words of a row of a that lie side by side */
    int depth;                         /* words of a block */
    int tall, seat_words;              /* rows of a strip of a; words of one in the second cache */
    void (*begin)(void), (*end)(void); /* around a thread's products */
    void (*multiply)(const Micro *m);
    bool a_stays;    /* a panel of a in the first cache, those of b stream by; else the reverse */
    bool ends;       /* multiply finishes whole tiles, where a Micro says how */
    bool packs_once; /* is so fast that to pack a strip of a for each tile would tell */
    bool meanwhile;  /* multiply leaves most of the core idle, and does a Micro's other work */
} Unit;

extern const Unit unit_fma, unit_dot, unit_tiles, unit_tiles_in_c;

/* Local. Products of this type, by what units.h says. */
const Unit *unit_for(DType type);

/* Local. Flops a second of a unit alone, on this thread, measured now. */
double CPU_NAME(peak)(DType type);

#endif
