/* Each kernel takes at most the scratch that was planned for it, and launches what a GPU accepts:
 * random sizes, up to 65,536 rows and 50,304 words, on cards with 227, 163 and 99 KiB of shared
 * memory. Kernels do not run (shim/cuda_shim.c), so all tensors have one address. */
#include "support/expect.h"

#include <stdio.h>
#include "base/philox.h"
#include "cuda/shim/cuda_shim.h"
#include "device/cuda_workspace.h"
#include "device/registry.h"
#include "device/runtime.h"

enum { ROUNDS = 60 };
#define BYTES ((size_t)1 << 36) /* committed where it is touched */

static const Device *cuda;
static DeviceContext *context;
static char *memory, *scratch;
static Random random_of;
static uint64_t drawn;

static uint64_t draw(uint64_t n) { return random_bits(&random_of, drawn++) % n; }
static int64_t pick(const int64_t *from, int n) { return from[draw((uint64_t)n)]; }
#define PICK(...) pick((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / 8)

static int64_t rows(void) { return PICK(1, 7, 63, 64, 65, 192, 511, 4097, 9000, 32768, 65536); }
static int64_t width(void) { return PICK(8, 15, 64, 136, 768, 1000, 2048, 2056, 4096, 14336); }

static Tensor dense(DType t, int ndim, const int64_t *n)
{
    Tensor x = {.data = memory, .dtype = t, .ndim = ndim};
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        x.n[i] = n[i];
        x.stride[i] = step;
        step *= n[i];
    }
    return x;
}
#define T(type, ...)                                                                               \
    dense(type, sizeof((const int64_t[]){__VA_ARGS__}) / 8, (const int64_t[]){__VA_ARGS__})

static Call call_of(int n_in, int n_out)
{
    Call c = {.n_in = n_in, .n_out = n_out};
    for (int i = 0; i < MAX_NUMBERS; i++) c.number[i] = 1; /* nothing is cleared */
    return c;
}

/* Runs a call, with no more scratch than was planned for it. */
static void expect_planned(KernelId id, const Call *call)
{
    Call shape = *call, run = *call;
    for (int i = 0; i < call->n_in; i++) shape.in[i].data = NULL;
    for (int i = 0; i < call->n_out; i++) shape.out[i].data = NULL;
    const size_t bytes = cuda_workspace.scratch(id, &shape);
    DO(cuda->runtime->scratch(context, scratch, bytes));
    run.queue = cuda->runtime->queue(context, QUEUE_COMPUTE);
    const Err err = cuda->kernel[id](&run);
    if (err != OK && !strstr(err_text(), "bytes of shared memory"))
        fail_msg("%s, %lld x %lld: %s", kernel_name(id), (long long)call->in[0].n[0],
                 (long long)call->in[0].n[1], err_text());
    if (shim_count().refused > 0)
        fail_msg("%s, %lld x %lld: a GPU would refuse %s", kernel_name(id),
                 (long long)call->in[0].n[0], (long long)call->in[0].n[1], shim_count().why);
}

static void norms(DType type)
{
    const int64_t t = rows(), d = width();
    Call c = call_of(6, 4);
    for (int i = 0; i < 6; i++) c.in[i] = T(type, t, d);
    c.in[2] = T(type, d);
    c.in[3] = c.in[4] = T(F32, t);
    c.out[0] = T(type, t, d);
    for (int i = 1; i < 4; i++) c.out[i] = T(F32, d);
    c.n_out = 3 + (int)draw(2);
    expect_planned(KERNEL_layernorm_back, &c);
    c.n_in = 4, c.n_out = 2;
    expect_planned(KERNEL_rmsnorm_back, &c);
    c = call_of(4, 2);
    c.in[0] = c.in[1] = T(type, t, d);
    c.in[2] = c.in[3] = T(F32, t);
    c.out[0] = c.out[1] = T(F32, d);
    expect_planned(KERNEL_layernorm_dw, &c);
    c.n_in = 3, c.n_out = 1;
    expect_planned(KERNEL_rmsnorm_dw, &c);
    expect_planned(KERNEL_sum_rows, &c);
    c = call_of(3, 3);
    c.attr.norm.eps = 1e-5;
    c.in[0] = c.out[0] = T(type, t, d), c.in[1] = c.in[2] = T(type, d);
    c.out[1] = c.out[2] = T(F32, t);
    expect_planned(KERNEL_layernorm, &c);
    c.n_in = c.n_out = 2;
    expect_planned(KERNEL_rmsnorm, &c);
}

