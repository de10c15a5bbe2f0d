/* peer_errors.c -- runs bf16 kernels at the sizes of a model and writes inputs and results to
 * files, for peer_errors.py, which runs the same in PyTorch and compares the errors.
 *
 *     tests/cuda/run.sh tests/cuda/peer_errors.c
 *     python3 tests/cuda/peer_errors.py build/cuda-tests/peer
 *
 * A file has all tensors of a call, each as a line of text followed by its bytes:
 *
 *     in0 bf16 512 768\n<786432 bytes> */
#define _XOPEN_SOURCE 700
#include "pingpong_test.h"

#include <stdlib.h>
#include <sys/stat.h>

enum { TOKENS = 512, WIDTH = 768, INNER = 1024, HEADS = 12, CHANNELS = 64, VOCAB = 1000 };

static void save_tensor(FILE *f, char side, int i, const Tensor *t)
{
    fprintf(f, "%s%d %s", side == 'i' ? "in" : "out", i, dtype_name(t->dtype));
    for (int d = 0; d < t->ndim; d++) fprintf(f, " %lld", (long long)t->n[d]);
    fputc('\n', f);
    fwrite(t->data, dtype_bytes(t->dtype), (size_t)tensor_count(t), f);
}

/* Runs the call and saves its inputs and outputs; further calls may use the same tensors. */
static void save_call(const char *name, KernelId id, const Call *call)
{
    const char *folder = getenv("SHEAF_PEER") ? getenv("SHEAF_PEER") : "build/cuda-tests/peer";
    char path[512];
    run_on_gpu(id, call, gpu.b.arena.base, gpu.b.arena.base);
    (void)mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/%s.call", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("%s: cannot be written", path);
    for (int i = 0; i < call->n_in; i++) save_tensor(f, 'i', i, &call->in[i]);
    for (int i = 0; i < call->n_out; i++) save_tensor(f, 'o', i, &call->out[i]);
    if (fclose(f) != 0) fail_msg("%s: writing failed", path);
}

static Tensor value(int64_t rows, int64_t columns)
{
    return RANDOM(&gpu.b, BF16, DENSE, rows, columns);
}

static Tensor result(DType type, int64_t rows, int64_t columns)
{
    return NEW(&gpu.b, type, DENSE, rows, columns);
}

static Tensor vector(DType type, int64_t n) { return NEW(&gpu.b, type, DENSE, n); }

typedef struct {
    Tensor x, w, bias, dy, u;
} EpilogueInputs;

/* By cuBLASLt, then by the ping-pong kernel if the GPU supports it. */
static void gemms_with_epilogue(const EpilogueInputs *b)
{
    const Attr plain = {.gemm = {false, false}}, wide = {.gemm = {false, true}};
    const Tensor c[] = {result(BF16, TOKENS, WIDTH), result(BF16, TOKENS, WIDTH)};
    const Tensor h[] = {result(BF16, TOKENS, INNER), result(BF16, TOKENS, INNER)};
    const Call gelu = {
        .in = {b->x, b->w, b->bias}, .n_in = 3, .out = {h[0], h[1]}, .n_out = 2, .attr = wide};
    const Call dgelu = {
        .in = {b->dy, b->w, b->u}, .n_in = 3, .out = {c[0]}, .n_out = 1, .attr = plain};
    const Call dswiglu = {
        .in = {b->dy, b->w, b->u, b->x}, .n_in = 4, .out = {c[0], c[1]}, .n_out = 2, .attr = plain};
    save_call("linear_gelu", KERNEL_gemm_gelu, &gelu);
    save_call("linear_dgelu", KERNEL_gemm_dgelu, &dgelu);
    save_call("linear_dswiglu", KERNEL_gemm_dswiglu, &dswiglu);
    if (!has_pingpong()) return;
    gpu.m->deterministic(gpu.context, false); /* deterministic mode never fuses a gelu */
    force_pingpong();
    save_call("linear_gelu_pingpong", KERNEL_gemm_gelu, &gelu);
    save_call("linear_dgelu_pingpong", KERNEL_gemm_dgelu, &dgelu);
    save_call("linear_dswiglu_pingpong", KERNEL_gemm_dswiglu, &dswiglu);
    gpu.m->deterministic(gpu.context, true);
}

static void gemms(void **state)
{
    const Tensor x = value(TOKENS, WIDTH), w = value(INNER, WIDTH), dy = value(TOKENS, INNER);
    const Tensor bias = RANDOM(&gpu.b, BF16, DENSE, INNER), u = value(TOKENS, WIDTH);
    const Tensor addend = value(TOKENS, INNER), h = result(BF16, TOKENS, INNER);
    const Attr plain = {.gemm = {false, false}}, wide = {.gemm = {false, true}};
    (void)state;
    save_call("linear", KERNEL_gemm,
              &(Call){.in = {x, w, bias}, .n_in = 3, .out = {h}, .n_out = 1, .attr = wide});
    save_call("linear_dx", KERNEL_gemm,
              &(Call){.in = {dy, w},
                      .n_in = 2,
                      .out = {result(BF16, TOKENS, WIDTH)},
                      .n_out = 1,
                      .attr = plain});
    save_call("linear_dw", KERNEL_gemm,
              &(Call){.in = {dy, x},
                      .n_in = 2,
                      .out = {result(F32, INNER, WIDTH)},
                      .n_out = 1,
                      .attr = {.gemm = {true, false}}});
    save_call("linear_add", KERNEL_gemm_add,
              &(Call){.in = {x, w, addend, bias},
                      .n_in = 4,
                      .out = {result(BF16, TOKENS, INNER)},
                      .n_out = 1,
                      .attr = wide});
    gemms_with_epilogue(&(EpilogueInputs){x, w, bias, dy, u});
    save_call("bias_dw", KERNEL_sum_rows,
              &(Call){.in = {dy}, .n_in = 1, .out = {vector(F32, INNER)}, .n_out = 1});
    bench_clear(&gpu.b);
}

