/* FP8 on the GPU: amax, codes and scales have the bits of ref; GEMMs are those of the values times
 * their scales, by cuBLASLt (aligned shapes, one scale) and by tiles (all others). */
#include "gpu_test.h"

/* Runs on ref, then on the GPU from the same bytes; the arena then holds the GPU's results. Returns
 * ref's. */
static Values run_both(KernelId id, const Call *call)
{
    const size_t bytes = gpu.b.arena.used_bytes;
    char *before = malloc(2 * bytes + 1), *after = before + bytes;
    assert_non_null(before);
    memcpy(before, gpu.b.arena.base, bytes);
    run(id, call);
    const Values want = values_of(call);
    run_on_gpu(id, call, before, after);
    memcpy(gpu.b.arena.base, after, bytes);
    free(before);
    return want;
}

/* tolerance: relative to the largest value; 0: the same bits. */
static void expect_values(KernelId id, const Call *call, double tolerance)
{
    const Values want = run_both(id, call);
    for (int o = 0; o < call->n_out; o++) {
        const int64_t n = tensor_count(&call->out[o]);
        double largest = 0;
        for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(want.value[o][i]));
        for (int64_t i = 0; i < n; i++)
            if (!(fabs(get(&call->out[o], i) - want.value[o][i]) <= tolerance * largest))
                fail_msg("%s, output %d [%d]: %.9g, on ref %.9g", kernel_name(id), o, (int)i,
                         get(&call->out[o], i), want.value[o][i]);
        free(want.value[o]);
    }
    bench_clear(&gpu.b);
}

static Tensor spread(DType type, int64_t rows, int64_t columns)
{
    const Tensor x = NEW(&gpu.b, type, DENSE, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++)
        put(&x, i, bench_random(&gpu.b) * ldexp(1, (int)(i * 7 % 23) - 17));
    return x;
}

