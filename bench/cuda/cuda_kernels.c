/* cuda_kernels.c -- each kernel of the CUDA device at the shapes of two models, beside the floor.
 *
 *     build/release/bench/cuda_kernels [sheaf-cuda.so] [measure | bytes]
 *
 * The floor is bytes that must move at 4.3 TB/s (what a copy reaches on an H200), or operations at
 * 800 TFLOP/s (a large product in bf16 there); for other cards read the rates alone. `measure`
 * takes the fastest of cuBLASLt's candidates for each product; `bytes` leaves products and attention
 * out. Values are random: zeros run faster.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/memory.h"
#include "device/open.h"

#ifndef BENCH_CUDA_OBJECT
#define BENCH_CUDA_OBJECT NULL /* beside this program */
#endif

enum { BLOCK = 1 << 24, REPEATS = 20 };

static const double copy_Bps = 4.3e12, bf16_flops = 8.0e14;

typedef struct {
    const char *name;
    int64_t batch, seq, width, heads, key_heads, head, ff, vocab, loss_rows;
    bool llama;
} Model;

static const Model models[] = {
    {"gpt2-124m B 64 T 1024", 64, 1024, 768, 12, 12, 64, 3072, 50304, 16384, false},
    {"llama3-1b B 8 T 4096", 8, 4096, 2048, 32, 8, 64, 8192, 128256, 8192, true}};

typedef struct {
    const Device *device;
    const DeviceMemory *m;
    DeviceContext *context;
    DeviceQueue *q;
    char *base; /* one allocation: tensors are pushed and forgotten */
    size_t bytes, used;
    uint16_t *random_bf16; /* BLOCK of each, behind the tensors */
    float *random_f32;
} Bench;

