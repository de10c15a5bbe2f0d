/* fp8_gemm.c -- c = keep c + a b' sa sb (+ addend, bias) by cuBLASLt, for operands of 8 bits with
 * one scale each. The autotuner chooses the algorithm.
 *
 * Tensor cores of Hopper read operands of 8 bits along k only: to cuBLASLt, whose matrices are
 * column-major, the first is transposed and the second is not. With rows of c as its columns,
 *
 *     c' [n, m] = b' [n, k] a' [k, m]        b is stored [n, k], a [m, k]
 *
 * Calls with other storage, or with scales of blocks, run on tiles in fp8.cu. */
#include "device/cuda/gemm/fp8_gemm.h"

#include "device/cuda/gemm/autotune.h"

enum { ALIGN = 16, MIN_CAPABILITY = 89 };

/* True if cuBLASLt reads the operand: k along rows, and all of it in pieces of 16 bytes. */
static bool is_along_k(const Tensor *t)
{
    return t->stride[1] == 1 && t->stride[0] >= t->n[1] && t->n[0] % ALIGN == 0 &&
           t->n[1] % ALIGN == 0 && t->n[1] > 0 && t->stride[0] % ALIGN == 0 &&
           (uintptr_t)t->data % ALIGN == 0;
}

static bool is_written(const Tensor *c)
{
    return (c->dtype == BF16 || c->dtype == F32) && c->stride[1] == 1 && c->stride[0] >= c->n[1] &&
           c->stride[0] * (int64_t)dtype_bytes(c->dtype) % ALIGN == 0 &&
           (uintptr_t)c->data % ALIGN == 0;
}

static bool takes_bias(const Tensor *bias, const Tensor *c)
{
    return c->dtype == BF16 && bias->dtype == BF16 && bias->stride[0] == 1 &&
           (uintptr_t)bias->data % ALIGN == 0;
}

/* cuBLASLt multiplies two operands of e4m3, or one of e5m2 by one of e4m3, into bf16 or f32. */
static bool fits(const Call *call, const Tensor *addend, const Tensor *bias)
{
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    if (addend && (addend->dtype != c->dtype || !is_written(addend) ||
                   (addend->data == c->data && addend->stride[0] != c->stride[0])))
        return false;
    return call->queue->context->capability >= MIN_CAPABILITY && call->attr.gemm.a_block[0] == 0 &&
           !call->attr.gemm.ta && call->attr.gemm.tb && b->dtype == E4M3 && is_along_k(a) &&
           is_along_k(b) && is_written(c) && (!bias || takes_bias(bias, c));
}

static void describe(const Call *call, const Tensor *addend, const Tensor *bias, LtShape *s,
                     LtOperands *operands)
{
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    *s = (LtShape){.rows = c->n[1],
                   .columns = c->n[0],
                   .depth = a->n[1],
                   .x_ld = b->stride[0],
                   .y_ld = a->stride[0],
                   .d_ld = c->stride[0],
                   .x_transposed = 1,
                   .type = a->dtype,
                   .out_type = c->dtype,
                   .bias = bias != NULL,
                   .accumulates = addend || call->number[0] != 0,
                   .x_align = ALIGN,
                   .y_align = ALIGN,
                   .d_align = ALIGN,
                   .c_align = addend ? ALIGN : 0,
                   .c_ld = addend ? addend->stride[0] : 0};
    *operands = (LtOperands){.x = b->data,
                             .y = a->data,
                             .d = c->data,
                             .x_scale = call->in[3].data,
                             .y_scale = call->in[2].data,
                             .bias = bias ? bias->data : NULL,
                             .c = addend ? addend->data : NULL,
                             .keep = addend ? 1 : (float)call->number[0]};
}

Err fp8_gemm_by_cublaslt(const Call *call, bool adds, bool *done)
{
    const Tensor *addend = adds ? &call->in[4] : NULL;
    const Tensor *bias = call->n_in > 4 + adds ? &call->in[4 + adds] : NULL;
    LtShape shape;
    LtOperands operands;
    GemmEntry *entry;
    *done = fits(call, addend, bias);
    if (!*done) return OK;
    describe(call, addend, bias, &shape, &operands);
    TRY(autotuner_find(call->queue, &shape, &operands, &entry));
    *done = entry->possible;
    return *done ? gemm_entry_run(call->queue, entry, &operands) : OK;
}
