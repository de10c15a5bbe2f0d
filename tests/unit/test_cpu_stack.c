/* test_cpu_stack.c -- kernels of device/cpu with large working sets, on a thread with a small
 * stack: a quarter of the 2 MiB that threads have where stacks are unlimited. An overflow
 * crashes on the guard page. */
#include "attention_test.h"
#include "cpu_test.h"

#include <pthread.h>

enum { STACK_BYTES = 512 << 10 };

typedef struct {
    const Device *device;
    KernelId id;
    const Call *call;
    Err err;
} Job;

static void *job_main(void *arg)
{
    Job *const job = arg;
    job->err = job->device->kernel[job->id](job->call);
    return NULL;
}

static void run_on_small_stack(Job job)
{
    pthread_attr_t attr;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, job_main, &job), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_attr_destroy(&attr), 0);
    assert_int_equal(job.err, OK);
}

/* Runs each instruction set from the same bytes on a thread with a small stack and on this one. */
static void same_on_small_stack(CpuBench *c, KernelId id, const Call *call)
{
    const size_t bytes = c->b.arena.used_bytes;
    char *const before = malloc(2 * bytes), *const after = before + bytes;
    assert_non_null(before);
    memcpy(before, c->b.arena.base, bytes);
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        memcpy(c->b.arena.base, before, bytes);
        run_on_small_stack((Job){device_cpu_simd(s), id, call, OK});
        memcpy(after, c->b.arena.base, bytes);
        memcpy(c->b.arena.base, before, bytes);
        assert_int_equal(device_cpu_simd(s)->kernel[id](call), OK);
        assert_memory_equal(after, c->b.arena.base, bytes);
    }
    free(before);
}

/* The widest heads; a gradient in one sweep, and one in two: more rows than fit the workspace. */
static void attention(void **state)
{
    CpuBench *cb = *state;
    const int64_t tokens[] = {130, 577};
    for (int i = 0; i < 2 * N_CPU_TYPES; i++) {
        const int64_t n = tokens[i / 2];
        Case c = {.type = cpu_types[i % 2], .t = n, .s = n, .h = 2, .g = 1, .c = 256};
        case_open(&cb->b, &c, CAUSAL, 0.3);
        const Call forward = attention_call(&c);
        same_on_small_stack(cb, KERNEL_attention, &forward);
        const Call back = attention_dx_call(&cb->b, &c, (const double[]){0, 1, 0.5});
        same_on_small_stack(cb, KERNEL_attention_dx, &back);
        bench_clear(&cb->b);
    }
}

static void gemm(void **state)
{
    CpuBench *cb = *state;
    for (int i = 0; i < N_CPU_TYPES; i++) {
        Bench *b = &cb->b;
        const DType type = cpu_types[i];
        Call call = {.n_in = 3, .n_out = 1, .number = {0.5}};
        call.attr.gemm.tb = true;
        call.in[0] = RANDOM(b, type, DENSE, 45, 1501);
        call.in[1] = RANDOM(b, type, DENSE, 67, 1501);
        call.in[2] = RANDOM(b, type, DENSE, 67);
        call.out[0] = RANDOM(b, F32, DENSE, 45, 67);
        same_on_small_stack(cb, KERNEL_gemm, &call);
        bench_clear(b);
    }
}

static void row_sums(void **state)
{
    CpuBench *cb = *state;
    Bench *b = &cb->b;
    Call call = {.n_in = 1, .n_out = 1, .number = {1}};
    call.in[0] = RANDOM(b, BF16, PADDED, 150, 4099);
    call.out[0] = RANDOM(b, F32, DENSE, 4099);
    same_on_small_stack(cb, KERNEL_sum_rows, &call);
    bench_clear(b);
}

static void norm(void **state)
{
    CpuBench *cb = *state;
    Bench *b = &cb->b;
    Call call = {.n_in = 3, .n_out = 3};
    call.attr.norm.eps = 1e-5;
    call.in[0] = RANDOM(b, BF16, PADDED, 11, 4099);
    call.in[1] = RANDOM(b, F32, DENSE, 4099);
    call.in[2] = RANDOM(b, F32, DENSE, 4099);
    call.out[0] = NEW(b, BF16, PADDED, 11, 4099);
    call.out[1] = NEW(b, F32, DENSE, 11);
    call.out[2] = NEW(b, F32, DENSE, 11);
    same_on_small_stack(cb, KERNEL_layernorm, &call);
    bench_clear(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention),
        cmocka_unit_test(gemm),
        cmocka_unit_test(row_sums),
        cmocka_unit_test(norm),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
