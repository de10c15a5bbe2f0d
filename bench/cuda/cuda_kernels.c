/* cuda_kernels.c -- each kernel of the CUDA device at the shapes of two models, compared with its
 * lower bound; norms and sums of rows at the shapes of three more.
 *
 *     build/release/bench/cuda_kernels [sheaf-cuda.so] [measure | bytes | norms]
 *
 * The lower bound is the bytes to move at 4.3 TB/s (a copy on an H200), or the operations at 800
 * TFLOP/s (a large bf16 GEMM on an H200); on other GPUs only the rates are meaningful. `measure`
 * autotunes each GEMM; `bytes` leaves out GEMMs and attention; `norms` runs norms and sums of rows
 * only. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/registry.h"
#include "support/clock.h"
#include "support/kernels.h"

#ifndef BENCH_CUDA_OBJECT
#define BENCH_CUDA_OBJECT NULL /* next to this program */
#endif

typedef struct {
    const char *name;
    int64_t batch, seq, width, heads, key_heads, head, ff, vocab, loss_rows;
    bool llama;
} Model; /* without heads: only norms and sums of rows */

static const Model models[] = {
    {"gpt2-124m B 64 T 1024", 64, 1024, 768, 12, 12, 64, 3072, 50304, 16384, false},
    {"llama3-1b B 8 T 4096", 8, 4096, 2048, 32, 8, 64, 8192, 128256, 8192, true},
    {"gpt2-350m B 32 T 1024", 32, 1024, 1024, .ff = 4096},
    {"gpt2-774m B 32 T 1024", 32, 1024, 1280, .ff = 5120},
    {"gpt2-1558m B 16 T 1024", 16, 1024, 1600, .ff = 6400}};

static void bench_pointwise(Bench *b, const Model *m)
{
    const int64_t t = m->batch * m->seq;
    Call c = {.n_in = 2, .n_out = 1};
    c.in[0] = bench_make(b, BF16, t, m->width, 0);
    c.in[1] = bench_make(b, BF16, t, m->width, 0);
    c.out[0] = bench_make(b, BF16, t, m->width, 0);
    bench_bytes(b, "add", KERNEL_add, &c);
    for (int back = 0; back < 2; back++) {
        const KernelId id = m->llama ? (back ? KERNEL_swiglu_dx : KERNEL_swiglu)
                                     : (back ? KERNEL_gelu_dx : KERNEL_gelu);
        c = (Call){.n_in = (m->llama ? 2 : 1) + back, .n_out = m->llama && back ? 2 : 1};
        for (int i = 0; i < c.n_in; i++) c.in[i] = bench_make(b, BF16, t, m->ff, 0);
        for (int i = 0; i < c.n_out; i++) c.out[i] = bench_make(b, BF16, t, m->ff, 0);
        bench_bytes(b, kernel_name(id), id, &c);
    }
    c = (Call){.n_in = 1, .n_out = 1};
    c.in[0] = bench_make(b, F32, m->vocab, m->width, 0);
    c.out[0] = bench_make(b, BF16, m->vocab, m->width, 0);
    bench_bytes(b, "cast f32 to bf16", KERNEL_cast, &c);
    c.in[0] = bench_make(b, BF16, t, 3 * m->width, 0);
    c.in[0].n[1] = m->width;
    c.out[0] = bench_make(b, BF16, t, m->width, 0);
    bench_bytes(b, "copy of a third of each row", KERNEL_copy, &c);
}

