/* cost.c -- rooflines of ops. */
#include "cost/cost_parts.h"

#include <math.h>
#include <string.h>
#include "ir/pairs.h"

/* H100 SXM, 8 per node. Rates of GEMM and attention are about 60% and 45% of NVIDIA's dense peaks
 * (1,979 Tflop/s in FP8, 989 in bf16, 67 in f64 and on f32 without tensor cores), memory 80% of
 * 3.35 TB/s, the node 80% of NVLink's 450 GB/s in one direction, the network 90% of one 400 Gbit/s
 * adapter per GPU, the host 80% of PCIe 5 x16. Integers have no flops. */
static const CostRates default_rates = {
    .flops_per_s = {[WORK_GEMM] = {[F64] = 40e12, [F32] = 40e12, [BF16] = 600e12, [E4M3] = 1190e12},
                    [WORK_ATTENTION] = {[F64] = 30e12, [F32] = 30e12, [BF16] = 450e12},
                    [WORK_POINTWISE] = {[F64] = 15e12, [F32] = 30e12, [BF16] = 30e12}},
    .memory_Bps = 2.7e12,
    .host_Bps = 50e9,
    .launch_s = 4e-6,
    .n_levels = 2,
    .level = {{.ranks = 8, .latency_s = 8e-6, .Bps = 360e9},
              {.ranks = 0, .latency_s = 20e-6, .Bps = 45e9}}};

const CostRates *cost_default_rates(void) { return &default_rates; }

WorkClass cost_class(OpId op)
{
    if (op_info(op)->class != CLASS_HEAVY) return WORK_POINTWISE;
    return op_visits(op) || op_attends_along(op) ? WORK_ATTENTION : WORK_GEMM;
}

CostRates cost_linear_rates(const CostRates *r)
{
    CostRates out = {
        .memory_Bps = (double)INFINITY, .host_Bps = r->host_Bps, .n_levels = r->n_levels};
    memcpy(out.flops_per_s, r->flops_per_s, sizeof out.flops_per_s);
    for (int t = 0; t < N_DTYPES; t++)
        if (out.flops_per_s[WORK_POINTWISE][t] > r->memory_Bps)
            out.flops_per_s[WORK_POINTWISE][t] = r->memory_Bps;
    for (int i = 0; i < r->n_levels; i++) {
        out.level[i] = r->level[i];
        out.level[i].latency_s = out.level[i].pair_latency_s = 0;
    }
    return out;
}

static double operand_bytes(const Operand *o, const Dims *d, DType dtype)
{
    const DType type = o->integer ? I32 : o->wide ? dtype_wide(dtype) : o->fp8 ? E4M3 : dtype;
    return (double)dims_count(d) * (double)dtype_bytes(type);
}

/* A GEMM's output is [m, n], and k follows from its flops; an attention's output is [t, h, c]. */
static void set_shape(CostWork *w, int ndim, const Dim *d)
{
    if (op_info(w->op)->class != CLASS_HEAVY || w->heavy <= 0) return;
    if (cost_class(w->op) == WORK_ATTENTION && ndim >= 3) {
        w->c = (double)d[ndim - 1].cap;
        w->queries = 1;
        for (int i = 0; i < ndim - 1; i++) w->queries *= (double)d[i].cap;
    }
    if (cost_class(w->op) == WORK_ATTENTION || ndim != 2) return;
    w->m = (double)d[0].cap;
    w->n = (double)d[1].cap;
    w->k = w->heavy / (2 * w->m * w->n);
}

