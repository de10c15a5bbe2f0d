/* gemm.h -- GEMM of f32 and bf16 matrices, with an optional epilogue on each block of C.
 *
 *     gemm_with_epilogue (gemm.c)      dispatches: skinny.h, a BLAS library, or blocked_gemm
 *     blocked_gemm (blocked.c)         packs and blocks the operands, on a team of threads
 *     epilogue.c                       the kernels gemm_add, gemm_gelu, gemm_dgelu, gemm_dswiglu */
#ifndef DEVICE_CPU_SIMD_GEMM_GEMM_H
#define DEVICE_CPU_SIMD_GEMM_GEMM_H

#include "device/cpu/cpu.h"
#include "device/cpu/simd/gemm/microkernel.h"

#define blocked_gemm CPU_NAME(blocked_gemm)
#define blocked_prepack CPU_NAME(blocked_prepack)
#define blocked_prepack_tasks CPU_NAME(blocked_prepack_tasks)
#define gemm_with_epilogue CPU_NAME(gemm_with_epilogue)

/* Rows [row, row + m) and columns [column, column + n) of C. */
typedef struct {
    int64_t row, m, column, n;
} CBlock;

/* Work fused into the end of a GEMM. All members may be 0. */
typedef struct {
    const Tensor *addend; /* C = keep * addend + A B + bias; NULL: the addend is C; may be C */
    /* Runs on each block of C right after it is stored, while it is in L2; `call` is its argument.
     * team: NULL where the caller is already a thread of the team. */
    void (*run)(const Call *call, CBlock block, Team *team);
    const Call *call;
    /* Tensors of C's shape that `run` accesses besides C: they are prefetched. NULL: none. */
    const Tensor *operand[MAX_EPILOGUE_OPERANDS];
    GemmPart part; /* other than GEMM_WHOLE only to time one part of blocked_gemm */
} BlockEpilogue;

/* Local. gemm of kernels.def with an epilogue. The bits of an element of C depend only on its row
 * of A and its column of B, never on the sizes of the matrices around it. */
Err blocked_gemm(const Call *call, const Microkernel *kernel, const BlockEpilogue *epilogue);
/* Local. The same by the fastest path for these operands. */
Err gemm_with_epilogue(const Call *call, const BlockEpilogue *epilogue);
/* Local. One part of blocked_gemm: see device_cpu_gemm_part. */
Err CPU_NAME(gemm_part)(const Call *call, GemmPart part);
/* Local. All of B packed for GEMMs of its type: see DevicePrepack. */
size_t CPU_NAME(prepacked_bytes)(DType type, int64_t k, int64_t n);
Err CPU_NAME(prepack)(const Call *call);
/* Local. The same in tasks, for a caller that packs many matrices with one team_run; the team of
 * the call is NULL. */
int64_t blocked_prepack_tasks(const Call *call);
void blocked_prepack(const Call *call, int64_t task);

#endif