static void bench_norms(Bench *b, const Model *m)
{
    const int64_t t = m->batch * m->seq;
    const bool l = m->llama;
    Call c = {.n_in = l ? 2 : 3, .n_out = l ? 2 : 3, .attr = {.norm = {1e-5}}};
    const Tensor x = bench_make(b, BF16, t, m->width, 0), w = bench_make(b, BF16, m->width, 0, 0);
    const Tensor dy = bench_make(b, BF16, t, m->width, 0), y = bench_make(b, BF16, t, m->width, 0);
    const Tensor mean = bench_make(b, F32, t, 0, 0), rstd = bench_make(b, F32, t, 0, 0);
    const Tensor dw = bench_make(b, F32, m->width, 0, 0), db = bench_make(b, F32, m->width, 0, 0);
    const Tensor addend = bench_make(b, BF16, t, m->width, 0);
    c.in[0] = x, c.in[1] = c.in[2] = w, c.out[0] = y;
    c.out[1] = l ? rstd : mean, c.out[2] = rstd;
    say_bytes(l ? "rmsnorm" : "layernorm", bench_time(b, l ? KERNEL_rmsnorm : KERNEL_layernorm, &c),
              bytes_of(&c));
    c = (Call){.in = {dy, x, w, l ? rstd : mean, rstd}, .n_in = l ? 4 : 5, .out = {y}, .n_out = 1};
    say_bytes(l ? "rmsnorm_dx" : "layernorm_dx",
              bench_time(b, l ? KERNEL_rmsnorm_dx : KERNEL_layernorm_dx, &c), bytes_of(&c));
    c = (Call){.in = {dy, x, l ? rstd : mean, rstd}, .n_in = l ? 3 : 4};
    c.out[0] = dw, c.out[1] = db, c.n_out = l ? 1 : 2, c.number[0] = c.number[1] = 1;
    say_bytes(l ? "rmsnorm_dw" : "layernorm_dw",
              bench_time(b, l ? KERNEL_rmsnorm_dw : KERNEL_layernorm_dw, &c), bytes_of(&c));
    c = (Call){.in = {dy, x, w, l ? rstd : mean, rstd}, .n_in = l ? 4 : 5, .out = {y, dw, db}};
    c.in[c.n_in++] = addend;
    c.n_out = l ? 2 : 3, c.number[1] = c.number[2] = 1;
    say_bytes(l ? "rmsnorm_back, addend" : "layernorm_back, addend",
              bench_time(b, l ? KERNEL_rmsnorm_back : KERNEL_layernorm_back, &c), bytes_of(&c));
    if (!l) {
        c.out[c.n_out++] = bench_make(b, F32, m->width, 0, 0);
        c.number[3] = 1;
        bench_bytes(b, "layernorm_back, addend and its sum", KERNEL_layernorm_back, &c);
    }
    bench_clear(b);
    for (int wide = 0; wide < 2; wide++) {
        const int64_t n = wide ? m->ff : m->width;
        c = (Call){.n_in = 1, .n_out = 1, .number = {1}};
        c.in[0] = bench_make(b, BF16, t, n, 0);
        c.out[0] = bench_make(b, F32, n, 0, 0);
        bench_bytes(b, wide ? "sum_rows, ff" : "sum_rows, width", KERNEL_sum_rows, &c);
    }
}

static void bench_tokens(Bench *b, const Model *m)
{
    const int64_t t = m->batch * m->seq;
    Call c = {.n_in = 2, .n_out = 1};
    c.in[0] = bench_ints(b, t, m->vocab, false);
    c.in[1] = bench_make(b, BF16, m->vocab, m->width, 0);
    c.out[0] = bench_make(b, BF16, t, m->width, 0);
    const double row = (double)t * (double)m->width;
    say_bytes("embedding", bench_time(b, KERNEL_embedding, &c), 4 * row);
    bench_clear(b);
    c = (Call){.n_in = 2, .n_out = 1, .number = {1}};
    c.in[0] = bench_make(b, BF16, t, m->width, 0);
    c.in[1] = bench_ints(b, t, m->vocab, false);
    c.out[0] = bench_make(b, F32, m->vocab, m->width, 0);
    say_bytes("embedding_dw, ids spread", bench_time(b, KERNEL_embedding_dw, &c), 10 * row);
    c.in[1] = bench_ints(b, t, 7, false);
    say_bytes("embedding_dw, 7 ids", bench_time(b, KERNEL_embedding_dw, &c), 2 * row);
    bench_clear(b);
    if (!m->llama) return;
    c = (Call){.n_in = 2, .n_out = 1, .attr = {.rope = {.theta = 5e5}}};
    c.in[0] = bench_make(b, BF16, t, m->heads + 2 * m->key_heads, m->head);
    c.in[1] = bench_ints(b, t, m->seq, true);
    for (int keys = 0; keys < 2; keys++) {
        c.in[0].n[1] = keys ? m->key_heads : m->heads;
        c.out[0] = c.in[0];
        say_bytes(keys ? "rope of keys, in place" : "rope of queries, in place",
                  bench_time(b, KERNEL_rope, &c), bytes_of(&c));
    }
    bench_clear(b);
}