CostWork cost_work(OpId op, const OpAttr *attr, DType dtype, int n_in, const Dims *in, int n_out,
                   const Dims *out)
{
    const Signature sig = op_signature(op);
    const Flops flops = op_flops(op, attr, n_in, in, n_out, out);
    CostWork w = {.op = op, .dtype = dtype, .heavy = flops.heavy, .light = flops.all - flops.heavy};
    for (int i = 0; i < n_in; i++)
        w.bytes += operand_bytes(&sig.in[i < sig.n_in ? i : sig.n_in - 1], &in[i], dtype);
    for (int i = 0; i < n_out; i++) w.bytes += operand_bytes(&sig.out[i], &out[i], dtype);
    if (n_out > 0) set_shape(&w, out[0].ndim, out[0].dim);
    if (cost_is_grouped(op)) cost_set_grouped(&w, in, out);
    return w;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* The type by which a GEMM is rated: for operands of 8 bits FP8, if a rate of that is known. */
static DType rated_type(const CostRates *r, const CostWork *w)
{
    const KernelId kernel = op_info(w->op)->kernel;
    const bool fp8 = kernel == KERNEL_scaled_gemm || kernel == KERNEL_scaled_gemm_add ||
                     kernel == KERNEL_grouped_scaled_gemm ||
                     kernel == KERNEL_grouped_scaled_gemm_dw;
    return fp8 && r->flops_per_s[WORK_GEMM][E4M3] > 0 ? E4M3 : w->dtype;
}

static bool is_forward(OpId op) { return op == OP_attention || op == OP_attention_along; }

/* Seconds of the heavy flops. */
static double heavy_seconds(const CostRates *r, const CostWork *w)
{
    const WorkClass class = cost_class(w->op);
    const DType type = rated_type(r, w);
    double rate = r->flops_per_s[class][type], waste = 1;
    if (class == WORK_ATTENTION && r->attention[w->dtype])
        rate = cost_curve_at(r->attention[w->dtype], w->heavy);
    if (class == WORK_ATTENTION && r->keyed[w->dtype] && w->c > 0)
        rate = cost_attention_at(r->keyed[w->dtype], w, !is_forward(w->op));
    if (class == WORK_GEMM && w->m > 0) {
        waste = cost_tile_waste(&r->tiles, w->experts, w->m, w->n, w->k);
        if (r->tiles.boost > 0 && !r->gemm[type]) waste = larger(1, waste / r->tiles.boost);
        if (r->gemm[type]) rate = cost_grid_at(r->gemm[type], &r->tiles, w->m, w->n, w->k);
    }
    return w->heavy * waste / rate;
}

/* Bytes beyond the operands. An attention in forward has 4 c flops for each pair and head, in
 * backward 10 c; the gradient of the loss has 4 flops for each logit, 9 in one op with the loss. */
static double extra_bytes(const CostRates *r, const CostWork *w)
{
    if (w->op == OP_loss_dx) return r->logit_bytes * w->light / 4;
    if (w->op == OP_token_loss_dx) return r->logit_bytes * w->light / 9;
    if (w->c <= 0) return 0;
    return is_forward(w->op) ? r->pair_bytes * w->heavy / (4 * w->c)
                             : 2 * r->pair_bytes * w->heavy / (10 * w->c);
}

/* Seconds that the operands of an epilogue add to a GEMM. */
static double epilogue_seconds(const CostRates *r, const CostWork *w)
{
    const double each = (double)dtype_bytes(w->dtype);
    const double plain = (w->m * w->k + w->k * w->n + w->m * w->n) * each;
    const double more = w->bytes - plain;
    return w->light > 0 && more > 0 ? r->epilogue * more / r->memory_Bps : 0;
}

/* True for a GEMM whose epilogue has a cost of its own, in which its flops hide. */
static bool has_epilogue_cost(const CostRates *r, const CostWork *w)
{
    return r->epilogue > 0 && w->m > 0 && w->experts == 0 && cost_class(w->op) == WORK_GEMM;
}

double cost_work_seconds(const CostRates *r, const CostWork *w)
{
    if (op_info(w->op)->class == CLASS_VIEW || w->op == OP_wait || op_transfers(w->op)) return 0;
    if (w->op == OP_copy_out || w->op == OP_copy_in) return r->launch_s + w->bytes / r->host_Bps;
    const bool apart = has_epilogue_cost(r, w);
    double busy = 0; /* seconds of the arithmetic units */
    if (w->heavy > 0) busy += heavy_seconds(r, w);
    if (apart) busy += epilogue_seconds(r, w);
    if (w->light > 0 && !apart) busy += w->light / r->flops_per_s[WORK_POINTWISE][w->dtype];
    const double reach = larger(w->bytes, w->among);
    const double Bps = r->memory ? cost_curve_at(r->memory, reach) : r->memory_Bps;
    const double moving = w->bytes / (Bps * cost_reach(r, w));
    return r->launch_s + larger(busy, moving) + extra_bytes(r, w) / r->memory_Bps;
}

CostWork cost_instr_work(const Program *p, const Instr *i)
{
    CostWork w = {.op = i->op,
                  .dtype = p->dtype,
                  .heavy = i->heavy_flops,
                  .light = i->flops - i->heavy_flops,
                  .bytes = (double)i->bytes};
    if (i->n_out > 0) set_shape(&w, p->tensor[i->out[0]].ndim, p->tensor[i->out[0]].dim);
    cost_set_experts(&w, p, i);
    return w;
}

double cost_instr_seconds(const CostRates *r, const Program *p, const Instr *i)
{
    const CostWork w = cost_instr_work(p, i);
    return cost_work_seconds(r, &w);
}
