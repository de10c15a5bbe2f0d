/* test_cpu_attention_bf16.c -- attention in bf16 on every micro-kernel: errors of the bf16 and
 * AMX paths, which round weights to bf16, compared with those of the f32 path. */
#include "cpu_test.h"
#include "attention_test.h"

static Tensor in_f64(Bench *b, Tensor t)
{
    if (t.dtype == I32) return t;
    const Tensor wide = bench_new(b, F64, DENSE, t.n, t.ndim);
    for (int64_t i = 0; i < tensor_count(&t); i++) put(&wide, i, get(&t, i));
    return wide;
}

static double rms_error(const Tensor *got, const Tensor *want)
{
    double sum = 0;
    const int64_t n = tensor_count(got);
    for (int64_t i = 0; i < n; i++) sum += pow(get(got, i) - get(want, i), 2);
    return sqrt(sum / (double)n);
}

/* Compares with ref in f64 on the same inputs. Rounding weights to bf16 adds about as much error
 * as rounding the result: about sqrt 2 of the error of the f32 path, whose result is stored in
 * bf16. */
static void bf16_against_f32(Bench *b, KernelId id, const Call *call)
{
    Call wide = *call;
    for (int i = 0; i < call->n_in; i++) wide.in[i] = in_f64(b, call->in[i]);
    for (int o = 0; o < call->n_out; o++) wide.out[o] = in_f64(b, call->out[o]);
    assert_int_equal(device_ref.kernel[id](&wide), OK);
    double error[N_CPU_MICROKERNELS][MAX_OUT];
    for (int u = 0; u < N_CPU_MICROKERNELS; u++) {
        if (!microkernel_available((CpuMicrokernel)u)) continue;
        microkernel_use((CpuMicrokernel)u);
        assert_int_equal(device_cpu_simd(CPU_AVX512)->kernel[id](call), OK);
        for (int o = 0; o < call->n_out; o++) error[u][o] = rms_error(&call->out[o], &wide.out[o]);
        for (int o = 0; o < call->n_out && u != MICROKERNEL_FMA; o++) {
            assert_true(error[MICROKERNEL_FMA][o] > 0 &&
                        error[u][o] != error[MICROKERNEL_FMA][o]); /* a different path */
            if (!(error[u][o] <= 1.5 * error[MICROKERNEL_FMA][o]))
                fail_msg("%s output %d: error %g by %s, %g by f32", kernel_name(id), o, error[u][o],
                         microkernel_text((CpuMicrokernel)u), error[MICROKERNEL_FMA][o]);
        }
    }
}

static void bf16_error(void **state)
{
    Bench *b = &((CpuBench *)*state)->b;
    const CpuMicrokernel in_use = microkernel_in_use();
    if (!microkernel_available(MICROKERNEL_DOT)) skip();
    for (int i = 0; i < 3; i++) {
        Case c = {
            .type = BF16, .strides = DENSE, .t = 190, .s = 190, .h = 3, .g = 1, .c = i ? 64 : 50};
        case_open(b, &c, i == 2 ? WINDOW : CAUSAL, 0.8);
        const Call forward = attention_call(&c);
        bf16_against_f32(b, KERNEL_attention, &forward);
        assert_int_equal(device_ref.kernel[KERNEL_attention](&forward), OK);
        const Call back = attention_dx_call(b, &c, (const double[]){0, 0, 0});
        bf16_against_f32(b, KERNEL_attention_dx, &back);
        bench_clear(b);
    }
    microkernel_use(in_use);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bf16_error)};
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
