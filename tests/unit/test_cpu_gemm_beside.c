/* Products with a sum or a gelu beside them, of device/cpu against ref: transposes, strides, types,
 * odd sizes, no terms; in place and not. */
#include "cpu_test.h"

typedef struct {
    int64_t m, n, k;
} Size;

static const Size size[] = {{37, 53, 29}, {1, 40, 33}, {66, 70, 40}, {29, 75, 31},
                            {5, 7, 0},    {0, 4, 5},   {4, 0, 5}};
enum { N_SIZES = sizeof size / sizeof *size };

/* turn: ta, tb. */
static Call open_call(Bench *b, Size s, DType type, Lay lay, int turn)
{
    const bool ta = turn & 1, tb = turn & 2;
    Call c = {.n_in = 2, .n_out = 1};
    c.attr.gemm.ta = ta;
    c.attr.gemm.tb = tb;
    c.in[0] = RANDOM(b, type, lay, ta ? s.k : s.m, ta ? s.m : s.k);
    c.in[1] = RANDOM(b, type, (Lay)((lay + 1) % N_LAYS), tb ? s.n : s.k, tb ? s.k : s.n);
    c.out[0] = NEW(b, type, lay, s.m, s.n);
    return c;
}

/* Runs `one` over sizes, types, memory orders and transposes. */
static void over_all(CpuBench *c, void (*one)(CpuBench *, Size, Call, DType, bool))
{
    for (int i = 0; i < N_SIZES; i++)
        for (int type = 0; type < N_CPU_TYPES; type++)
            for (int lay = 0; lay < N_LAYS; lay++)
                for (int turn = 0; turn < 4; turn++)
                    one(c, size[i], open_call(&c->b, size[i], cpu_types[type], (Lay)lay, turn),
                        cpu_types[type], (i + lay + turn) % 2);
}

static void one_add(CpuBench *c, Size s, Call call, DType type, bool bias)
{
    call.in[call.n_in++] = RANDOM(&c->b, type, (Lay)(s.n % N_LAYS), s.m, s.n);
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
    call.out[call.n_out++] = NEW(&c->b, type, (Lay)(s.n % N_LAYS), s.m, s.n);
    expect_like_ref(c, KERNEL_gemm_gelu, &call, 2 * tol_sum(type, (double)s.k));
}

static void one_dgelu(CpuBench *c, Size s, Call call, DType type, bool bias)
{
    (void)bias;
    call.in[call.n_in++] = RANDOM(&c->b, type, (Lay)(s.n % N_LAYS), s.m, s.n);
    expect_like_ref(c, KERNEL_gemm_dgelu, &call, 2 * tol_sum(type, (double)s.k));
}

static void adds(void **state) { over_all(*state, one_add); }
static void adds_in_place(void **state) { over_all(*state, one_add_in_place); }
static void gelus(void **state) { over_all(*state, one_gelu); }
static void dgelus(void **state) { over_all(*state, one_dgelu); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds),
        cmocka_unit_test(adds_in_place),
        cmocka_unit_test(gelus),
        cmocka_unit_test(dgelus),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
