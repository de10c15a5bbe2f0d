/* test_cpu_gemm_epilogue.c -- GEMM with a fused addend, gelu, gelu gradient or swiglu gradient,
 * device/cpu against ref: transposes, strides, types, odd and empty sizes, in place or not. And
 * against the unfused kernels, run one after the other, to the bit. */
#include "cpu_test.h"
#include "support/expect.h"

typedef struct {
    int64_t m, n, k;
} Size;

static const Size size[] = {{37, 53, 29}, {1, 40, 33}, {66, 70, 40}, {29, 75, 31},
                            {5, 7, 0},    {0, 4, 5},   {4, 0, 5}};
enum { N_SIZES = sizeof size / sizeof *size };

/* turn: bit 0 is ta, bit 1 is tb */
static Call open_call(Bench *b, Size s, DType type, Strides strides, int turn)
{
    const bool ta = turn & 1, tb = turn & 2;
    Call c = {.n_in = 2, .n_out = 1};
    c.attr.gemm.ta = ta;
    c.attr.gemm.tb = tb;
    c.in[0] = RANDOM(b, type, strides, ta ? s.k : s.m, ta ? s.m : s.k);
    c.in[1] = RANDOM(b, type, (Strides)((strides + 1) % N_STRIDES), tb ? s.n : s.k, tb ? s.k : s.n);
    c.out[0] = NEW(b, type, strides, s.m, s.n);
    return c;
}

/* Runs `one` over sizes, types, memory orders and transposes. */
static void over_all(CpuBench *c, void (*one)(CpuBench *, Size, Call, DType, bool))
{
    for (int i = 0; i < N_SIZES; i++)
        for (int type = 0; type < N_CPU_TYPES; type++)
            for (int strides = 0; strides < N_STRIDES; strides++)
                for (int turn = 0; turn < 4; turn++)
                    one(c, size[i],
                        open_call(&c->b, size[i], cpu_types[type], (Strides)strides, turn),
                        cpu_types[type], (i + strides + turn) % 2);
}

static void one_add(CpuBench *c, Size s, Call call, DType type, bool bias)
{
    call.in[call.n_in++] = RANDOM(&c->b, type, (Strides)(s.n % N_STRIDES), s.m, s.n);
    if (bias) call.in[call.n_in++] = RANDOM(&c->b, type, DENSE, s.n);
    expect_like_ref(c, KERNEL_gemm_add, &call, tol_sum(type, (double)s.k));
}

static void one_add_in_place(CpuBench *c, Size s, Call call, DType type, bool bias)
{
    Tensor sum = accumulator(&c->b, call.out[0], 1);
    call.in[call.n_in++] = call.out[0] = sum;
    if (bias) call.in[call.n_in++] = RANDOM(&c->b, type, DENSE, s.n);
    expect_like_ref(c, KERNEL_gemm_add, &call, tol_sum(type, (double)s.k));
}

static void one_gelu(CpuBench *c, Size s, Call call, DType type, bool bias)
{
    if (bias) call.in[call.n_in++] = RANDOM(&c->b, type, DENSE, s.n);
    call.out[call.n_out++] = NEW(&c->b, type, (Strides)(s.n % N_STRIDES), s.m, s.n);
    expect_like_ref(c, KERNEL_gemm_gelu, &call, 2 * tol_sum(type, (double)s.k));
}

static void one_dgelu(CpuBench *c, Size s, Call call, DType type, bool bias)
{
    (void)bias;
    call.in[call.n_in++] = RANDOM(&c->b, type, (Strides)(s.n % N_STRIDES), s.m, s.n);
    expect_like_ref(c, KERNEL_gemm_dgelu, &call, 2 * tol_sum(type, (double)s.k));
}

/* The column sums of C as it is stored have the bits of sum_rows. */
static void sums_on(CpuBench *c, const Device *cpu, Call call, double keep)
{
    const int64_t n = call.out[0].n[1];
    const Tensor unfused = accumulator(&c->b, NEW(&c->b, F32, PADDED, n), 1);
    call.out[call.n_out++] = accumulator(&c->b, NEW(&c->b, F32, DENSE, n), keep);
    call.number[1] = keep;
    for (int64_t i = 0; i < n && keep != 0; i++) put(&unfused, i, get(&call.out[1], i));
    call.team = c->team[2];
    DO(cpu->kernel[KERNEL_gemm_dgelu](&call));
    const Call sum = {
        .in = {call.out[0]}, .n_in = 1, .out = {unfused}, .n_out = 1, .number = {keep}};
    DO(cpu->kernel[KERNEL_sum_rows](&sum));
    for (int64_t i = 0; i < n; i++)
        if (get(&unfused, i) != get(&call.out[1], i))
            fail_msg("%d of %d: %.9g, and by sum_rows %.9g", (int)i, (int)n, get(&call.out[1], i),
                     get(&unfused, i));
}

