/* test_cpu_gemm_prepacked.c -- GEMM on device/cpu with prepacked B against the same GEMM
 * without: the same bits, by every instruction set, micro-kernel and number of threads. B itself
 * is NaN by then: it must not be read. */
#include "support/gemm_cases.h"

enum { GUARD = 64 };

static Tensor panels_for(const Device *d, const Call *call, char **base)
{
    const Tensor *b = &call->in[1];
    const bool tb = call->attr.gemm.tb;
    const size_t bytes = d->prepack->bytes(b->dtype, b->n[tb], b->n[!tb]);
    *base = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
    assert_non_null(*base);
    memset(*base, 0xff, bytes + GUARD);
    return (Tensor){.data = *base, .dtype = b->dtype, .ndim = 1, .n = {(int64_t)bytes}};
}

/* Prepacks B of the call on a team. */
static char *prepack(const Device *d, const Call *call, Team *team)
{
    char *base;
    Call c = {.in = {call->in[1]}, .n_in = 1, .n_out = 1, .attr = call->attr, .team = team};
    c.out[0] = panels_for(d, call, &base);
    assert_int_equal(d->prepack->pack(&c), OK);
    for (int i = 0; i < GUARD; i++) assert_int_equal((uint8_t)base[c.out[0].n[0] + i], 0xff);
    return base;
}

static void fill_nan(const Tensor *t)
{
    for (int64_t i = 0; i < tensor_count(t); i++) put(t, i, (double)NAN);
}

/* Compares the outputs with those in `want`, a copy of the bench. */
static void expect_outputs(CpuBench *c, const Call *call, const char *want, const char *how)
{
    const char *base = c->b.arena.base;
    for (int o = 0; o < call->n_out; o++)
        for (int64_t i = 0; i < tensor_count(&call->out[o]); i++) {
            Tensor there = call->out[o];
            there.data = (char *)(uintptr_t)want + ((const char *)there.data - base);
            const double x = get(&call->out[o], i), y = get(&there, i);
            if (memcmp(&x, &y, sizeof x) != 0)
                fail_msg("%s: output %d [%d] is %.9g, and %.9g without prepacking", how, o, (int)i,
                         x, y);
        }
}

/* On one device, by the micro-kernel in use. reads_b: the path reads B itself, not the prepacked
 * one. */
static void try_device(CpuBench *c, const Device *d, KernelId id, Call call, bool reads_b)
{
    const size_t bytes = c->b.arena.used_bytes;
    char *before = malloc(2 * bytes + 1), *want = before + bytes;
    assert_non_null(before);
    memcpy(before, c->b.arena.base, bytes);
    assert_int_equal(d->kernel[id](&call), OK);
    memcpy(want, c->b.arena.base, bytes);
    for (int n = 1; n <= MAX_THREADS; n++) {
        memcpy(c->b.arena.base, before, bytes);
        char *const prepacked = prepack(d, &call, c->team[n]);
        if (!reads_b) fill_nan(&call.in[1]);
        call.prepacked = prepacked;
        call.team = c->team[MAX_THREADS + 1 - n];
        assert_int_equal(d->kernel[id](&call), OK);
        expect_outputs(c, &call, want, microkernel_text(microkernel_in_use()));
        free(prepacked);
        call.prepacked = NULL;
    }
    memcpy(c->b.arena.base, want, bytes); /* for expect_gaps, and the start of the next case */
    free(before);
}

static void try_all(CpuBench *c, KernelId id, const Call *call, bool reads_b)
{
    const CpuMicrokernel in_use = microkernel_in_use();
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        for (int u = 0; u < N_CPU_MICROKERNELS; u++) {
            const bool choice = s == CPU_AVX512 && call->in[1].dtype == BF16;
            if (!microkernel_available((CpuMicrokernel)u) || (!choice && u != MICROKERNEL_FMA))
                continue;
            microkernel_use((CpuMicrokernel)u);
            try_device(c, device_cpu_simd(s), id, *call, reads_b);
        }
    }
    microkernel_use(in_use);
    expect_gaps(&c->b);
    bench_clear(&c->b);
}

