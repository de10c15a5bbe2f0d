/* f32.c -- the GEMMs of a tile in f32, by small_gemm.h. Used unless q, k, v and dout are all bf16
 * and the CPU multiplies bf16: bf16_dot.c, amx.c. */
#include "device/cpu/simd/attention/attention.h"

#define GEMM_TERMS 1
#define GEMM_DWORD float
#define GEMM_MATRIX StridedMatrix
#define GEMM_TARGET
#define GEMM_SET small_gemm_set
#define GEMM_SET_HALF small_gemm_set_half
#define GEMM_ADD small_gemm_add
#include "device/cpu/simd/attention/tile_gemm_body.h"

void f32_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
               const Bounds *b, Scores *s)
{
    tile_score(path, rows->f32, transposed->buffer.f32, transposed->factor, b, s);
}

/* The weights [owner][other] are the scores [other][owner] read by columns. */
void f32_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum)
{
    tile_accumulate(path, (StridedMatrix){s->f32[0], 1, BLOCK}, rows->f32, b, sum);
}

void f32_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum)
{
    tile_accumulate(path, (StridedMatrix){s->f32[0], BLOCK, 1}, rows->f32, b, sum);
}