/* Kernels without scratch, whose launches depend on sizes. */
static void others(DType type)
{
    const int64_t t = rows(), d = width(), k = PICK(1, 2, 8, 9);
    Call c = call_of(3, 1);
    c.in[0] = T(type, t, d), c.in[1] = T(I32, t, k), c.in[2] = T(F32, t, k), c.out[0] = c.in[0];
    expect_planned(KERNEL_permute, &c);
    c.in[0] = T(I32, t, k), c.in[1] = T(type, t, d), c.out[0] = T(type, t, d);
    expect_planned(KERNEL_unpermute, &c);
    c.in[0] = c.in[2] = T(type, t, d), c.in[1] = T(I32, t, k), c.out[0] = T(F32, t, k);
    expect_planned(KERNEL_permute_dgate, &c);
    c.in[0] = c.in[1] = c.out[0] = T(type, t, d), c.n_in = 2;
    expect_planned(KERNEL_swiglu, &c);
    c = call_of(4, 3);
    c.in[0] = c.out[0] = T(type, t, d), c.in[1] = c.in[2] = T(type, 3, d), c.in[3] = T(I32, t);
    c.out[1] = c.out[2] = T(F32, t);
    expect_planned(KERNEL_modulate, &c);
    c = call_of(2, 4);
    c.attr.quantize.type = E4M3;
    c.in[0] = T(type, t, d), c.in[1] = c.out[1] = c.out[3] = T(F32, 1);
    c.out[0] = T(E4M3, t, d), c.out[2] = T(E4M3, d, t);
    expect_planned(KERNEL_quantize_both, &c);
}

/* Experts with no rows, or all; gradients of their weights. */
static void grouped(DType type)
{
    const int64_t r = rows(), e = PICK(2, 8, 60, 384, 500), d = width(), f = width();
    Call c = call_of(3, 1);
    c.attr.gemm.tb = draw(2);
    c.number[0] = (double)draw(2);
    c.in[0] = T(type, r, d), c.in[2] = T(I32, e + 1), c.out[0] = T(type, r, f);
    c.in[1] = c.attr.gemm.tb ? T(type, e, f, d) : T(type, e, d, f);
    expect_planned(KERNEL_grouped_gemm, &c);
    c.in[1] = T(type, r, f), c.out[0] = T(F32, e, d, f);
    expect_planned(KERNEL_grouped_gemm_dw, &c);
}

static void losses(DType type)
{
    const int64_t t = rows(), v = PICK(211, 50257, 50304, 128256), d = width();
    Call c = call_of(3, 1);
    c.in[0] = T(type, t, v), c.in[1] = T(I32, t), c.in[2] = T(F32, t), c.out[0] = T(F32, 1);
    expect_planned(KERNEL_token_loss, &c);
    c.n_out = 2, c.out[0] = T(type, t, v), c.out[1] = T(F32, 1);
    expect_planned(KERNEL_token_loss_dx, &c);
    c = call_of(1, 1);
    c.in[0] = T(type, t, v), c.out[0] = T(F32, v);
    expect_planned(KERNEL_sum_rows, &c);
    c.in[0] = T(type, t * v), c.out[0] = T(F64, 1);
    expect_planned(KERNEL_sum_squares, &c);
    c = call_of(2, 1);
    c.in[0] = T(type, t, d), c.in[1] = T(I32, t), c.out[0] = T(F32, v, d);
    expect_planned(KERNEL_embedding_dw, &c);
}

/* The sort is a library's: its scratch depends on the card and the number of tokens. */
static void sorts(void)
{
    const int64_t t = 1 + (int64_t)draw(PICK(100, 5000, 70000, 1000000, 40000000));
    Call c = call_of(2, 1);
    c.in[0] = T(BF16, t, 8), c.in[1] = T(I32, t), c.out[0] = T(F32, PICK(3, 300, 128256), 8);
    expect_planned(KERNEL_embedding_dw, &c);
}

static void experts(void)
{
    const int64_t t = rows(), e = PICK(2, 8, 60, 256, 1024), k = PICK(1, 2, 8);
    Call c = call_of(1, 3);
    c.attr.route.scaling = 1;
    c.in[0] = T(F32, t, e), c.out[0] = T(F32, t, k < e ? k : e),
    c.out[1] = T(I32, t, k < e ? k : e);
    c.out[2] = T(F32, e);
    const Tensor expert = c.out[1];
    expect_planned(KERNEL_route, &c);
    c.n_in = 4, c.n_out = 2;
    c.in[0] = c.out[0], c.in[1] = T(F32, t, e), c.in[2] = expert, c.in[3] = T(F32, e);
    c.out[0] = T(F32, t, e), c.out[1] = T(F32, e + 2);
    expect_planned(KERNEL_route_dx, &c);
    c = call_of(1, 2);
    c.in[0] = expert, c.out[0] = expert, c.out[1] = T(I32, e + 1);
    expect_planned(KERNEL_assign_rows, &c);
    c.n_out = 1, c.out[0] = T(F32, e);
    expect_planned(KERNEL_expert_excess, &c);
}