static void must(Err err)
{
    if (err == OK) return;
    fprintf(stderr, "cuda_kernels: %s\n", err_text());
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Uniform in (-1, 1), once as bf16 and once as f32; tensors are filled by copies of it. */
static void make_random(Bench *b)
{
    uint64_t seed = 42;
    uint16_t *half = malloc(BLOCK * sizeof *half);
    float *whole = malloc(BLOCK * sizeof *whole);
    if (!half || !whole) exit(1);
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        whole[i] = (float)(int32_t)(seed >> 32) / 2147483648.0f;
        memcpy(&bits, &whole[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
    }
    b->random_f32 = (float *)(b->base + b->bytes);
    b->random_bf16 = (uint16_t *)(b->random_f32 + BLOCK);
    must(b->m->copy(b->q, b->random_f32, whole, BLOCK * sizeof *whole));
    must(b->m->copy(b->q, b->random_bf16, half, BLOCK * sizeof *half));
    must(b->m->sync(b->q));
    free(half);
    free(whole);
}

static Tensor make(Bench *b, DType type, int64_t n0, int64_t n1, int64_t n2)
{
    Tensor t = {.dtype = type, .ndim = n2 ? 3 : n1 ? 2 : 1, .n = {n0, n1, n2}};
    t.stride[t.ndim - 1] = 1;
    for (int d = t.ndim - 2; d >= 0; d--) t.stride[d] = t.stride[d + 1] * t.n[d + 1];
    const size_t bytes = (size_t)tensor_count(&t) * dtype_bytes(type);
    t.data = b->base + b->used;
    b->used += (bytes + 255) / 256 * 256;
    if (b->used > b->bytes) must(err_fail(ERR_NOMEM, "the bench needs %zu bytes", b->used));
    const void *from = type == BF16 ? (const void *)b->random_bf16 : b->random_f32;
    const size_t block = BLOCK * dtype_bytes(type == BF16 ? BF16 : F32);
    for (size_t at = 0; at < bytes && type != I32; at += block)
        must(b->m->copy(b->q, (char *)t.data + at, from, bytes - at < block ? bytes - at : block));
    return t;
}

static Tensor make_ints(Bench *b, int64_t n, int64_t below, bool positions)
{
    const Tensor t = make(b, I32, n, 0, 0);
    int32_t *host = malloc((size_t)n * sizeof *host);
    if (!host) exit(1);
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)(positions ? i % below : (int64_t)((uint64_t)i * 2654435761u) % below);
    must(b->m->copy(b->q, t.data, host, (size_t)n * sizeof *host));
    must(b->m->sync(b->q));
    free(host);
    return t;
}

/* Row t sees the keys of its sequence up to itself. */
static Tensor make_ranges(Bench *b, int64_t n, int64_t seq)
{
    const Tensor t = make(b, I32, n, 4, 0);
    int32_t *host = calloc((size_t)n * 4, sizeof *host);
    if (!host) exit(1);
    for (int64_t i = 0; i < n; i++) {
        host[4 * i] = (int32_t)(i - i % seq);
        host[4 * i + 1] = (int32_t)(i + 1);
    }
    must(b->m->copy(b->q, t.data, host, (size_t)n * 4 * sizeof *host));
    must(b->m->sync(b->q));
    free(host);
    return t;
}

/* Seconds of one call, in a row of them. */
static double time_call(Bench *b, KernelId id, const Call *call)
{
    Call c = *call;
    c.queue = b->q;
    for (int i = 0; i < 2; i++) must(b->device->kernel[id](&c));
    must(b->m->sync(b->q));
    const double start = now_s();
    for (int i = 0; i < REPEATS; i++) must(b->device->kernel[id](&c));
    must(b->m->sync(b->q));
    return (now_s() - start) / REPEATS;
}

static void say_bytes(const char *what, double s, double bytes)
{
    printf("  %-34s %9.3f ms  %7.0f GB/s  %5.1f%% of the floor\n", what, 1e3 * s, 1e-9 * bytes / s,
           100 * bytes / copy_Bps / s);
    fflush(stdout);
}

static void say_flops(const char *what, double s, double flops)
{
    printf("  %-34s %9.3f ms  %7.1f TFLOP/s %4.1f%% of the floor\n", what, 1e3 * s,
           1e-12 * flops / s, 100 * flops / bf16_flops / s);
    fflush(stdout);
}

/* Bytes of all tensors of a call, each once; an accumulator that is kept twice. */
static double bytes_of(const Call *c)
{
    double bytes = 0;
    for (int i = 0; i < c->n_in; i++)
        bytes += (double)tensor_count(&c->in[i]) * (double)dtype_bytes(c->in[i].dtype);
    for (int i = 0; i < c->n_out; i++)
        bytes += (double)tensor_count(&c->out[i]) * (double)dtype_bytes(c->out[i].dtype);
    return bytes;
}

static void bench_bytes(Bench *b, const char *what, KernelId id, const Call *c, double more)
{
    say_bytes(what, time_call(b, id, c), bytes_of(c) + more);
    b->used = 0;
}

static void bench_pointwise(Bench *b, const Model *m)
{
    const int64_t t = m->batch * m->seq;
    Call c = {.n_in = 2, .n_out = 1};
    c.in[0] = make(b, BF16, t, m->width, 0);
    c.in[1] = make(b, BF16, t, m->width, 0);
    c.out[0] = make(b, BF16, t, m->width, 0);
    bench_bytes(b, "add", KERNEL_add, &c, 0);
    for (int back = 0; back < 2; back++) {
        const KernelId id = m->llama ? (back ? KERNEL_swiglu_dx : KERNEL_swiglu)
                                     : (back ? KERNEL_gelu_dx : KERNEL_gelu);
        c = (Call){.n_in = (m->llama ? 2 : 1) + back, .n_out = m->llama && back ? 2 : 1};
        for (int i = 0; i < c.n_in; i++) c.in[i] = make(b, BF16, t, m->ff, 0);
        for (int i = 0; i < c.n_out; i++) c.out[i] = make(b, BF16, t, m->ff, 0);
        bench_bytes(b, kernel_name(id), id, &c, 0);
    }
    c = (Call){.n_in = 1, .n_out = 1};
    c.in[0] = make(b, F32, m->vocab, m->width, 0);
    c.out[0] = make(b, BF16, m->vocab, m->width, 0);
    bench_bytes(b, "cast f32 to bf16", KERNEL_cast, &c, 0);
    c.in[0] = make(b, BF16, t, 3 * m->width, 0);
    c.in[0].n[1] = m->width;
    c.out[0] = make(b, BF16, t, m->width, 0);
    bench_bytes(b, "copy of a third of each row", KERNEL_copy, &c, 0);
}

static void bench_norms(Bench *b, const Model *m)
{
    const int64_t t = m->batch * m->seq;
    const bool l = m->llama;
    Call c = {.n_in = l ? 2 : 3, .n_out = l ? 2 : 3, .attr = {.norm = {1e-5}}};
    const Tensor x = make(b, BF16, t, m->width, 0), w = make(b, BF16, m->width, 0, 0);
    const Tensor dy = make(b, BF16, t, m->width, 0), y = make(b, BF16, t, m->width, 0);
    const Tensor mean = make(b, F32, t, 0, 0), rstd = make(b, F32, t, 0, 0);
    const Tensor dw = make(b, F32, m->width, 0, 0), db = make(b, F32, m->width, 0, 0);
    const Tensor onto = make(b, BF16, t, m->width, 0);
    c.in[0] = x, c.in[1] = c.in[2] = w, c.out[0] = y;
    c.out[1] = l ? rstd : mean, c.out[2] = rstd;
    say_bytes(l ? "rmsnorm" : "layernorm", time_call(b, l ? KERNEL_rmsnorm : KERNEL_layernorm, &c),
              bytes_of(&c));
    c = (Call){.in = {dy, x, w, l ? rstd : mean, rstd}, .n_in = l ? 4 : 5, .out = {y}, .n_out = 1};
    say_bytes(l ? "rmsnorm_dx" : "layernorm_dx",
              time_call(b, l ? KERNEL_rmsnorm_dx : KERNEL_layernorm_dx, &c), bytes_of(&c));
    c = (Call){.in = {dy, x, l ? rstd : mean, rstd}, .n_in = l ? 3 : 4};
    c.out[0] = dw, c.out[1] = db, c.n_out = l ? 1 : 2, c.number[0] = c.number[1] = 1;
    say_bytes(l ? "rmsnorm_dw" : "layernorm_dw",
              time_call(b, l ? KERNEL_rmsnorm_dw : KERNEL_layernorm_dw, &c), bytes_of(&c));
    c = (Call){.in = {dy, x, w, l ? rstd : mean, rstd}, .n_in = l ? 4 : 5, .out = {y, dw, db}};
    c.in[c.n_in++] = onto;
    c.n_out = l ? 2 : 3, c.number[1] = c.number[2] = 1;
    say_bytes(l ? "rmsnorm_back, onto" : "layernorm_back, onto",
              time_call(b, l ? KERNEL_rmsnorm_back : KERNEL_layernorm_back, &c), bytes_of(&c));
    b->used = 0;
    for (int wide = 0; wide < 2; wide++) {
        const int64_t n = wide ? m->ff : m->width;
        c = (Call){.n_in = 1, .n_out = 1, .number = {1}};
        c.in[0] = make(b, BF16, t, n, 0);
        c.out[0] = make(b, F32, n, 0, 0);
        bench_bytes(b, wide ? "sum_rows, ff" : "sum_rows, width", KERNEL_sum_rows, &c, 0);
    }
}

static void bench_tokens(Bench *b, const Model *m)
{
    const int64_t t = m->batch * m->seq;
    Call c = {.n_in = 2, .n_out = 1};
    c.in[0] = make_ints(b, t, m->vocab, false);
    c.in[1] = make(b, BF16, m->vocab, m->width, 0);
    c.out[0] = make(b, BF16, t, m->width, 0);
    const double row = (double)t * (double)m->width;
    say_bytes("embedding", time_call(b, KERNEL_embedding, &c), 4 * row);
    b->used = 0;
    c = (Call){.n_in = 2, .n_out = 1, .number = {1}};
    c.in[0] = make(b, BF16, t, m->width, 0);
    c.in[1] = make_ints(b, t, m->vocab, false);
    c.out[0] = make(b, F32, m->vocab, m->width, 0);
    say_bytes("embedding_dw, ids spread", time_call(b, KERNEL_embedding_dw, &c), 10 * row);
    c.in[1] = make_ints(b, t, 7, false);
    say_bytes("embedding_dw, 7 ids", time_call(b, KERNEL_embedding_dw, &c), 2 * row);
    b->used = 0;
    if (!m->llama) return;
    c = (Call){.n_in = 2, .n_out = 1, .attr = {.rope = {.theta = 5e5}}};
    c.in[0] = make(b, BF16, t, m->heads + 2 * m->key_heads, m->head);
    c.in[1] = make_ints(b, t, m->seq, true);
    for (int keys = 0; keys < 2; keys++) {
        c.in[0].n[1] = keys ? m->key_heads : m->heads;
        c.out[0] = c.in[0];
        say_bytes(keys ? "rope of keys, in place" : "rope of queries, in place",
                  time_call(b, KERNEL_rope, &c), bytes_of(&c));
    }
    b->used = 0;
}

static void bench_loss(Bench *b, const Model *m)
{
    const int64_t t = m->loss_rows;
    Call c = {.n_in = 1, .n_out = 1};
    const Tensor logits = make(b, BF16, t, m->vocab, 0), most = make(b, F32, t, 0, 0);
    const Tensor z = make(b, F32, t, 2, 0), weights = make(b, F32, t, 0, 0);
    const Tensor targets = make_ints(b, t, m->vocab, false), sum = make(b, F32, 1, 0, 0);
    c.in[0] = logits, c.out[0] = most;
    say_bytes("row_max", time_call(b, KERNEL_row_max, &c), bytes_of(&c));
    c = (Call){.in = {logits, most, targets}, .n_in = 3, .out = {z}, .n_out = 1};
    say_bytes("row_sums", time_call(b, KERNEL_row_sums, &c), bytes_of(&c));
    c = (Call){.in = {z, weights}, .n_in = 2, .out = {sum}, .n_out = 1};
    say_bytes("loss", time_call(b, KERNEL_loss, &c), bytes_of(&c));
    c = (Call){.in = {logits, most, z, targets, weights}, .n_in = 5, .out = {logits}, .n_out = 1};
    say_bytes("loss_dx, in place", time_call(b, KERNEL_loss_dx, &c), bytes_of(&c));
    c = (Call){.in = {logits, targets, weights}, .n_in = 3, .out = {logits, sum}, .n_out = 2};
    say_bytes("token_loss_dx, in place", time_call(b, KERNEL_token_loss_dx, &c), bytes_of(&c));
    c = (Call){.in = {logits, targets, weights}, .n_in = 3, .out = {sum}, .n_out = 1};
    say_bytes("token_loss", time_call(b, KERNEL_token_loss, &c), bytes_of(&c));
    b->used = 0;
}

/* y = x w', dx = dy w, dw += dy' x. */
static void bench_product(Bench *b, const char *what, int64_t t, int64_t in, int64_t out)
{
    static const char *const part[] = {"y", "dx", "dw, f32, kept"};
    const Tensor x = make(b, BF16, t, in, 0), w = make(b, BF16, out, in, 0);
    const Tensor dy = make(b, BF16, t, out, 0), dw = make(b, F32, out, in, 0);
    const Call c[3] = {
        {.in = {x, w}, .out = {dy}, .attr = {.gemm = {false, true}}},
        {.in = {dy, w}, .out = {x}},
        {.in = {dy, x}, .out = {dw}, .attr = {.gemm = {true, false}}, .number = {1}}};
    for (int i = 0; i < 3; i++) {
        char text[64];
        Call one = c[i];
        one.n_in = 2, one.n_out = 1;
        snprintf(text, sizeof text, "%s %lldx%lld %s", what, (long long)in, (long long)out,
                 part[i]);
        say_flops(text, time_call(b, KERNEL_gemm, &one),
                  2.0 * (double)t * (double)in * (double)out);
    }
    b->used = 0;
}

static void bench_products(Bench *b, const Model *m)
{
    const int64_t t = m->batch * m->seq;
    bench_product(b, "qkv", t, m->width, (m->heads + 2 * m->key_heads) * m->head);
    bench_product(b, "out", t, m->width, m->width);
    bench_product(b, "up", t, m->width, m->llama ? 2 * m->ff : m->ff);
    bench_product(b, "down", t, m->ff, m->width);
    bench_product(b, "head", m->loss_rows, m->width, m->vocab);
}

/* q, k and v are views of one tensor, as a product leaves them. */
static void bench_attention(Bench *b, const Model *m, bool promise)
{
    const int64_t t = m->batch * m->seq, all = m->heads + 2 * m->key_heads, c = m->head;
    const Tensor qkv = make(b, BF16, t, all, c), dqkv = make(b, BF16, t, all, c);
    Tensor view[2][3];
    for (int i = 0; i < 6; i++) {
        Tensor *v = &view[i / 3][i % 3];
        const int64_t from = i % 3 == 0 ? 0 : m->heads + (i % 3 - 1) * m->key_heads;
        *v = i < 3 ? qkv : dqkv;
        v->data = (uint16_t *)v->data + from * c;
        v->n[1] = i % 3 == 0 ? m->heads : m->key_heads;
    }
    const Tensor ranges = make_ranges(b, t, m->seq), o = make(b, BF16, t, m->heads, c);
    const Tensor lse = make(b, F32, t, m->heads, 0), dout = make(b, BF16, t, m->heads, c);
    Call f = {.in = {view[0][0], view[0][1], view[0][2], ranges}, .n_in = 4, .n_out = 2};
    f.out[0] = o, f.out[1] = lse;
    f.attr.attention.scale = 0.125;
    f.attr.attention.causal = promise ? m->seq : 0;
    const double flops = 2.0 * (double)t * (double)m->heads * (double)c * (double)(m->seq + 1);
    say_flops(promise ? "attention, causal promised" : "attention, ranges",
              time_call(b, KERNEL_attention, &f), flops);
    Call back = {.n_in = 7, .n_out = 3, .attr = f.attr};
    for (int i = 0; i < 4; i++) back.in[i] = f.in[i];
    back.in[4] = dout, back.in[5] = lse, back.in[6] = o;
    for (int i = 0; i < 3; i++) back.out[i] = view[1][i];
    say_flops(promise ? "attention_dx, causal promised" : "attention_dx, ranges",
              time_call(b, KERNEL_attention_dx, &back), 2.5 * flops);
    if (promise) {
        b->m->deterministic(b->context, false);
        say_flops("attention_dx, causal, any order", time_call(b, KERNEL_attention_dx, &back),
                  2.5 * flops);
        b->m->deterministic(b->context, true);
    }
    b->used = 0;
}

static void bench_update(Bench *b, const Model *m)
{
    const int64_t n = m->llama ? 1235814400 / 4 : 124475904; /* a quarter of llama's */
    const Tensor g = make(b, F32, n, 0, 0), w = make(b, F32, n, 0, 0), v = make(b, F32, n, 0, 0);
    const Tensor s = make(b, F32, n, 0, 0), half = make(b, BF16, n, 0, 0);
    const Tensor sum = make(b, F32, 64, 0, 0);
    double *cell = sum.data;
    const UpdatePiece piece = {g.data, w.data, v.data, s.data, half.data, n, 0.1, F32};
    const SquaresPiece square = {g.data, n, cell, 0, F32};
    const DeviceClip clip = {.sums = cell, .n = 1, .mean = 1, .max_norm = 1, .out = cell + 1};
    const UpdateNumbers numbers = {1e-3, 0.9, 0.95, 1e-8, 0.1, 0.05, cell + 1};
    DeviceList *list, *squares;
    must(b->m->set(b->q, s.data, 0, (size_t)n * 4)); /* no root of a negative */
    must(b->m->update_open(b->context, &piece, 1, &list));
    must(b->m->squares_open(b->context, &square, 1, &squares));
    for (int i = -2; i < REPEATS; i++) {
        static double start;
        if (i == 0) must(b->m->sync(b->q)), start = now_s();
        must(b->m->squares_run(b->q, squares));
        must(b->m->clip(b->q, &clip));
        must(b->m->update_run(b->q, list, &numbers));
        if (i < REPEATS - 1) continue;
        must(b->m->sync(b->q));
        say_bytes("squares, clip and AdamW lists", (now_s() - start) / REPEATS,
                  (double)n * (4 + 16 + 14));
    }
    b->m->list_close(list);
    b->m->list_close(squares);
    b->used = 0;
}

int main(int argc, char **argv)
{
    Bench b = {.bytes = (size_t)24 << 30};
    DeviceInfo info;
    if (device_cuda_open(argc > 1 ? argv[1] : BENCH_CUDA_OBJECT, &b.device) != OK) {
        printf("SKIPPED, nothing was measured: %s\n", err_text());
        return 0;
    }
    b.m = b.device->memory;
    must(b.m->open(0, &b.context));
    b.q = b.m->queue(b.context, LANE_COMPUTE);
    must(b.m->info(b.context, &info));
    must(b.m->alloc(b.context, b.bytes + (size_t)BLOCK * 6, (void **)&b.base));
    const char *how = argc > 2 ? argv[2] : "";
    b.m->choices_measure(b.context, strcmp(how, "measure") == 0);
    make_random(&b);
    printf("%s\n", info.name);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        printf("%s\n", models[i].name);
        bench_pointwise(&b, &models[i]);
        bench_norms(&b, &models[i]);
        bench_tokens(&b, &models[i]);
        bench_loss(&b, &models[i]);
        bench_update(&b, &models[i]);
        if (strcmp(how, "bytes") == 0) continue;
        bench_products(&b, &models[i]);
        bench_attention(&b, &models[i], false);
        bench_attention(&b, &models[i], true);
    }
    b.m->free(b.context, b.base);
    b.m->close(b.context);
    return 0;
}
