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
    unsigned seen;
    int row, column, term;
} SquareSight;

typedef struct {
    const uint32_t *a, *b;
    float *c;
    int64_t a_step, b_step, c_step; /* bytes */
    int rows, columns, terms;       /* squares */
    bool add;                       /* to what c holds; else c is not read */
    SquareSight sight;
    Ahead *ahead;                  /* or NULL */
    void (*meanwhile)(void *work); /* NULL, or other work: a little after each square of terms */
    void *work;
} SquareProduct;

struct Squares {
    void (*begin)(void), (*end)(void); /* around a thread's products */
    void (*multiply)(const SquareProduct *p);
};

/* Products of attention, to be multiplied: attention_squares.c. */
#define score_product CPU_NAME(score_product)
#define spread_product CPU_NAME(spread_product)
SquareProduct score_product(Way way, const Panel *rows, const Turned *turned, const Bounds *b,
                            Strip strip);
SquareProduct spread_product(Way way, const Scores *s, const Panel *rows, const Bounds *b,
                             float *sum);

#define squares_by_tiles CPU_NAME(squares_by_tiles)
#define squares_in_c CPU_NAME(squares_in_c)

extern const Squares squares_by_tiles, squares_in_c;

#endif
