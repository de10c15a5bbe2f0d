/* pack.h -- packing: operands of a GEMM copied into micro-panels that a micro-kernel reads in
 * order.
 *
 * `mn` counts rows of A or columns of B, `k` the elements along the sum. A dword is one step along
 * k of a panel: one f32, or a VNNI pair of two bf16 that are neighbours in k. A micro-panel is
 * `width` mn indices: MR of A or NR of B.
 *
 *     mn 0    d0 d1 d2 d3 ..              k_group 1:    d0 of all mn, d1 of all mn, ..
 *     mn 1    d0 d1 d2 d3 ..      ->      k_group 16:   d0 .. d15 of mn 0, of mn 1, ..; d16 ..
 *     ..
 *
 * Elements of a panel beyond the operand's extents are zero. */
#ifndef DEVICE_CPU_SIMD_GEMM_PACK_H
#define DEVICE_CPU_SIMD_GEMM_PACK_H

#include "device/cpu/simd/simd.h"

#define panel_pack CPU_NAME(panel_pack)
#define panels_pack CPU_NAME(panels_pack)
#define panels_pack_rows CPU_NAME(panels_pack_rows)

typedef struct {
    const char *at;
    DType dtype;                 /* F32 or BF16 */
    int64_t mn, k;               /* extents */
    int64_t mn_stride, k_stride; /* in elements */
} PackOperand;

typedef struct {
    DType type;         /* F32: one element per dword; BF16: a pair, only from bf16 operands */
    int width, k_group; /* width: at most W, or a multiple of W; k_group: 1 or W */
} PanelShape;

/* A range of a panel along k. */
typedef struct {
    int64_t mn;            /* first index of the panel */
    int64_t dword, dwords; /* first dword of the operand; count, a multiple of k_group */
} PanelPart;

/* Local. Writes width * dwords dwords to `to`. */
void panel_pack(const PackOperand *x, PanelShape shape, PanelPart part, uint32_t *to);
/* Local. Writes consecutive panels, the first of which `part` describes: to[panels][width *
 * dwords]. */
void panels_pack(const PackOperand *x, PanelShape shape, PanelPart part, int64_t panels,
                 uint32_t *to);
/* Local. The fast path of panels_pack for operands contiguous along mn; all `panels` are full.
 * Returns how many leading dwords of each panel it has packed: 0 if the operand or shape does not
 * fit. */
int64_t panels_pack_rows(const PackOperand *x, PanelShape shape, PanelPart part, int64_t panels,
                         uint32_t *to);

#endif