static const int64_t shapes[][2] = {{1, 1}, {7, 130}, {129, 304}, {64, 1024}, {259, 264}, {0, 5}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void quantizes(void **state)
{
    static const int32_t block[][2] = {{1, 128}, {128, 1}, {128, 128}};
    (void)state;
    for (int s = 0; s < N_SHAPES; s++)
        for (int type = E4M3; type <= E5M2; type++) {
            const int64_t *n = shapes[s];
            Call c = {.in = {spread(s % 2 ? BF16 : F32, n[0], n[1])},
                      .n_in = 1,
                      .out = {NEW(&gpu.b, F32, DENSE, 1)},
                      .n_out = 1};
            expect_values(KERNEL_amax, &c, 0);
            c = (Call){
                .in = {spread(s % 2 ? BF16 : F32, n[0], n[1]), NEW(&gpu.b, F32, DENSE, 1)},
                .n_in = 2,
                .out = {NEW(&gpu.b, (DType)type, DENSE, n[0], n[1]), NEW(&gpu.b, F32, DENSE, 1)},
                .n_out = 2,
                .attr.quantize.type = (DType)type};
            put(&c.in[1], 0, 0.7); /* less than the largest: some saturate */
            expect_values(KERNEL_quantize, &c, 0);
            for (int both = 0; both < 2; both++) {
                const Tensor x = spread(s % 2 ? BF16 : F32, n[0], n[1]);
                const int64_t pad = s % 2 ? 0 : 16 - n[0] % 16; /* rows of z that are aligned */
                Tensor z = NEW(&gpu.b, (DType)type, DENSE, n[1], n[0] + pad);
                z.n[1] = n[0];
                c = (Call){.in = {x, NEW(&gpu.b, F32, DENSE, 1)},
                           .n_in = 2,
                           .n_out = 2 + 2 * both,
                           .attr.quantize.type = (DType)type};
                if (both) c.out[0] = NEW(&gpu.b, (DType)type, DENSE, n[0], n[1]);
                if (both) c.out[1] = NEW(&gpu.b, F32, DENSE, 1);
                c.out[2 * both] = z;
                c.out[2 * both + 1] = NEW(&gpu.b, F32, DENSE, 1);
                put(&c.in[1], 0, 0.7);
                expect_values(both ? KERNEL_quantize_both : KERNEL_quantize_turned, &c, 0);
            }
            for (int b = 0; b < 3; b++) {
                const int64_t rows = (n[0] + block[b][0] - 1) / block[b][0],
                              columns = (n[1] + block[b][1] - 1) / block[b][1];
                c = (Call){
                    .in = {spread(BF16, n[0], n[1])},
                    .n_in = 1,
                    .out = {NEW(&gpu.b, (DType)type, DENSE, n[0], n[1]),
                            NEW(&gpu.b, F32, DENSE, rows, columns)},
                    .n_out = 2,
                    .attr.quantize = {.type = (DType)type, .block = {block[b][0], block[b][1]}}};
                expect_values(KERNEL_quantize_blocks, &c, 0);
            }
        }
}

/* FNV-1a of codes, which tests/cuda/fp8_codes.py prints of PyTorch's. */
static uint32_t hash_of(const Tensor *codes)
{
    uint32_t h = 2166136261u;
    for (int64_t i = 0; i < tensor_count(codes); i++)
        h = (h ^ ((const uint8_t *)codes->data)[i]) * 16777619u;
    return h;
}

/* Every bf16, and 10^6 f32 of all sizes, infinities and NaN among them, with a scale of 1. */
static void converts(void **state)
{
    (void)state;
    for (int type = E4M3; type <= E5M2; type++)
        for (int k = 0; k < 2; k++) {
            const int64_t n = k ? 1000000 : 1 << 16, columns = k ? 1000 : 256;
            Call c = {.in = {NEW(&gpu.b, k ? F32 : BF16, DENSE, n / columns, columns),
                             NEW(&gpu.b, F32, DENSE, 1)},
                      .n_in = 2,
                      .out = {NEW(&gpu.b, (DType)type, DENSE, n / columns, columns),
                              NEW(&gpu.b, F32, DENSE, 1)},
                      .n_out = 2,
                      .attr.quantize.type = (DType)type};
            for (int64_t i = 0; i < n; i++) {
                if (k)
                    ((uint32_t *)c.in[0].data)[i] = (uint32_t)i * 2654435761u;
                else
                    ((uint16_t *)c.in[0].data)[i] = (uint16_t)i;
            }
            put(&c.in[1], 0, (double)fp8_format((DType)type).max);
            const Tensor y = c.out[0];
            const Values want = run_both(KERNEL_quantize, &c);
            for (int64_t i = 0; i < n; i++) {
                const double got = get(&y, i), ref = want.value[0][i];
                if (got != ref && !(isnan(got) && isnan(ref)))
                    fail_msg("%s [%d]: %.9g, on ref %.9g", dtype_name((DType)type), (int)i, got,
                             ref);
            }
            printf("%s of %s: codes %08x\n", dtype_name((DType)type), k ? "f32" : "bf16",
                   hash_of(&y));
            values_free(&c, want);
            bench_clear(&gpu.b);
        }
}

static Tensor codes(DType type, int64_t rows, int64_t columns)
{
    const Tensor t = NEW(&gpu.b, type, DENSE, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++)
        put(&t, i, bench_random(&gpu.b) * (type == E4M3 ? 448 : 57344));
    return t;
}

/* One scale if block[0] is 0. */
static Tensor scales(const Tensor *x, const int32_t *block)
{
    const Tensor s = block[0] ? NEW(&gpu.b, F32, DENSE, (x->n[0] + block[0] - 1) / block[0],
                                    (x->n[1] + block[1] - 1) / block[1])
                              : NEW(&gpu.b, F32, DENSE, 1);
    for (int64_t i = 0; i < tensor_count(&s); i++) put(&s, i, 1e-3 * (2 + bench_random(&gpu.b)));
    return s;
}

static void multiplies(void **state)
{
    static const int64_t size[][3] = {{64, 96, 256}, {16, 32, 48}, {33, 70, 129}};
    static const int32_t whole[2] = {0, 0}, row[2] = {1, 128}, column[2] = {128, 1},
                         square[2] = {128, 128};
    (void)state;
    for (int s = 0; s < 3; s++)
        for (int way = 0; way < 4; way++) /* y, plain, ta, gradients */
            for (int variant = 0; variant < 8; variant++) {
                const int64_t m = size[s][0], n = size[s][1], k = size[s][2];
                const bool ta = way == 2, tb = way % 3 == 0, blocks = variant & 1,
                           bias = variant & 4;
                const double keep = way == 3 ? 1 : way;
                const int32_t *a_block = !blocks ? whole
                                         : ta    ? column
                                                 : row,
                              *b_block = !blocks ? whole
                                         : ta    ? column
                                                 : square;
                const DType out = variant & 2 ? F32 : BF16;
                Call c = {.n_in = bias ? 5 : 4,
                          .n_out = 1,
                          .number = {keep},
                          .attr.gemm = {.ta = ta,
                                        .tb = tb,
                                        .a_block = {a_block[0], a_block[1]},
                                        .b_block = {b_block[0], b_block[1]}}};
                c.in[0] = codes(way ? E5M2 : E4M3, ta ? k : m, ta ? m : k);
                c.in[1] = codes(E4M3, tb ? n : k, tb ? k : n);
                c.in[2] = scales(&c.in[0], a_block);
                c.in[3] = scales(&c.in[1], b_block);
                c.in[4] = RANDOM(&gpu.b, BF16, DENSE, n);
                c.out[0] = accumulator(&gpu.b, NEW(&gpu.b, out, DENSE, m, n), keep);
                /* sums of tensor cores keep 14 bits */
                const bool tiles = ta || !tb || blocks || s == 2;
                expect_values(KERNEL_scaled_gemm, &c,
                              (tiles ? gpu_terms(2 * (double)k) : ldexp(1, -10)) +
                                  (out == BF16 ? ldexp(1, -6) : 0));
            }
}

/* Kernels of delayed scaling. A code of a norm or a swiglu may be ref's neighbour, where a fast
 * function rounds to the other bf16. */
static void writes_by_a_scale(void **state)
{
    static const int64_t shape[][2] = {{7, 130}, {129, 304}, {64, 1024}, {259, 264}};
    static const KernelId id[] = {KERNEL_quantize_by, KERNEL_rmsnorm_by, KERNEL_swiglu_by,
                                  KERNEL_swiglu_dx_by};
    (void)state;
    for (int k = 0; k < 4; k++)
        for (int form = 0; form < 4; form++)
            for (int type = E4M3; type <= E5M2; type++) {
                const int n_in = (const int[]){1, 2, 2, 3}[form], m = form == 1 ? 2 : 1;
                const int64_t t = shape[k][0], i = shape[k][1], width = form == 3 ? 2 * i : i;
                Call c = {.n_in = n_in + 1, .n_out = m + 2};
                for (int o = 0; o < n_in; o++) c.in[o] = RANDOM(&gpu.b, BF16, DENSE, t, i);
                if (form == 1) c.in[1] = RANDOM(&gpu.b, BF16, DENSE, i);
                c.in[n_in] = NEW(&gpu.b, F32, DENSE, 1);
                put(&c.in[n_in], 0, ldexp(1, type == E4M3 ? -7 : -14));
                c.out[0] = NEW(&gpu.b, (DType)type, DENSE, t, width);
                if (form == 1) c.out[1] = NEW(&gpu.b, F32, DENSE, t);
                c.out[m] = NEW(&gpu.b, F32, DENSE, 1);
                c.out[m + 1] = NEW(&gpu.b, (DType)type, DENSE, width, t + 16 - t % 16);
                c.out[m + 1].n[1] = t;
                c.attr.by.type = (DType)type;
                c.attr.by.eps = 1e-5;
                const Tensor y = c.out[0], z = c.out[m + 1];
                const Values want = run_both(id[form], &c);
                int64_t differ = 0;
                for (int64_t e = 0; e < t * width; e++) {
                    const double got = get(&y, e), ref = want.value[0][e];
                    if (get(&z, e % width * t + e / width) != got)
                        fail_msg("%s: z differs from y at %d", kernel_name(id[form]), (int)e);
                    differ += got != ref;
                    if (!(fabs(got - ref) <= ldexp(fabs(ref), type == E4M3 ? -3 : -2) + 1e-2))
                        fail_msg("%s [%d]: %.9g, on ref %.9g", kernel_name(id[form]), (int)e, got,
                                 ref);
                }
                if (differ > (form == 0 ? 0 : t * width / 50 + 2))
                    fail_msg("%s: %d codes of %d differ", kernel_name(id[form]), (int)differ,
                             (int)(t * width));
                if (!(fabs(get(&c.out[m], 0) - want.value[m][0]) <= ldexp(want.value[m][0], -7)))
                    fail_msg("%s: amax %.9g, on ref %.9g", kernel_name(id[form]), get(&c.out[m], 0),
                             want.value[m][0]);
                values_free(&c, want);
                bench_clear(&gpu.b);
            }
}

static void marks(void **state)
{
    const int64_t bins = FP8_SITES * FP8_BINS;
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        Call c = {.n_in = 4, .n_out = 1, .number = {keep}, .attr.sites.first = 6};
        for (int i = 0; i < 4; i++) {
            c.in[i] = NEW(&gpu.b, F32, DENSE, 1);
            put(&c.in[i], 0, i == 2 ? 0 : ldexp(1.3, 21 * i - 40));
        }
        c.out[0] = accumulator(&gpu.b, NEW(&gpu.b, F32, DENSE, bins), keep);
        expect_values(KERNEL_mark_amax, &c, 0);
    }
    Call c = {.n_in = 1, .n_out = 1, .attr.sites.gradients = 0x5a};
    c.in[0] = RANDOM(&gpu.b, F32, DENSE, bins);
    for (int64_t i = 0; i < bins; i++) /* few bins are marked, some sites have none */
        if (i % 37 || i / FP8_BINS % 5 == 0) put(&c.in[0], i, 0.001);
    c.out[0] = NEW(&gpu.b, F32, DENSE, FP8_SITES);
    expect_values(KERNEL_delayed_scales, &c, 0);
    c = (Call){.in = {RANDOM(&gpu.b, F32, DENSE, 700)}, .n_in = 1, .n_out = 1};
    c.out[0] = RANDOM(&gpu.b, F32, DENSE, 700);
    expect_values(KERNEL_age_marks, &c, 0);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(quantizes), cmocka_unit_test(converts),
                                          cmocka_unit_test(writes_by_a_scale),
                                          cmocka_unit_test(marks), cmocka_unit_test(multiplies)};

GPU_MAIN(tests)
