/* panel.h -- operands of a product, rearranged so that a unit reads them from front to back.
 *
 * Rows of a and columns of b are *lines*; along a line run the terms of the sum. A *word* is what one
 * lane multiplies at a time: one term as f32, or two neighbours as bf16. A panel is so many lines as a
 * unit takes at once:
 *
 *     line 0   w0 w1 w2 w3 ..             group 1:   w0 of all lines, w1 of all lines, ..
 *     line 1   w0 w1 w2 w3 ..     ->      group 16:  w0 .. w15 of line 0, of line 1, ..; w16 ..
 *     ..
 *
 * What a panel has beyond the operand's lines and terms is zero. */
#ifndef DEVICE_CPU_SIMD_GEMM_PANEL_H
#define DEVICE_CPU_SIMD_GEMM_PANEL_H

#include "device/cpu/simd/simd.h"

#define panel_pack CPU_NAME(panel_pack)
#define panels_pack CPU_NAME(panels_pack)
#define panel_rows CPU_NAME(panel_rows)

typedef struct {
    const char *at;
    DType dtype; /* F32 or BF16 */
    int64_t lines, terms;
    int64_t line, term; /* steps, in elements */
} Lines;

typedef struct {
    DType type;       /* F32: a word is a term; BF16: two. An operand of F32 gives F32 alone */
    int lines, group; /* lines: at most W, or a multiple of it; group: 1, or W */
} PanelShape;

/* Part of a line: words are counted from its first term on. */
typedef struct {
    int64_t line, word, words; /* words: a multiple of the group */
} PanelPart;

/* Writes lines * words of the part to `to`. */
void panel_pack(const Lines *x, PanelShape shape, PanelPart part, uint32_t *to);
/* So many panels, the first as `part` says and the others behind it: to[panel][lines * words]. */
void panels_pack(const Lines *x, PanelShape shape, PanelPart part, int64_t panels, uint32_t *to);
/* The same, where it goes row by row: panel_rows.c. Panels whose lines are all there; returns how many of the
 * first words of each are packed. */
int64_t panel_rows(const Lines *x, PanelShape shape, PanelPart part, int64_t panels, uint32_t *to);

#endif