static void clips(DType type)
{
    const int64_t t = rows(), b = PICK(1, 2, 5), d = width();
    Call c = call_of(5, 2);
    c.in[0] = c.in[1] = T(type, t, d), c.in[2] = T(I32, t), c.in[3] = c.in[4] = T(F32, t);
    c.out[0] = c.out[1] = T(F32, b, d);
    expect_planned(KERNEL_modulate_dw, &c);
    c.n_in = 3, c.n_out = 1;
    expect_planned(KERNEL_gate_add_dw, &c);
}

static void gemms(DType type)
{
    const int64_t t = rows(), d = 8 * (width() / 8), f = 8 * (width() / 8);
    Call c = call_of(3, 2);
    c.in[0] = T(type, t, d), c.in[1] = T(type, d, f), c.in[2] = c.out[0] = T(type, t, f);
    c.out[1] = T(F32, f);
    expect_planned(KERNEL_gemm_dgelu, &c);
    c.n_in = 2, c.n_out = 1;
    expect_planned(KERNEL_gemm, &c);
    c = call_of(3, 2);
    c.attr.by.type = E4M3, c.attr.by.eps = 1e-5;
    c.in[0] = c.in[1] = T(type, t, f), c.in[2] = T(F32, 1), c.out[0] = T(E4M3, t, f);
    c.out[1] = T(F32, 1);
    expect_planned(KERNEL_swiglu_by, &c);
}

static void attention(DType type)
{
    const int64_t t = rows(), s = draw(2) ? t : rows(), c = PICK(32, 64, 72, 80, 128, 256);
    const int64_t g = PICK(1, 2, 8), h = g * PICK(1, 4);
    Call a = call_of(4, 2);
    a.number[0] = (double)draw(2);
    a.attr.attention.scale = 0.125;
    a.in[0] = T(type, t, h, c), a.in[1] = a.in[2] = T(type, s, g, c), a.in[3] = T(I32, t, 4);
    a.out[0] = T(type, t, h, c), a.out[1] = T(F32, t, h);
    expect_planned(KERNEL_attention, &a);
    a.n_in = 7, a.n_out = 3;
    a.in[4] = T(type, t, h, c), a.in[5] = T(F32, t, h);
    a.in[6] = draw(2) ? T(type, t, h, c) : T(F32, t, h);
    a.out[0] = T(type, t, h, c), a.out[1] = a.out[2] = T(type, s, g, c);
    expect_planned(KERNEL_attention_dx, &a);
}

static void along(DType type)
{
    const int64_t e = PICK(1, 3, 64), b = PICK(1, 16, 51, 128, 300), p = PICK(1, 5, 1024);
    const int64_t s = draw(2) ? b : PICK(9, 77, 200), h = PICK(1, 16), c = PICK(32, 72, 128);
    Call a = call_of(3, 2);
    a.number[0] = 0;
    a.attr.attention.scale = 0.125;
    a.in[0] = T(type, e, b, p, h, c), a.in[1] = a.in[2] = T(type, e, s, p, h, c);
    a.out[0] = T(type, e, b, p, h, c), a.out[1] = T(F32, e, b, p, h);
    expect_planned(KERNEL_attention_along, &a);
    a.n_in = 6, a.n_out = 3;
    for (int i = 0; i < 3; i++) a.number[i] = (double)draw(2);
    a.in[3] = a.in[5] = T(type, e, b, p, h, c), a.in[4] = T(F32, e, b, p, h);
    a.out[0] = T(type, e, b, p, h, c), a.out[1] = a.out[2] = T(type, e, s, p, h, c);
    expect_planned(KERNEL_attention_along_dx, &a);
}

/* A kernel may refuse a size for which a block has too little shared memory, by an error that says
 * so. */
static void all_kernels(int capability)
{
    void *at;
    shim_set_capability(capability);
    DO(cuda->runtime->open(0, &context));
    DO(cuda->runtime->alloc(context, BYTES, &at));
    memory = at;
    DO(cuda->runtime->alloc(context, BYTES, &at));
    scratch = at;
    for (int i = 0; i < ROUNDS; i++) {
        const DType type = i % 3 ? BF16 : F32;
        cuda->runtime->deterministic(context, i % 2);
        norms(type);
        losses(type);
        sorts();
        experts();
        clips(type);
        gemms(type);
        attention(type);
        along(type);
        others(type);
        grouped(type);
    }
    cuda->runtime->free(context, memory);
    cuda->runtime->free(context, scratch);
    cuda->runtime->close(context);
}

static void on_sm_90(void **state)
{
    (void)state;
    all_kernels(90);
}

static void on_sm_80(void **state)
{
    (void)state;
    all_kernels(80);
}

static void on_sm_86(void **state)
{
    (void)state;
    all_kernels(86);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_sm_90),
        cmocka_unit_test(on_sm_80),
        cmocka_unit_test(on_sm_86),
    };
    random_of = random_named(17, "kernels");
    if (device_open("cuda", argc > 1 ? argv[1] : NULL, &cuda) != OK) {
        fprintf(stderr, "%s\n", err_text());
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
