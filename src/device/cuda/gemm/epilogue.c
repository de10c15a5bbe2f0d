/* epilogue.c -- a GEMM and the pointwise op after it, by the fastest of three fusions:
 *
 *     FUSION_EPILOGUE   cuBLASLt with the op as its epilogue; for gelu and its gradient only
 *     FUSION_NONE       the GEMM, then the op
 *     FUSION_PINGPONG   our own kernel with the op and the column sums as its epilogue (pingpong.h)
 *
 * While the context measures, each shape is decided once by timing all three. Otherwise the first
 * one that can run is used. */
#include "device/cuda/gemm/cublaslt_gemm.h"
#include "device/cuda/gemm/pingpong.h"

typedef struct {
    DeviceQueue *q;
    EpilogueOperands epilogue;
    Call fused, gemm, pointwise;
    Err (*pointwise_run)(const Call *);
    Call sum; /* over the rows of the output; n_out 0: none */
    PingpongGemm pingpong;
    bool may_pingpong;
} FusedGemm;

static Err run_sum(const FusedGemm *p) { return p->sum.n_out ? cuda_sum_rows(&p->sum) : OK; }

static Err run_fused(const void *fused_gemm)
{
    const FusedGemm *p = fused_gemm;
    LtShape shape;
    LtOperands operands;
    GemmEntry *entry;
    MUST(lt_describe(&p->fused, &p->epilogue, &shape, &operands),
         "no cuBLASLt epilogue for this call");
    TRY(autotuner_find(p->q, &shape, &operands, &entry));
    TRY(gemm_entry_run(p->q, entry, &operands));
    return run_sum(p);
}

static Err run_unfused(const void *fused_gemm)
{
    const FusedGemm *p = fused_gemm;
    TRY(cuda_gemm(&p->gemm));
    TRY(p->pointwise_run(&p->pointwise));
    return run_sum(p);
}

/* The kernel sums before rounding and in another order than sum_rows. In deterministic mode, where
 * results must not depend on how phases are split, sum_rows runs instead. */
static Err run_pingpong(const void *fused_gemm)
{
    const FusedGemm *p = fused_gemm;
    PingpongGemm r = p->pingpong;
    const bool sums = p->sum.n_out && p->q->context->any_order;
    if (sums) {
        r.sums = p->sum.out[0];
        r.keep = (float)p->sum.number[0];
    }
    TRY(pingpong_run(p->q, &r));
    return sums ? OK : run_sum(p);
}

static Err time_fusions(const FusedGemm *p, GemmFusion *out)
{
    static const GemmFusion name[] = {FUSION_NONE, FUSION_EPILOGUE, FUSION_PINGPONG};
    static const FusionRun run[] = {run_unfused, run_fused, run_pingpong};
    const bool may[] = {true, epilogue_in_cublaslt(p->epilogue.kind), p->may_pingpong};
    Autotuner *all = p->q->context->autotuner;
    FusionRun candidate[3];
    GemmFusion run_name[3];
    int n = 0, fastest = 0;
    for (int i = 0; i < 3; i++) {
        if (!may[i]) continue;
        if (name[i] != FUSION_PINGPONG) TRY(run[i](p)); /* finds its algorithms, so that */
        candidate[n] = run[i];
        run_name[n++] = name[i];
    }
    all->measuring = false; /* each is timed with its best algorithm */
    const Err err = autotuner_fastest(p->q, candidate, n, p, &fastest);
    all->measuring = true;
    *out = run_name[fastest];
    return err;
}

/* Decides the fusion of a shape. All fusions write the same outputs except for rounding. Sums
 * accumulate, so they go to temporary memory while timing; if there is none, the first fusion
 * stays. */
static Err choose_fusion(const FusedGemm *p, const LtShape *shape)
{
    Autotuner *all = p->q->context->autotuner;
    Tensor *sums = NULL;
    FusedGemm timed = *p;
    GemmFusion fusion = FUSION_EPILOGUE;
    if (p->sum.n_out) {
        sums = &timed.sum.out[0];
        sums->stride[0] = 1;
        TRY(cuda_borrow(p->q->context, (size_t)sums->n[0] * dtype_bytes(sums->dtype), &sums->data));
        if (!sums->data) return OK; /* undecided: a run can do without */
    }
    const Err err = time_fusions(&timed, &fusion);
    if (sums) TRY(cuda_return(sums->data));
    GemmEntry *entry = autotuner_lookup(all, shape);
    entry->fusion = fusion;
    if (fusion != FUSION_EPILOGUE) finalists_drop(entry);
    return err;
}

