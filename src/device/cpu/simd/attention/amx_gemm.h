/* amx_gemm.h -- products of matrices of bf16 that are whole squares of 32 x 32, by tiles: what attention
 * multiplies on a CPU that has AMX.
 *
 *                          b [terms / 2][columns]      words of two terms, of one column
 *                          +----+----+
 *     a [rows][terms / 2]  |    |    |                 words of two terms, of one row
 *     +----+               +----+----+
 *     |    |               c [rows][columns]           a square of c is 2 x 2 tiles of 16 x 16
 *     +----+
 *
 * Nothing is packed: all three lie as they are, a step apart from row to row. Of the 64 x 64 pairs of a tile
 * of attention, only squares that hold a pair that is seen are multiplied. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_AMX_GEMM_H
#define DEVICE_CPU_SIMD_ATTENTION_AMX_GEMM_H

#include "device/cpu/simd/attention/attention.h"

/* Squares of pairs, a bit each: [2 * group + range], as Bounds have them; and how far a row, a column and a
 * square of terms move in that. */
typedef struct {
    unsigned visible;
    int row, column, term;
} SubtileMask;

typedef struct {
    const uint32_t *a, *b;
    float *c;
    int64_t a_step, b_step, c_step; /* bytes */
    int rows, columns, terms;       /* squares */
    bool add;                       /* to what c holds; else c is not read */
    SubtileMask mask;
    PrefetchStack *prefetch;        /* or NULL */
    void (*background)(void *work); /* NULL, or other work: a little after each square of terms */
    void *work;
} AmxGemmArgs;

struct AmxGemm {
    void (*begin)(void), (*end)(void); /* around a thread's products */
    void (*multiply)(const AmxGemmArgs *p);
};

/* Products of attention, to be multiplied: attention_squares.c. */
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