static void bench_loss(Bench *b, const Model *m)
{
    const int64_t t = m->loss_rows;
    Call c = {.n_in = 1, .n_out = 1};
    const Tensor logits = bench_make(b, BF16, t, m->vocab, 0),
                 row_max = bench_make(b, F32, t, 0, 0);
    const Tensor z = bench_make(b, F32, t, 2, 0), weights = bench_make(b, F32, t, 0, 0);
    const Tensor targets = bench_ints(b, t, m->vocab, false), sum = bench_make(b, F32, 1, 0, 0);
    c.in[0] = logits, c.out[0] = row_max;
    say_bytes("row_max", bench_time(b, KERNEL_row_max, &c), bytes_of(&c));
    c = (Call){.in = {logits, row_max, targets}, .n_in = 3, .out = {z}, .n_out = 1};
    say_bytes("row_sums", bench_time(b, KERNEL_row_sums, &c), bytes_of(&c));
    c = (Call){.in = {z, weights}, .n_in = 2, .out = {sum}, .n_out = 1};
    say_bytes("loss", bench_time(b, KERNEL_loss, &c), bytes_of(&c));
    c = (Call){
        .in = {logits, row_max, z, targets, weights}, .n_in = 5, .out = {logits}, .n_out = 1};
    say_bytes("loss_dx, in place", bench_time(b, KERNEL_loss_dx, &c), bytes_of(&c));
    c = (Call){.in = {logits, targets, weights}, .n_in = 3, .out = {logits, sum}, .n_out = 2};
    say_bytes("token_loss_dx, in place", bench_time(b, KERNEL_token_loss_dx, &c), bytes_of(&c));
    c = (Call){.in = {logits, targets, weights}, .n_in = 3, .out = {sum}, .n_out = 1};
    say_bytes("token_loss", bench_time(b, KERNEL_token_loss, &c), bytes_of(&c));
    bench_clear(b);
}

/* y = x w', dx = dy w, dw += dy' x. */
static void bench_gemm(Bench *b, const char *what, int64_t t, int64_t in, int64_t out)
{
    static const char *const part[] = {"y", "dx", "dw, f32, kept"};
    const Tensor x = bench_make(b, BF16, t, in, 0), w = bench_make(b, BF16, out, in, 0);
    const Tensor dy = bench_make(b, BF16, t, out, 0), dw = bench_make(b, F32, out, in, 0);
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
        say_flops(text, bench_time(b, KERNEL_gemm, &one),
                  2.0 * (double)t * (double)in * (double)out);
    }
    bench_clear(b);
}

static void bench_gemms(Bench *b, const Model *m)
{
    const int64_t t = m->batch * m->seq;
    bench_gemm(b, "qkv", t, m->width, (m->heads + 2 * m->key_heads) * m->head);
    bench_gemm(b, "out", t, m->width, m->width);
    bench_gemm(b, "up", t, m->width, m->llama ? 2 * m->ff : m->ff);
    bench_gemm(b, "down", t, m->ff, m->width);
    bench_gemm(b, "head", m->loss_rows, m->width, m->vocab);
}

/* q, k and v are views of one tensor, the output of one GEMM. */
static void bench_attention(Bench *b, const Model *m, bool promise)
{
    const int64_t t = m->batch * m->seq, all = m->heads + 2 * m->key_heads, c = m->head;
    const Tensor qkv = bench_make(b, BF16, t, all, c), dqkv = bench_make(b, BF16, t, all, c);
    Tensor view[2][3];
    for (int i = 0; i < 6; i++) {
        Tensor *v = &view[i / 3][i % 3];
        const int64_t from = i % 3 == 0 ? 0 : m->heads + (i % 3 - 1) * m->key_heads;
        *v = i < 3 ? qkv : dqkv;
        v->data = (uint16_t *)v->data + from * c;
        v->n[1] = i % 3 == 0 ? m->heads : m->key_heads;
    }
    const Tensor ranges = bench_ranges(b, t, m->seq), o = bench_make(b, BF16, t, m->heads, c);
    const Tensor lse = bench_make(b, F32, t, m->heads, 0),
                 dout = bench_make(b, BF16, t, m->heads, c);
    Call f = {.in = {view[0][0], view[0][1], view[0][2], ranges}, .n_in = 4, .n_out = 2};
    f.out[0] = o, f.out[1] = lse;
    f.attr.attention.scale = 0.125;
    f.attr.attention.causal = promise ? m->seq : 0;
    const double flops = 2.0 * (double)t * (double)m->heads * (double)c * (double)(m->seq + 1);
    say_flops(promise ? "attention, causal promised" : "attention, ranges",
              bench_time(b, KERNEL_attention, &f), flops);
    Call back = {.n_in = 7, .n_out = 3, .attr = f.attr};
    for (int i = 0; i < 4; i++) back.in[i] = f.in[i];
    back.in[4] = dout, back.in[5] = lse, back.in[6] = o;
    for (int i = 0; i < 3; i++) back.out[i] = view[1][i];
    say_flops(promise ? "attention_dx, causal promised" : "attention_dx, ranges",
              bench_time(b, KERNEL_attention_dx, &back), 2.5 * flops);
    if (promise) {
        b->m->deterministic(b->context, false);
        say_flops("attention_dx, causal, any order", bench_time(b, KERNEL_attention_dx, &back),
                  2.5 * flops);
        b->m->deterministic(b->context, true);
    }
    bench_clear(b);
}