static Err run_fastest(const FusedGemm *p)
{
    LtShape shape;
    LtOperands operands;
    GemmEntry *entry;
    if (!lt_describe(&p->fused, &p->epilogue, &shape, &operands)) return run_unfused(p);
    TRY(autotuner_find(p->q, &shape, &operands, &entry));
    if (!entry->possible) return run_unfused(p);
    if (entry->fusion == FUSION_UNDECIDED && p->q->context->autotuner->measuring) {
        TRY(choose_fusion(p, &shape));
        /* it may have been reallocated */
        entry = autotuner_lookup(p->q->context->autotuner, &shape);
    }
    if (entry->fusion == FUSION_PINGPONG && p->may_pingpong) return run_pingpong(p);
    const bool one = entry->fusion != FUSION_NONE && epilogue_in_cublaslt(shape.epilogue);
    return one ? run_fused(p) : run_unfused(p);
}

/* Fills in the ping-pong GEMM if that kernel can run it: b is [n, k] for a gelu, [k, n] for a
 * gradient. */
static void add_pingpong(const Call *call, FusedGemm *p)
{
    const EpilogueOperands *b = &p->epilogue;
    const bool gelu = b->kind == EPILOGUE_GELU;
    p->pingpong =
        (PingpongGemm){b->kind, .x = call->in[0], .w = call->in[1], .out = {p->fused.out[0]}};
    p->pingpong.aux[0] = *b->aux;
    if (b->kind == EPILOGUE_DSWIGLU) {
        p->pingpong.out[1] = call->out[1];
        p->pingpong.aux[1] = call->in[3];
    }
    if (b->bias) p->pingpong.bias = *b->bias;
    p->may_pingpong = !call->attr.gemm.ta && call->attr.gemm.tb == gelu &&
                      pingpong_fits(call->queue->context, &p->pingpong);
}

/* In deterministic mode h is computed from the stored, rounded u, as a recomputed gelu does. */
Err cuda_gemm_gelu(const Call *call)
{
    const Tensor h = call->out[0], u = call->out[1];
    const EpilogueOperands b = {call->n_in > 2 ? &call->in[2] : NULL, NULL, &u, EPILOGUE_GELU};
    FusedGemm p = {.q = call->queue,
                   .epilogue = b,
                   .fused = gemm_alone(call, b.bias, h),
                   .gemm = gemm_alone(call, b.bias, u),
                   .pointwise = pointwise_alone(call, 1, &u, h),
                   .pointwise_run = cuda_gelu};
    TRY(cuda_begin(call, KERNEL_gemm_gelu));
    if (tensor_count(&h) == 0) return OK;
    add_pingpong(call, &p);
    return call->queue->context->any_order ? run_fastest(&p) : run_unfused(&p);
}

Err cuda_gemm_dgelu(const Call *call)
{
    const Tensor u = call->in[2], c = call->out[0];
    FusedGemm p = {.q = call->queue,
                   .epilogue = {NULL, NULL, &u, EPILOGUE_DGELU},
                   .fused = gemm_alone(call, NULL, c),
                   .gemm = gemm_alone(call, NULL, c),
                   .pointwise = pointwise_alone(call, 2, (const Tensor[]){c, u}, c),
                   .pointwise_run = cuda_gelu_dx};
    TRY(cuda_begin(call, KERNEL_gemm_dgelu));
    add_pingpong(call, &p);
    if (call->n_out > 1) p.sum = call_sum_rows(call, &c, 1);
    return tensor_count(&c) == 0 ? run_sum(&p) : run_fastest(&p);
}

/* Without fusion, the GEMM's result dy is stored in dup, where swiglu_dx reads it. */
Err cuda_gemm_dswiglu(const Call *call)
{
    const Tensor gate = call->in[2], up = call->in[3], dgate = call->out[0], dup = call->out[1];
    FusedGemm p = {.q = call->queue,
                   .epilogue = {NULL, NULL, &gate, EPILOGUE_DSWIGLU},
                   .fused = gemm_alone(call, NULL, dgate),
                   .gemm = gemm_alone(call, NULL, dup),
                   .pointwise = pointwise_alone(call, 3, (const Tensor[]){dup, gate, up}, dgate),
                   .pointwise_run = cuda_swiglu_dx};
    TRY(cuda_begin(call, KERNEL_gemm_dswiglu));
    if (tensor_count(&dup) == 0) return OK;
    p.pointwise.out[p.pointwise.n_out++] = dup;
    add_pingpong(call, &p);
    return run_fastest(&p);
}
