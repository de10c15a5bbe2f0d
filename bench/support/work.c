/* work.c -- flops and bytes of calls. */
#include "support/work.h"

#include "device/grouped.h"

static double tensor_bytes_of(const Tensor *t)
{
    return (double)tensor_count(t) * (double)dtype_bytes(t->dtype);
}

/* Bytes read and written. An accumulator with number[o] == 1 is also read; an update reads all
 * outputs. */
static double call_bytes(KernelId id, const Call *c)
{
    double bytes = 0;
    const bool update = id == KERNEL_adamw || id == KERNEL_sgd;
    for (int i = 0; i < c->n_in; i++) bytes += tensor_bytes_of(&c->in[i]);
    for (int o = 0; o < c->n_out; o++)
        bytes += tensor_bytes_of(&c->out[o]) * (update || c->number[o] == 1 ? 2 : 1);
    return bytes;
}

/* A lookup and its gradient touch only the selected rows, not the table. */
static double lookup_bytes(KernelId id, const Call *c)
{
    const Tensor *rows = id == KERNEL_embedding ? &c->out[0] : &c->in[0];
    return (id == KERNEL_embedding ? 2 : 3) * tensor_bytes_of(rows);
}

/* Pairs of a query and a visible key, by ranges[t,4]; per head. */
static double seen_pairs(const Tensor *ranges)
{
    double pairs = 0;
    for (int64_t t = 0; t < ranges->n[0]; t++) {
        const int32_t *r = (const int32_t *)ranges->data + t * ranges->stride[0];
        pairs += r[1] - r[0] + r[3] - r[2];
    }
    return pairs;
}

/* Two GEMMs forward; backward recomputes the scores and needs four more. */
static double attention_flops(KernelId id, const Call *c)
{
    const Tensor *q = &c->in[0];
    const double gemms = id == KERNEL_attention ? 2 : 5;
    return gemms * 2 * (double)(q->n[1] * q->n[2]) * seen_pairs(&c->in[3]);
}

/* The input with the offsets of a GEMM over the rows of experts; 0: the kernel is none. */
static int offsets_of(KernelId id)
{
    switch (id) {
    case KERNEL_grouped_gemm:
    case KERNEL_grouped_gemm_dw:
    case KERNEL_grouped_gemm_dswiglu:
        return 2;
    case KERNEL_grouped_gemm_swiglu:
        return 3;
    case KERNEL_grouped_gemm_pair:
        return 4;
    default:
        return 0;
    }
}

bool work_is_grouped(KernelId id) { return offsets_of(id) > 0; }

/* Rows that experts have x the extents of a matrix, once for each matrix of an expert. */
static double grouped_flops(KernelId id, const Call *c)
{
    const Tensor *offsets = &c->in[offsets_of(id)];
    const Tensor *matrix = id == KERNEL_grouped_gemm_dw ? &c->out[0] : &c->in[1];
    const bool two = id == KERNEL_grouped_gemm_swiglu || id == KERNEL_grouped_gemm_pair;
    const int64_t rows = grouped_offset(offsets, offsets->n[0] - 1);
    return (two ? 4.0 : 2.0) * (double)rows * (double)(matrix->n[1] * matrix->n[2]);
}

Work work_of(KernelId id, const Call *c)
{
    Work w = {.bytes = call_bytes(id, c), .type = c->n_in > 0 ? c->in[0].dtype : F32};
    if (kernel_is_gemm(id)) {
        const int64_t k = c->in[0].n[c->attr.gemm.ta ? 0 : 1];
        w.flops = 2.0 * (double)k * (double)tensor_count(&c->out[0]);
    }
    if (work_is_grouped(id)) w.flops = grouped_flops(id, c);
    if (id == KERNEL_attention || id == KERNEL_attention_dx) w.flops = attention_flops(id, c);
    if (id == KERNEL_embedding || id == KERNEL_embedding_dw) w.bytes = lookup_bytes(id, c);
    return w;
}

double work_floor_s(const Work *w, const Peaks *p)
{
    const double flops_s = w->flops / (w->type == BF16 ? p->bf16_flops : p->f32_flops);
    const double bytes_s = w->bytes / (w->bytes < p->cache_bytes ? p->cache_Bps : p->memory_Bps);
    return flops_s > bytes_s ? flops_s : bytes_s;
}
