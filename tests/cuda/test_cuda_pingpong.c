/* GEMMs with a gelu, gelu gradient or swiglu gradient epilogue by the ping-pong kernel, on sm_90;
 * on other GPUs nothing is tested. */
#include "pingpong_test.h"

typedef struct {
    int64_t tokens, width, depth;
} Size;

/* Less than a tile; partial tiles, pairs of tiles and depth steps; several tiles per block, so that
 * both warpgroups alternate more than once. */
static const Size sizes[] = {{1, 8, 8},       {200, 264, 72},   {333, 128, 64},
                             {777, 520, 200}, {64, 1000, 1032}, {13000, 520, 24}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* Inputs x and w, and the output; the caller appends the epilogue operands. */
static Call open_call(const Size *s, bool transposed)
{
    Call call = {.n_in = 2, .n_out = 1, .attr = {.gemm = {false, !transposed}}};
    call.in[0] = RANDOM(&gpu.b, BF16, DENSE, s->tokens, s->depth);
    call.in[1] = transposed ? RANDOM(&gpu.b, BF16, DENSE, s->depth, s->width)
                            : RANDOM(&gpu.b, BF16, DENSE, s->width, s->depth);
    call.out[0] = NEW(&gpu.b, BF16, DENSE, s->tokens, s->width);
    return call;
}

static void try_pingpong(KernelId id, const Call *call)
{
    const size_t bytes = gpu.b.arena.used_bytes;
    char *after = malloc(bytes + 1);
    assert_non_null(after);
    run_on_gpu(id, call, gpu.b.arena.base, after);
    free(after);
    force_pingpong();
    expect_like_ref(id, call, gpu_terms((double)call->in[0].n[1]) + ldexp(1, -11), 0);
}

static void gelus(void **state)
{
    (void)state;
    if (!has_pingpong()) return;
    gpu.m->deterministic(gpu.context, false);
    for (int i = 0; i < 2 * N_SIZES; i++) {
        const Size *s = &sizes[i / 2];
        Call call = open_call(s, false);
        if (i % 2) call.in[call.n_in++] = RANDOM(&gpu.b, BF16, DENSE, s->width);
        call.out[call.n_out++] = NEW(&gpu.b, BF16, DENSE, s->tokens, s->width);
        try_pingpong(KERNEL_gemm_gelu, &call);
    }
}

/* With and without the sums of rows; the sums accumulate. */
static void dgelus(void **state)
{
    (void)state;
    if (!has_pingpong()) return;
    gpu.m->deterministic(gpu.context, false);
    for (int i = 0; i < 3 * N_SIZES; i++) {
        const Size *s = &sizes[i / 3];
        Call call = open_call(s, true);
        call.in[call.n_in++] = RANDOM(&gpu.b, BF16, DENSE, s->tokens, s->width);
        if (i % 3) {
            call.number[1] = i % 3 - 1;
            call.out[call.n_out++] =
                accumulator(&gpu.b, NEW(&gpu.b, F32, DENSE, s->width), call.number[1]);
        }
        try_pingpong(KERNEL_gemm_dgelu, &call);
    }
}

/* Values where gelu's slope changes most, and where it is 0 or 1. */
static void large_values(void **state)
{
    (void)state;
    if (!has_pingpong()) return;
    const Size s = {777, 520, 200};
    gpu.m->deterministic(gpu.context, false);
    for (int scale = 2; scale <= 8; scale *= 2) {
        Call call = open_call(&s, true);
        call.in[call.n_in++] = NEW(&gpu.b, BF16, DENSE, s.tokens, s.width);
        fill(&gpu.b, &call.in[2], scale);
        call.out[call.n_out++] = NEW(&gpu.b, F32, DENSE, s.width);
        try_pingpong(KERNEL_gemm_dgelu, &call);
    }
}

/* The left or right half of a matrix; gate and up are such halves of one GEMM's output. */
static Tensor half_of(Tensor t, int which)
{
    t.n[1] /= 2;
    t.data = (uint16_t *)t.data + which * t.n[1];
    return t;
}

static void dswiglus(void **state)
{
    (void)state;
    if (!has_pingpong()) return;
    gpu.m->deterministic(gpu.context, false);
    for (int i = 0; i < 3 * N_SIZES; i++) { /* 3: also gates far from 0 */
        const Size *s = &sizes[i / 3];
        Call call = open_call(s, true);
        const Tensor y = NEW(&gpu.b, BF16, DENSE, s->tokens, 2 * s->width);
        const Tensor dy = NEW(&gpu.b, BF16, DENSE, s->tokens, 2 * s->width);
        fill(&gpu.b, &y, i % 3 * 4 + 1);
        for (int k = 0; k < 2; k++) {
            call.in[call.n_in++] = half_of(y, k);
            call.out[k] = half_of(dy, k);
        }
        call.n_out = 2;
        try_pingpong(KERNEL_gemm_dswiglu, &call);
    }
}

/* In deterministic mode the sums have the bits of sum_rows. */
static void separate_sums(void **state)
{
    (void)state;
    if (!has_pingpong()) return;
    const Size s = {777, 520, 200};
    gpu.m->deterministic(gpu.context, true);
    Call call = open_call(&s, true);
    call.in[call.n_in++] = RANDOM(&gpu.b, BF16, DENSE, s.tokens, s.width);
    call.out[call.n_out++] = NEW(&gpu.b, F32, DENSE, s.width);
    const Tensor want = NEW(&gpu.b, F32, DENSE, s.width);
    const Call sums = {.in = {call.out[0]}, .n_in = 1, .out = {want}, .n_out = 1};
    char *base = gpu.b.arena.base;
    run_on_gpu(KERNEL_gemm_dgelu, &call, base, base);
    force_pingpong();
    run_on_gpu(KERNEL_gemm_dgelu, &call, base, base);
    run_on_gpu(KERNEL_sum_rows, &sums, base, base);
    for (int64_t i = 0; i < s.width; i++) assert_true(get(&want, i) == get(&call.out[1], i));
    bench_clear(&gpu.b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gelus), cmocka_unit_test(dgelus), cmocka_unit_test(large_values),
    cmocka_unit_test(dswiglus), cmocka_unit_test(separate_sums)};

GPU_MAIN(tests)