static void try_size(CpuBench *c, Size s, How h)
{
    const Call call = gemm_call(&c->b, s, h);
    try_all(c, KERNEL_gemm, &call, false);
}

/* All transposes, types and memory orders, accumulators kept or not. */
static void all_variants(void **state)
{
    for (int i = 0; i < 32; i++) {
        const How h = gemm_variant(i, i >> 4 ? F32 : BF16);
        try_size(*state, (Size){37, 53, 29}, h);
    }
}

/* Several k blocks, and outer blocks of columns and of k: see test_cpu_gemm_outer_blocks.c. */
static void outer_blocks(void **state)
{
    const How f32 = {.in = F32, .out = F32, .tb = true, .keep = 1};
    const How bf16 = {.in = BF16, .out = BF16, .bias = true, .keep = 0.5};
    try_size(*state, (Size){41, 258, 801}, f32);
    try_size(*state, (Size){41, 258, 803}, bf16);
    try_size(*state, (Size){9, 70, 4109}, f32);
    try_size(*state, (Size){9, 67, 8221}, bf16);
    try_size(*state, (Size){9, 801, 4093}, f32);
}

/* With a fused epilogue. */
static void epilogues(void **state)
{
    CpuBench *c = *state;
    Bench *b = &c->b;
    const Size s = {35, 67, 131};
    const How h = {.in = BF16, .out = BF16, .tb = true};
    Call call = gemm_call(b, s, h);
    call.in[2] = RANDOM(b, BF16, DENSE, s.m, s.n);
    call.n_in = 3;
    try_all(c, KERNEL_gemm_add, &call, false);
    call = gemm_call(b, s, h);
    call.out[1] = NEW(b, BF16, DENSE, s.m, s.n);
    call.n_out = 2;
    try_all(c, KERNEL_gemm_gelu, &call, false);
    call = gemm_call(b, s, (How){.in = F32, .out = F32});
    call.in[2] = RANDOM(b, F32, DENSE, s.m, s.n);
    call.n_in = 3;
    try_all(c, KERNEL_gemm_dgelu, &call, false);
    for (int t = 0; t < N_CPU_TYPES; t++) {
        const DType type = cpu_types[t];
        call = gemm_call(b, s, (How){.in = type, .out = type});
        for (int i = 2; i < 4; i++) call.in[i] = RANDOM(b, type, DENSE, s.m, s.n);
        call.n_in = 4;
        call.out[1] = NEW(b, type, DENSE, s.m, s.n);
        call.n_out = 2;
        try_all(c, KERNEL_gemm_dswiglu, &call, false);
    }
}

/* Skinny GEMM reads B in place. Operands of two types are multiplied in f32, for which B is not
 * packed. */
static void prepacked_is_ignored(void **state)
{
    CpuBench *c = *state;
    Call call = gemm_call(&c->b, (Size){5, 67, 131}, (How){.in = BF16, .out = BF16, .tb = true});
    try_all(c, KERNEL_gemm, &call, true);
    call = gemm_call(&c->b, (Size){35, 67, 131}, (How){.in = BF16, .out = BF16});
    call.in[0] = RANDOM(&c->b, F32, DENSE, 35, 131);
    try_all(c, KERNEL_gemm, &call, true);
}

/* Empty matrices. */
static void empty(void **state)
{
    CpuBench *c = *state;
    const How h = {.in = BF16, .out = F32, .keep = 1};
    try_size(c, (Size){11, 0, 7}, h);
    try_size(c, (Size){0, 11, 7}, h);
    try_size(c, (Size){11, 13, 0}, h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_variants), cmocka_unit_test(outer_blocks),
        cmocka_unit_test(epilogues),    cmocka_unit_test(prepacked_is_ignored),
        cmocka_unit_test(empty),
    };
    return cmocka_run_group_tests(tests, cpu_setup_no_library, cpu_teardown);
}
