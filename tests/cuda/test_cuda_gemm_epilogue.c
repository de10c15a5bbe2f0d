/* GEMMs with an addend, a gelu or swiglu's gradient as epilogue on the GPU: fused where cuBLASLt
 * can, two kernels where it cannot; with its first suggestion and with the fastest measured
 * algorithm. */
#include "gpu_test.h"

typedef struct {
    int64_t m, n, k;
} Size;

/* The last ones are multiples of 8, which cuBLASLt fuses. */
static const Size sizes[] = {{7, 5, 3},       {33, 65, 17},   {1, 40, 24},   {40, 1, 24},
                             {0, 5, 3},       {5, 0, 3},      {5, 7, 0},     {130, 72, 200},
                             {192, 320, 128}, {64, 1024, 96}, {512, 96, 384}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

typedef struct {
    Size s;
    DType type;
    int transpose;   /* 1: a, 2: b */
    Strides strides; /* of the epilogue operands */
    bool bias;
} Case;

static Call open_call(const Case *c)
{
    const bool ta = c->transpose & 1, tb = c->transpose & 2;
    Call call = {.n_in = 2, .n_out = 1, .attr = {.gemm = {ta, tb}}};
    call.in[0] = RANDOM(&gpu.b, c->type, DENSE, ta ? c->s.k : c->s.m, ta ? c->s.m : c->s.k);
    call.in[1] = RANDOM(&gpu.b, c->type, DENSE, tb ? c->s.n : c->s.k, tb ? c->s.k : c->s.n);
    call.out[0] = NEW(&gpu.b, c->type, DENSE, c->s.m, c->s.n);
    return call;
}

/* A bias that cuBLASLt cannot take is added first, and the sum is rounded. For sizes that are not
 * multiples of 8, cuBLASLt rounds the result before it adds. */
static double rounding_inside(const Case *c) { return c->type == BF16 ? ldexp(1, -8) : 0; }

static void try_add(const Case *c)
{
    Call call = open_call(c);
    call.in[call.n_in++] = RANDOM(&gpu.b, c->type, c->strides, c->s.m, c->s.n);
    if (c->bias) call.in[call.n_in++] = RANDOM(&gpu.b, c->type, DENSE, c->s.n);
    expect_like_ref(KERNEL_gemm_add, &call, gpu_terms((double)c->s.k), rounding_inside(c));
}

/* c is the addend: it must be added exactly once. */
static void try_add_in_place(const Case *c)
{
    Call call = open_call(c);
    call.out[0] = accumulator(&gpu.b, call.out[0], 1);
    call.in[call.n_in++] = call.out[0];
    if (c->bias) call.in[call.n_in++] = RANDOM(&gpu.b, c->type, DENSE, c->s.n);
    const size_t bytes = gpu.b.arena.used_bytes;
    char *before = malloc(2 * bytes + 1), *after = before + bytes;
    assert_non_null(before);
    memcpy(before, gpu.b.arena.base, bytes);
    run_on_gpu(KERNEL_gemm_add, &call, before, after);
    run(KERNEL_gemm_add, &call);
    const Values want = values_of(&call);
    memcpy(gpu.b.arena.base, after, bytes);
    const double one = c->type == BF16 ? ldexp(1, -8) : 0;
    double largest = 1;
    for (int64_t i = 0; i < tensor_count(&call.out[0]); i++)
        largest = fmax(largest, fabs(want.value[0][i]));
    for (int64_t i = 0; i < tensor_count(&call.out[0]); i++)
        if (!(fabs(get(&call.out[0], i) - want.value[0][i]) <=
              (2 * one + gpu_terms((double)c->s.k)) * largest))
            fail_msg("in place [%d]: %g, ref %g", (int)i, get(&call.out[0], i), want.value[0][i]);
    values_free(&call, want);
    free(before);
    bench_clear(&gpu.b);
}

/* h is computed from u before or after rounding: the error is that of a bf16 u. */
static void try_gelu(const Case *c)
{
    Call call = open_call(c);
    if (c->bias) call.in[call.n_in++] = RANDOM(&gpu.b, c->type, DENSE, c->s.n);
    call.out[call.n_out++] = NEW(&gpu.b, c->type, c->strides, c->s.m, c->s.n);
    expect_like_ref(KERNEL_gemm_gelu, &call, gpu_terms((double)c->s.k), 0);
}

/* Without fusion the result of the GEMM is rounded before the epilogue. */
static void try_dgelu(const Case *c)
{
    Call call = open_call(c);
    call.in[call.n_in++] = RANDOM(&gpu.b, c->type, c->strides, c->s.m, c->s.n);
    expect_like_ref(KERNEL_gemm_dgelu, &call, gpu_terms((double)c->s.k), rounding_inside(c));
}

static void try_dswiglu(const Case *c)
{
    Call call = open_call(c);
    call.in[call.n_in++] = RANDOM(&gpu.b, c->type, c->strides, c->s.m, c->s.n);
    call.in[call.n_in++] = RANDOM(&gpu.b, c->type, c->strides, c->s.m, c->s.n);
    call.out[call.n_out++] = NEW(&gpu.b, c->type, c->strides, c->s.m, c->s.n);
    expect_like_ref(KERNEL_gemm_dswiglu, &call, gpu_terms((double)c->s.k), rounding_inside(c));
}

/* The sum of c's rows has the bits of sum_rows of the stored c, and c is the same with and without
 * it. */
static void try_dgelu_sum(const Case *c)
{
    Call call = open_call(c), with;
    const Tensor want = NEW(&gpu.b, F32, DENSE, c->s.n);
    const double keep = c->bias ? 0.5 : 0;
    call.in[call.n_in++] = RANDOM(&gpu.b, c->type, c->strides, c->s.m, c->s.n);
    with = call;
    with.out[0] = NEW(&gpu.b, c->type, DENSE, c->s.m, c->s.n);
    with.out[with.n_out++] = accumulator(&gpu.b, NEW(&gpu.b, F32, PADDED, c->s.n), keep);
    with.number[1] = keep;
    for (int64_t i = 0; i < c->s.n && keep != 0; i++) put(&want, i, get(&with.out[1], i));
    const Call sum = {.in = {with.out[0]}, .n_in = 1, .out = {want}, .n_out = 1, .number = {keep}};
    run_on_gpu(KERNEL_gemm_dgelu, &call, gpu.b.arena.base, gpu.b.arena.base);
    run_on_gpu(KERNEL_gemm_dgelu, &with, gpu.b.arena.base, gpu.b.arena.base);
    run_on_gpu(KERNEL_sum_rows, &sum, gpu.b.arena.base, gpu.b.arena.base);
    for (int64_t i = 0; i < tensor_count(&call.out[0]); i++)
        assert_true(get(&call.out[0], i) == get(&with.out[0], i));
    for (int64_t i = 0; i < c->s.n; i++)
        if (get(&want, i) != get(&with.out[1], i))
            fail_msg("sum [%d]: %.9g, and by sum_rows %.9g", (int)i, get(&with.out[1], i),
                     get(&want, i));
    bench_clear(&gpu.b);
}

static void over_all(void (*one)(const Case *))
{
    for (int i = 0; i < N_SIZES; i++)
        for (int transpose = 0; transpose < 4; transpose++)
            for (int type = 0; type < 2; type++)
                for (int strides = 0; strides < N_STRIDES; strides++) {
                    const Case c = {sizes[i], gpu_types[type], transpose, (Strides)strides,
                                    (i + transpose + strides) % 2};
                    one(&c);
                }
}

static void adds(void **state)
{
    (void)state;
    over_all(try_add);
    over_all(try_add_in_place);
}

static void gelus(void **state)
{
    (void)state;
    over_all(try_gelu); /* of the stored u */
    gpu.m->deterministic(gpu.context, false);
    over_all(try_gelu); /* fused */
    gpu.m->deterministic(gpu.context, true);
}

static void dgelus(void **state)
{
    (void)state;
    over_all(try_dgelu);
    over_all(try_dgelu_sum);
}

static void dswiglus(void **state)
{
    (void)state;
    over_all(try_dswiglu);
}

/* The same bits as gelu of the stored u. */
static void gelu_recomputed(void **state)
{
    (void)state;
    const Case c = {{192, 320, 128}, BF16, 2, DENSE, true};
    Call call = open_call(&c);
    call.in[call.n_in++] = RANDOM(&gpu.b, c.type, DENSE, c.s.n);
    call.out[call.n_out++] = NEW(&gpu.b, c.type, DENSE, c.s.m, c.s.n);
    const Tensor want = NEW(&gpu.b, c.type, DENSE, c.s.m, c.s.n);
    const Call gelu = {.in = {call.out[1]}, .n_in = 1, .out = {want}, .n_out = 1};
    run_on_gpu(KERNEL_gemm_gelu, &call, gpu.b.arena.base, gpu.b.arena.base);
    run_on_gpu(KERNEL_gelu, &gelu, gpu.b.arena.base, gpu.b.arena.base);
    for (int64_t i = 0; i < tensor_count(&want); i++)
        assert_true(get(&want, i) == get(&call.out[0], i));
    bench_clear(&gpu.b);
}

/* Measuring runs each GEMM many times, but the outputs are those of one run. A new context knows no
 * shape. */
static void measured(void **state)
{
    DeviceContext *old = gpu.context;
    DeviceQueue *q = gpu.q;
    (void)state;
    gpu_ok(gpu.m->open(0, &gpu.context));
    gpu.q = gpu.m->queue(gpu.context, QUEUE_COMPUTE);
    gpu.m->autotune->measure(gpu.context, true);
    gpu.m->deterministic(gpu.context, false);
    for (int i = 0; i < 8; i++) {
        const Case c = {sizes[i & 1 ? N_SIZES - 2 + (i >> 2) : 1], gpu_types[i >> 1 & 1], 2, DENSE,
                        i >> 2};
        Case back = c; /* b as in gradients, for the ping-pong kernel */
        back.transpose = 0;
        try_add(&c);
        try_add_in_place(&c);
        try_gelu(&c);
        try_dgelu(&c);
        try_dgelu(&back);
        try_dswiglu(&c);
        try_dswiglu(&back);
    }
    gpu.m->close(gpu.context);
    gpu.context = old;
    gpu.q = q;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(adds),     cmocka_unit_test(gelus),           cmocka_unit_test(dgelus),
    cmocka_unit_test(dswiglus), cmocka_unit_test(gelu_recomputed), cmocka_unit_test(measured)};

GPU_MAIN(tests)