static void one_dgelu_sum(CpuBench *c, Size s, Call call, DType type, bool keep)
{
    call.in[call.n_in++] = RANDOM(&c->b, type, (Strides)(s.n % N_STRIDES), s.m, s.n);
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++)
        if (cpu_has(simd)) sums_on(c, device_cpu_simd(simd), call, keep ? 0.5 : 0);
    bench_clear(&c->b);
}

/* Adds gate and up, and the outputs of their gradients: halves of one tensor, or two tensors. */
static Call with_gate(Bench *b, Size s, Call call, DType type, bool halves)
{
    const Strides strides = (Strides)(s.n % N_STRIDES);
    const Tensor from = RANDOM(b, type, strides, s.m, 2 * s.n);
    for (int k = 0; k < 2; k++) call.in[call.n_in++] = bench_half(from, k);
    call.out[call.n_out++] = NEW(b, type, strides, s.m, halves ? 2 * s.n : s.n);
    if (halves) {
        fill(b, &call.out[0], 1); /* not an output: must be unchanged */
        call.out[0] = bench_half(call.out[1], 0);
        call.out[1] = bench_half(call.out[1], 1);
    }
    return call;
}

static void one_dswiglu(CpuBench *c, Size s, Call call, DType type, bool halves)
{
    const Call all = with_gate(&c->b, s, call, type, halves);
    expect_like_ref(c, KERNEL_gemm_dswiglu, &all, 2 * tol_sum(type, (double)s.k));
}

/* gemm, then swiglu_dx, by one thread; dup contains dy in between. */
static void gemm_then_swiglu_dx(const Device *cpu, const Call *call)
{
    Call first = *call;
    first.n_in = 2;
    first.out[0] = call->out[1];
    first.n_out = 1;
    const Call then = {.in = {call->out[1], call->in[2], call->in[3]},
                       .n_in = 3,
                       .out = {call->out[0], call->out[1]},
                       .n_out = 2};
    DO(cpu->kernel[KERNEL_gemm](&first));
    DO(cpu->kernel[KERNEL_swiglu_dx](&then));
}

/* Compares every byte of the bench, by the micro-kernel in use. */
static void same_bits_on(CpuBench *c, const Device *cpu, Call call)
{
    const size_t bytes = c->b.arena.used_bytes;
    char *before = malloc(2 * bytes + 1), *want = before + bytes;
    assert_non_null(before);
    memcpy(before, c->b.arena.base, bytes);
    gemm_then_swiglu_dx(cpu, &call);
    memcpy(want, c->b.arena.base, bytes);
    for (int n = 1; n <= MAX_THREADS; n++) {
        memcpy(c->b.arena.base, before, bytes);
        call.team = c->team[n];
        DO(cpu->kernel[KERNEL_gemm_dswiglu](&call));
        if (memcmp(want, c->b.arena.base, bytes) != 0)
            fail_msg("%s, %d threads: bits differ from gemm and swiglu_dx",
                     microkernel_text(microkernel_in_use()), n);
    }
    memcpy(c->b.arena.base, before, bytes);
    free(before);
}

static void one_dswiglu_unfused(CpuBench *c, Size s, Call call, DType type, bool halves)
{
    const CpuMicrokernel in_use = microkernel_in_use();
    const Call all = with_gate(&c->b, s, call, type, halves);
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++) {
        const bool choice = simd == CPU_AVX512 && type == BF16;
        for (int u = 0; u < N_CPU_MICROKERNELS && cpu_has(simd); u++) {
            if (!microkernel_available((CpuMicrokernel)u) || (!choice && u != MICROKERNEL_FMA))
                continue;
            microkernel_use((CpuMicrokernel)u);
            same_bits_on(c, device_cpu_simd(simd), all);
        }
    }
    microkernel_use(in_use);
    bench_clear(&c->b);
}

static void adds(void **state) { over_all(*state, one_add); }
static void adds_in_place(void **state) { over_all(*state, one_add_in_place); }
static void gelus(void **state) { over_all(*state, one_gelu); }
static void dgelus(void **state) { over_all(*state, one_dgelu); }
static void dswiglus(void **state) { over_all(*state, one_dswiglu); }
static void dgelus_and_sums(void **state) { over_all(*state, one_dgelu_sum); }

/* Several k blocks, and outer blocks of columns and of k: see test_cpu_gemm_outer_blocks.c. */
static void dswiglus_unfused(void **state)
{
    static const Size large[] = {{41, 258, 803}, {9, 67, 8221}, {201, 131, 75}};
    CpuBench *c = *state;
    over_all(c, one_dswiglu_unfused);
    for (int i = 0; i < 6; i++) {
        const DType type = cpu_types[i % 2];
        one_dswiglu_unfused(c, large[i / 2], open_call(&c->b, large[i / 2], type, DENSE, 0), type,
                            true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds),
        cmocka_unit_test(adds_in_place),
        cmocka_unit_test(gelus),
        cmocka_unit_test(dgelus),
        cmocka_unit_test(dgelus_and_sums),
        cmocka_unit_test(dswiglus),
        cmocka_unit_test(dswiglus_unfused),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