static void bench_update(Bench *b, const Model *m)
{
    const int64_t n = m->llama ? 1235814400 / 4 : 124475904; /* a quarter of llama's */
    const Tensor g = bench_make(b, F32, n, 0, 0), w = bench_make(b, F32, n, 0, 0),
                 v = bench_make(b, F32, n, 0, 0);
    const Tensor s = bench_make(b, F32, n, 0, 0), half = bench_make(b, BF16, n, 0, 0);
    const Tensor sum = bench_make(b, F32, 64, 0, 0);
    double *cell = sum.data;
    const UpdatePiece piece = {g.data, w.data, v.data, s.data, half.data, n, 0.1, F32, 0, 0};
    const SquaresPiece square = {g.data, n, cell, 0, F32};
    static const struct {
        double mean;
        UpdateRates rates;
    } own = {1, {1e-3, 0.1, 0.05}};
    const DeviceClip clip = {
        .sums = cell, .n = 1, .mean = cell + 3, .max_norm = 1, .out = cell + 1};
    const UpdateNumbers numbers = {0.9, 0.95, 1e-8, (const UpdateRates *)(void *)(cell + 4),
                                   cell + 1};
    DeviceList *list, *squares;
    must(b->m->set(b->q, s.data, 0, (size_t)n * 4)); /* avoids the root of a negative */
    must(b->m->copy(b->q, cell + 3, &own, sizeof own));
    must(b->m->lists->update_open(b->context, &piece, 1, NULL, &list));
    must(b->m->lists->squares_open(b->context, &square, 1, NULL, &squares));
    for (int i = -2; i < BENCH_REPEATS; i++) {
        static double start;
        if (i == 0) must(b->m->sync(b->q)), start = now_s();
        must(b->m->lists->squares_run(b->q, squares));
        must(b->m->lists->clip(b->q, &clip));
        must(b->m->lists->update_run(b->q, list, &numbers));
        if (i < BENCH_REPEATS - 1) continue;
        must(b->m->sync(b->q));
        say_bytes("squares, clip and AdamW lists", (now_s() - start) / BENCH_REPEATS,
                  (double)n * (4 + 16 + 14));
    }
    b->m->lists->list_close(list);
    b->m->lists->list_close(squares);
    bench_clear(b);
}

static void bench_model(Bench *b, const Model *m, const char *how)
{
    printf("%s\n", m->name);
    bench_norms(b, m);
    if (m->heads == 0 || strcmp(how, "norms") == 0) return;
    bench_pointwise(b, m);
    bench_tokens(b, m);
    bench_loss(b, m);
    bench_update(b, m);
    if (strcmp(how, "bytes") == 0) return;
    bench_gemms(b, m);
    bench_attention(b, m, false);
    bench_attention(b, m, true);
}

int main(int argc, char **argv)
{
    Bench b;
    const Device *device;
    DeviceInfo info;
    device_cuda_search(getenv("PATH"));
    if (device_open("cuda", argc > 1 ? argv[1] : BENCH_CUDA_OBJECT, &device) != OK) {
        printf("SKIPPED, nothing was measured: %s\n", err_text());
        return 0;
    }
    bench_open(&b, device, (size_t)24 << 30);
    must(b.m->info(b.context, &info));
    const char *how = argc > 2 ? argv[2] : "";
    b.measures = strcmp(how, "measure") == 0;
    printf("%s\n", info.name);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) bench_model(&b, &models[i], how);
    bench_close(&b);
    return 0;
}
