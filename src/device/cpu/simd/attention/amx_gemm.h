/* amx_gemm.h -- GEMM of bf16 matrices in whole sub-tiles of 32 x 32, by AMX, for attention.
 *
 *                          b [terms / 2][columns]      pairs of two terms of a column
 *                          +----+----+
 *     a [rows][terms / 2]  |    |    |                 pairs of two terms of a row
 *     +----+               +----+----+
 *     |    |               c [rows][columns]           a sub-tile of c: 2 x 2 AMX tiles, 16 x 16
 *     +----+
 *
 * Nothing is packed: rows of all three matrices are a constant step apart. A tile of attention has
 * 2 x 2 sub-tiles of pairs, and only those with a visible pair are multiplied. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_AMX_GEMM_H
#define DEVICE_CPU_SIMD_ATTENTION_AMX_GEMM_H

#include "device/cpu/simd/attention/attention.h"

/* Visible sub-tiles of an attention tile, one bit each, at 2 * group + other as in Bounds. The
 * sub-tile (row, column, term) of a GEMM has bit row * .row + column * .column + term * .term. */
typedef struct {
    unsigned visible;
    int row, column, term;
} SubtileMask;

typedef struct {
    const uint32_t *a, *b;
    float *c;
    int64_t a_step, b_step, c_step; /* bytes between rows */
    int rows, columns, terms;       /* in sub-tiles */
    bool add;                       /* starts from c; else c is not read */
    SubtileMask mask;
    PrefetchStack *prefetch;        /* or NULL */
    void (*background)(void *work); /* called once per sub-tile of terms; or NULL */
    void *work;
} AmxGemmArgs;

struct AmxGemm {
    void (*begin)(void), (*end)(void); /* around the GEMMs of a thread */
    void (*multiply)(const AmxGemmArgs *p);
};

/* Local. Arguments of GEMMs of amx.c, for callers that overlap them with background work. */
#define amx_score_args CPU_NAME(amx_score_args)
#define amx_other_args CPU_NAME(amx_other_args)
AmxGemmArgs amx_score_args(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
                           const Bounds *b, SubtileRow to);
AmxGemmArgs amx_other_args(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                           float *sum);

#define amx_gemm CPU_NAME(amx_gemm)
#define amx_gemm_emulated CPU_NAME(amx_gemm_emulated)

extern const AmxGemm amx_gemm, amx_gemm_emulated;

#endif
