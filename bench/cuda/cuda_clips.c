/* cuda_clips.c -- kernels for clips on a GPU, with their floors: attention along one dim
 * of the tokens, and rows by the vectors of their clip.
 *
 *     build/release/bench/cuda_clips [sheaf-cuda.so]
 *
 * Shapes of stdit-720m and stdit-3b: within frames of 1024 places and along the frames of a place,
 * alone and with 0.5M tokens over 8 ranks; within rows and columns of 32 (model.attention_dims=3);
 * and short sequences of other lengths. q, k and v are parts of one tensor, the output of one GEMM.
 *
 * The floor is the larger of two times: bytes of all operands at 4.3 TB/s, a copy on an H200; and
 * 4 tokens keys channels operations, backward 2.5 times as many, at 800 TFLOP/s, a large bf16 GEMM
 * on an H200. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "device/registry.h"
#include "support/kernels.h"

#ifndef BENCH_CUDA_OBJECT
#define BENCH_CUDA_OBJECT NULL /* next to this program */
#endif

/* Groups of `length` tokens at `places` places each; heads of c channels. */
typedef struct {
    const char *name;
    int64_t groups, length, places, heads, c;
} Shape;

static const Shape shapes[] = {
    {"720m temporal, 51 frames", 1, 51, 1024, 16, 72},
    {"720m spatial, 51 frames", 51, 1024, 1, 16, 72},
    {"3b temporal, 51 frames", 1, 51, 1024, 32, 64},
    {"3b spatial, 51 frames", 51, 1024, 1, 32, 64},
    {"720m rows of 32", 1632, 32, 1, 16, 72},
    {"720m columns of 32", 51, 32, 32, 16, 72},
    {"3b rows of 32", 1632, 32, 1, 32, 64},
    {"3b columns of 32", 51, 32, 32, 32, 64},
    {"720m 0.5M tokens / 8, temporal", 1, 512, 128, 16, 72},
    {"3b 0.5M tokens / 8, temporal", 1, 512, 128, 32, 64},
    {"720m 16 frames, 4 clips", 4, 16, 1024, 16, 72},
    {"720m 64 frames", 1, 64, 1024, 16, 72},
    {"720m 96 frames", 1, 96, 512, 16, 72},
    {"720m 128 frames", 1, 128, 512, 16, 72},
    {"3b 128 frames", 1, 128, 512, 32, 64},
    {"720m 256 frames", 1, 256, 256, 16, 72},
};

/* Rows of `heads` heads that are a part of x[tokens, all heads, c], from head `at` on. */
static Tensor along(const Shape *z, Tensor x, int64_t at, int dims)
{
    const int64_t row = x.n[1] * z->c;
    Tensor t = {.dtype = x.dtype, .ndim = dims, .n = {z->groups, z->length, z->places, z->heads}};
    const int64_t step = dims == 5 ? row : x.n[1];
    t.data = (char *)x.data + (size_t)(at * z->c) * dtype_bytes(x.dtype);
    t.stride[0] = z->length * z->places * step, t.stride[1] = z->places * step, t.stride[2] = step;
    t.stride[3] = dims == 5 ? z->c : 1;
    if (dims == 5) t.n[4] = z->c, t.stride[4] = 1;
    return t;
}

static void say(const Shape *z, const char *what, double s, double bytes, double flops)
{
    const double memory_s = bytes / 4.3e12, math_s = flops / 8e14;
    const double floor_s = memory_s > math_s ? memory_s : math_s;
    printf("  %-32s %-8s %8.3f ms %6.0f GB/s %6.1f TFLOP/s   floor %7.3f ms (%s)  %5.1f%%\n",
           z->name, what, 1e3 * s, 1e-9 * bytes / s, 1e-12 * flops / s, 1e3 * floor_s,
           memory_s > math_s ? "bytes" : "flops", 100 * floor_s / s);
    fflush(stdout);
}

static void bench_shape(Bench *b, const Shape *z)
{
    const int64_t tokens = z->groups * z->length * z->places;
    const Tensor qkv = bench_make(b, BF16, tokens, 3 * z->heads, z->c);
    const Tensor dqkv = bench_make(b, BF16, tokens, 3 * z->heads, z->c);
    const Tensor o = bench_make(b, BF16, tokens, z->heads, z->c);
    const Tensor dout = bench_make(b, BF16, tokens, z->heads, z->c);
    const Tensor lse = bench_make(b, F32, tokens, z->heads, 0);
    const double flops = 4 * (double)tokens * (double)(z->length * z->heads * z->c);
    Call f = {.n_in = 3, .n_out = 2, .attr.attention.scale = 0.125};
    for (int i = 0; i < 3; i++) f.in[i] = along(z, qkv, i * z->heads, 5);
    f.out[0] = along(z, o, 0, 5), f.out[1] = along(z, lse, 0, 4);
    say(z, "forward", bench_time(b, KERNEL_attention_along, &f), bytes_of(&f), flops);
    Call back = {.n_in = 6, .n_out = 3, .attr = f.attr};
    for (int i = 0; i < 3; i++) {
        back.in[i] = f.in[i];
        back.out[i] = along(z, dqkv, i * z->heads, 5);
    }
    back.in[3] = along(z, dout, 0, 5), back.in[4] = f.out[1], back.in[5] = f.out[0];
    say(z, "backward", bench_time(b, KERNEL_attention_along_dx, &back), bytes_of(&back),
        2.5 * flops);
    bench_clear(b);
}

/* Rows of 51 frames of 1024 places by the vectors of their clip. */
static void bench_rows(Bench *b, int64_t width)
{
    const int64_t t = 51 * 1024;
    const Tensor x = bench_make(b, BF16, t, width, 0), y = bench_make(b, BF16, t, width, 0);
    const Tensor dy = bench_make(b, BF16, t, width, 0), clip = bench_ints(b, t, 1, false);
    const Tensor scale = bench_make(b, BF16, 1, width, 0), sum = bench_make(b, F32, 1, width, 0);
    const Tensor mean = bench_make(b, F32, t, 0, 0), rstd = bench_make(b, F32, t, 0, 0);
    const Call call[] = {
        {.in = {x, scale, scale, clip}, .n_in = 4, .out = {y, mean, rstd}, .n_out = 3},
        {.in = {dy, x, scale, clip, mean, rstd}, .n_in = 6, .out = {y}, .n_out = 1},
        {.in = {dy, x, clip, mean, rstd}, .n_in = 5, .out = {sum, sum}, .n_out = 2},
        {.in = {x, scale, clip, dy}, .n_in = 4, .out = {y}, .n_out = 1},
        {.in = {dy, x, clip}, .n_in = 3, .out = {sum}, .n_out = 1}};
    static const KernelId id[] = {KERNEL_modulate, KERNEL_modulate_dx, KERNEL_modulate_dw,
                                  KERNEL_gate_add, KERNEL_gate_add_dw};
    printf("%lld rows of %lld\n", (long long)t, (long long)width);
    for (int i = 0; i < 5; i++)
        say_bytes(kernel_name(id[i]), bench_time(b, id[i], &call[i]), bytes_of(&call[i]));
    bench_clear(b);
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
    bench_open(&b, device, (size_t)8 << 30);
    must(b.m->info(b.context, &info));
    printf("%s\n", info.name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) bench_shape(&b, &shapes[i]);
    bench_rows(&b, 1152);
    bench_rows(&b, 2048);
    bench_close(&b);
    return 0;
}