static void norms(void **state)
{
    const Tensor x = value(TOKENS, WIDTH), dy = value(TOKENS, WIDTH);
    const Tensor w = RANDOM(&gpu.b, BF16, DENSE, WIDTH), b = RANDOM(&gpu.b, BF16, DENSE, WIDTH);
    const Tensor y = result(BF16, TOKENS, WIDTH), dx = result(BF16, TOKENS, WIDTH);
    const Tensor mean = vector(F32, TOKENS), rstd = vector(F32, TOKENS);
    const Tensor dw = vector(F32, WIDTH), db = vector(F32, WIDTH);
    const Attr attr = {.norm = {1e-5}};
    (void)state;
    save_call(
        "layernorm", KERNEL_layernorm,
        &(Call){.in = {x, w, b}, .n_in = 3, .out = {y, mean, rstd}, .n_out = 3, .attr = attr});
    save_call("layernorm_back", KERNEL_layernorm_back,
              &(Call){.in = {dy, x, w, mean, rstd},
                      .n_in = 5,
                      .out = {dx, dw, db},
                      .n_out = 3,
                      .attr = attr});
    save_call("rmsnorm", KERNEL_rmsnorm,
              &(Call){.in = {x, w}, .n_in = 2, .out = {y, rstd}, .n_out = 2, .attr = attr});
    save_call(
        "rmsnorm_back", KERNEL_rmsnorm_back,
        &(Call){.in = {dy, x, w, rstd}, .n_in = 4, .out = {dx, dw}, .n_out = 2, .attr = attr});
    bench_clear(&gpu.b);
}

static void pointwise(void **state)
{
    const Tensor x = value(TOKENS, WIDTH), up = value(TOKENS, WIDTH), dy = value(TOKENS, WIDTH);
    const Tensor y = result(BF16, TOKENS, WIDTH), z = result(BF16, TOKENS, WIDTH);
    (void)state;
    save_call("gelu", KERNEL_gelu, &(Call){.in = {x}, .n_in = 1, .out = {y}, .n_out = 1});
    save_call("gelu_dx", KERNEL_gelu_dx, &(Call){.in = {dy, x}, .n_in = 2, .out = {y}, .n_out = 1});
    save_call("swiglu", KERNEL_swiglu, &(Call){.in = {x, up}, .n_in = 2, .out = {y}, .n_out = 1});
    save_call("swiglu_dx", KERNEL_swiglu_dx,
              &(Call){.in = {dy, x, up}, .n_in = 3, .out = {y, z}, .n_out = 2});
    bench_clear(&gpu.b);
}

static void losses(void **state)
{
    const Tensor logits = value(TOKENS, VOCAB), targets = vector(I32, TOKENS);
    const Tensor weights = vector(F32, TOKENS), ids = targets, dy = value(TOKENS, WIDTH);
    (void)state;
    for (int i = 0; i < TOKENS; i++) {
        ((int32_t *)targets.data)[i] = i * i % VOCAB; /* some ids repeat often */
        ((float *)weights.data)[i] = 1;
    }
    save_call("token_loss_dx", KERNEL_token_loss_dx,
              &(Call){.in = {logits, targets, weights},
                      .n_in = 3,
                      .out = {result(BF16, TOKENS, VOCAB), vector(F32, 1)},
                      .n_out = 2});
    save_call("embedding_dw", KERNEL_embedding_dw,
              &(Call){.in = {dy, ids}, .n_in = 2, .out = {result(F32, VOCAB, WIDTH)}, .n_out = 1});
    bench_clear(&gpu.b);
}

static Tensor heads(bool made)
{
    return made ? NEW(&gpu.b, BF16, DENSE, TOKENS, HEADS, CHANNELS)
                : RANDOM(&gpu.b, BF16, DENSE, TOKENS, HEADS, CHANNELS);
}

/* Causal attention, once promised to be causal, by cuDNN, and once by our own kernel. */
static void attentions(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++) {
        const Tensor q = heads(false), k = heads(false), v = heads(false), dout = heads(false);
        const Tensor o = heads(true), lse = NEW(&gpu.b, F32, DENSE, TOKENS, HEADS);
        const Tensor ranges = NEW(&gpu.b, I32, DENSE, TOKENS, 4);
        const Attr attr = {.attention = {.scale = 0.125, .causal = own ? 0 : TOKENS}};
        for (int i = 0; i < TOKENS; i++)
            memcpy((int32_t *)ranges.data + 4 * i, (int32_t[]){0, i + 1, 0, 0}, 16);
        save_call(
            own ? "attention_own" : "attention", KERNEL_attention,
            &(Call){.in = {q, k, v, ranges}, .n_in = 4, .out = {o, lse}, .n_out = 2, .attr = attr});
        save_call(own ? "attention_own_dx" : "attention_dx", KERNEL_attention_dx,
                  &(Call){.in = {q, k, v, ranges, dout, lse, o},
                          .n_in = 7,
                          .out = {heads(true), heads(true), heads(true)},
                          .n_out = 3,
                          .attr = attr});
        bench_clear(&gpu.b);
    }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(gemms), cmocka_unit_test(norms),
                                          cmocka_unit_test(pointwise), cmocka_unit_test(losses),
                                          cmocka_unit_test(attentions)};

GPU_MAIN(tests)
