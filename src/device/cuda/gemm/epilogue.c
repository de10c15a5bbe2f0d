/* epilogue.c -- a product and the pointwise op beside it, by the fastest of three ways:
 *
 *     one     cuBLASLt's, the op as its epilogue; it has gelu's alone
 *     apart   the product, then the op
 *     relay   our own kernel, which has both, and the sums over rows too (relay.cu)
 *
 * The clock decides, once for each shape, where choices are measured; else it is the first that runs. */
#include "device/cuda/gemm/cublaslt_gemm.h"
#include "device/cuda/gemm/pingpong.h"

typedef struct {
    DeviceQueue *q;
    Beside beside;
    Call one, product, after;
    Err (*point)(const Call *);
    Call sum; /* over the rows of what is made; n_out 0: none */
    Relay relay;
    bool may_relay;
} Pair;

static Err run_sum(const Pair *p) { return p->sum.n_out ? cuda_sum_rows(&p->sum) : OK; }

static Err run_one(const void *pair)
{
    const Pair *p = pair;
    Shape shape;
    Operands with;
    Choice *choice;
    MUST(product_as_one(&p->one, &p->beside, &shape, &with), "a way that is not there");
    TRY(choices_find(p->q, &shape, &with, &choice));
    TRY(choice_use(p->q, choice, &with));
    return run_sum(p);
}

static Err run_apart(const void *pair)
{
    const Pair *p = pair;
    TRY(cuda_gemm(&p->product));
    TRY(p->point(&p->after));
    return run_sum(p);
}

/* Its sums are those before rounding, in another order than that of sum_rows: where results must not
 * depend on how phases are split, they are made apart. */
static Err run_relay(const void *pair)
{
    const Pair *p = pair;
    Relay r = p->relay;
    const bool sums = p->sum.n_out && p->q->context->any_order;
    if (sums) {
        r.sums = p->sum.out[0];
        r.keep = (float)p->sum.number[0];
    }
    TRY(relay_run(p->q, &r));
    return sums ? OK : run_sum(p);
}

static Err time_ways(const Pair *p, Way *out)
{
    static const Way name[] = {WAY_APART, WAY_ONE, WAY_RELAY};
    static const ChoiceRun run[] = {run_apart, run_one, run_relay};
    const bool may[] = {true, point_in_library(p->beside.point), p->may_relay};
    Choices *all = p->q->context->choices;
    ChoiceRun way[3];
    Way named[3];
    int n = 0, fastest = 0;
    for (int i = 0; i < 3; i++) {
        if (!may[i]) continue;
        if (name[i] != WAY_RELAY) TRY(run[i](p)); /* its algorithms are known then, */
        way[n] = run[i];
        named[n++] = name[i];
    }
    all->measure = false; /* and each takes its best */
    const Err err = choices_fastest(p->q, way, n, p, &fastest);
    all->measure = true;
    *out = named[fastest];
    return err;
}

/* Of a shape with a point. All ways leave the same in the outputs, but for rounding; but sums are added
 * to, so meanwhile they go to other memory. */
static Err choose_way(const Pair *p, const Shape *shape)
{
    Choices *all = p->q->context->choices;
    Tensor *sums = NULL;
    Pair timed = *p;
    Way way = WAY_ONE;
    if (p->sum.n_out) {
        sums = &timed.sum.out[0];
        sums->stride[0] = 1;
        CUDA_TRY(cudaMalloc(&sums->data, (size_t)sums->n[0] * dtype_bytes(sums->dtype)));
    }
    const Err err = time_ways(&timed, &way);
    if (sums) CUDA_TRY(cudaFree(sums->data));
    Choice *choice = choices_known(all, shape);
    choice->way = way;
    if (way != WAY_ONE) trial_drop(choice);
    return err;
}

static Err run_pair(const Pair *p)
{
    Shape shape;
    Operands with;
    Choice *choice;
    if (!product_as_one(&p->one, &p->beside, &shape, &with)) return run_apart(p);
    TRY(choices_find(p->q, &shape, &with, &choice));
    if (!choice->possible) return run_apart(p);
    if (choice->way == WAY_OPEN && p->q->context->choices->measure) {
        TRY(choose_way(p, &shape));
        choice = choices_known(p->q->context->choices, &shape); /* it may have moved */
    }
    if (choice->way == WAY_RELAY && p->may_relay) return run_relay(p);
    const bool one = choice->way != WAY_APART && point_in_library(shape.point);
    return one ? run_one(p) : run_apart(p);
}

/* Has the relay this product? It wants b as [n, k] of a gelu, as [k, n] of a gradient. */
static void add_relay(const Call *call, Pair *p)
{
    const Beside *b = &p->beside;
    const bool gelu = b->point == POINT_GELU;
    p->relay = (Relay){b->point, .x = call->in[0], .w = call->in[1], .out = {p->one.out[0]}};
    p->relay.aux[0] = *b->aux;
    if (b->point == POINT_DSWIGLU) {
        p->relay.out[1] = call->out[1];
        p->relay.aux[1] = call->in[3];
    }
    if (b->bias) p->relay.bias = *b->bias;
    p->may_relay = !call->attr.gemm.ta && call->attr.gemm.tb == gelu &&
                   relay_fits(call->queue->context, &p->relay);
}

/* Where results must not depend on what is recomputed, h is that of the u that is stored, as gelu
 * makes it again. */
Err cuda_gemm_gelu(const Call *call)
{
    const Tensor h = call->out[0], u = call->out[1];
    const Beside b = {call->n_in > 2 ? &call->in[2] : NULL, NULL, &u, POINT_GELU};
    Pair p = {.q = call->queue,
              .beside = b,
              .one = product_of(call, b.bias, h),
              .product = product_of(call, b.bias, u),
              .after = point_of(call, 1, &u, h),
              .point = cuda_gelu};
    TRY(cuda_begin(call, KERNEL_gemm_gelu));
    if (tensor_count(&h) == 0) return OK;
    add_relay(call, &p);
    return call->queue->context->any_order ? run_pair(&p) : run_apart(&p);
}

Err cuda_gemm_dgelu(const Call *call)
{
    const Tensor u = call->in[2], c = call->out[0];
    Pair p = {.q = call->queue,
              .beside = {NULL, NULL, &u, POINT_DGELU},
              .one = product_of(call, NULL, c),
              .product = product_of(call, NULL, c),
              .after = point_of(call, 2, (const Tensor[]){c, u}, c),
              .point = cuda_gelu_dx};
    TRY(cuda_begin(call, KERNEL_gemm_dgelu));
    add_relay(call, &p);
    if (call->n_out > 1) p.sum = call_sum_rows(call, &c, 1);
    return tensor_count(&c) == 0 ? run_sum(&p) : run_pair(&p);
}

/* Made apart, dy lies where dup does then. */
Err cuda_gemm_dswiglu(const Call *call)
{
    const Tensor gate = call->in[2], up = call->in[3], dgate = call->out[0], dup = call->out[1];
    Pair p = {.q = call->queue,
              .beside = {NULL, NULL, &gate, POINT_DSWIGLU},
              .one = product_of(call, NULL, dgate),
              .product = product_of(call, NULL, dup),
              .after = point_of(call, 3, (const Tensor[]){dup, gate, up}, dgate),
              .point = cuda_swiglu_dx};
    TRY(cuda_begin(call, KERNEL_gemm_dswiglu));
    if (tensor_count(&dup) == 0) return OK;
    p.after.out[p.after.n_out++] = dup;
    add_relay(call, &p);
    return run_pair(&p);
}
