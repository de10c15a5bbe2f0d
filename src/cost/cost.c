/* cost.c -- rooflines of ops, and rings and trees of transfers.
 *
 * A ring of n members sends S (n-1)/n bytes over each link in n-1 steps for an all-gather or a
 * reduce-scatter of S bytes, and twice that for an all-reduce. A tree sends 2 S in 2 log2(n) steps,
 * which is faster for small S. An all-to-all sends S (n-1)/n in n-1 messages. Members that share a
 * block cross to other blocks through all their links together, but no faster than the links
 * inside of the block. */
#include "cost/cost.h"

#include "ir/pairs.h"

/* H100 SXM, 8 per node. Rates of GEMM and attention are about 60% and 45% of NVIDIA's dense peaks
 * (989 Tflop/s in bf16, 67 in f64 and on f32 without tensor cores), memory 80% of 3.35 TB/s, the
 * node 80% of NVLink's 450 GB/s in one direction, the network 90% of one 400 Gbit/s adapter per
 * GPU, the host 80% of PCIe 5 x16. Integers have no flops. */
static const CostRates default_rates = {
    .flops_per_s = {[WORK_GEMM] = {[F64] = 40e12, [F32] = 40e12, [BF16] = 600e12},
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
    return op_attends(op) ? WORK_ATTENTION : WORK_GEMM;
}

static double operand_bytes(const Operand *o, const Dims *d, DType dtype)
{
    const DType type = o->integer ? I32 : o->wide ? dtype_wide(dtype) : dtype;
    return (double)dims_count(d) * (double)dtype_bytes(type);
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
    return w;
}

static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

double cost_work_seconds(const CostRates *r, const CostWork *w)
{
    if (op_info(w->op)->class == CLASS_VIEW || w->op == OP_wait || op_transfers(w->op)) return 0;
    if (w->op == OP_copy_out || w->op == OP_copy_in) return r->launch_s + w->bytes / r->host_Bps;
    double busy = 0; /* seconds of the arithmetic units */
    if (w->heavy > 0) busy += w->heavy / r->flops_per_s[cost_class(w->op)][w->dtype];
    if (w->light > 0) busy += w->light / r->flops_per_s[WORK_POINTWISE][w->dtype];
    return r->launch_s + larger(busy, w->bytes / r->memory_Bps);
}

double cost_instr_seconds(const CostRates *r, const Program *p, const Instr *i)
{
    return cost_work_seconds(r, &(CostWork){.op = i->op,
                                            .dtype = p->dtype,
                                            .heavy = i->heavy_flops,
                                            .light = i->flops - i->heavy_flops,
                                            .bytes = (double)i->bytes});
}

/* True if one block of the level has both ranks. */
static bool connects(const CostLink *l, int64_t a, int64_t b)
{
    return l->ranks == 0 || a / l->ranks == b / l->ranks;
}

/* Finds the level of a group from its first and last rank; inside must be counted by the caller. */
static CostGroup group_at(const CostRates *r, int members, int64_t first, int64_t last)
{
    CostGroup g = {.members = members, .inside = 1};
    while (g.level < r->n_levels - 1 && !connects(&r->level[g.level], first, last)) g.level++;
    return g;
}

CostGroup cost_group(const CostRates *r, RankList ranks)
{
    int32_t low = ranks.rank[0], high = ranks.rank[0];
    for (int i = 1; i < ranks.n; i++) {
        if (ranks.rank[i] < low) low = ranks.rank[i];
        if (ranks.rank[i] > high) high = ranks.rank[i];
    }
    CostGroup g = group_at(r, ranks.n, low, high);
    if (g.level == 0) return g;
    int inside = 0;
    for (int i = 0; i < ranks.n; i++)
        inside += connects(&r->level[g.level - 1], low, ranks.rank[i]);
    g.inside = inside;
    return g;
}

CostGroup cost_group_strided(const CostRates *r, int members, int stride)
{
    CostGroup g = group_at(r, members, 0, (int64_t)(members - 1) * stride);
    if (g.level == 0) return g;
    const int block = r->level[g.level - 1].ranks;
    g.inside = stride < block ? (block + stride - 1) / stride : 1;
    return g;
}

/* Bytes per second of a member's part in a transfer over the whole group. */
static double group_Bps(const CostRates *r, CostGroup g)
{
    const double across = r->level[g.level].Bps * g.inside;
    return g.level > 0 ? smaller(across, r->level[g.level - 1].Bps) : across;
}

/* The smallest integer whose power of two is at least n. */
static int log2_ceil(int n)
{
    int log = 0;
    while (log < 31 && (int64_t)1 << log < n) log++;
    return log;
}

double cost_transfer_seconds(const CostRates *r, CommKind kind, CostGroup g, double bytes)
{
    if (g.members <= 1) return 0;
    const CostLink *link = &r->level[g.level];
    const double n = g.members, rounds = log2_ceil(g.members);
    const double Bps = group_Bps(r, g), part = bytes * (n - 1) / n;
    switch (kind) {
    case COMM_ALL_REDUCE:
        return smaller(2 * (n - 1) * link->latency_s + 2 * part / Bps,
                       2 * rounds * link->latency_s + 2 * bytes / Bps);
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER:
        return (n - 1) * link->latency_s + part / Bps;
    case COMM_ALL_TO_ALL: /* every pair has bytes of its own: no ring shares the links */
        return (n - 1) * link->latency_s + part / smaller(link->Bps, Bps);
    case COMM_BROADCAST:
        return rounds * link->latency_s + bytes / Bps;
    case COMM_SEND:
    case COMM_RECV:
        return link->latency_s + bytes / link->Bps;
    default:
        MUST(false, "transfer kind %d", (int)kind);
    }
    return 0;
}
