/* Attention on the GPU: masks, shared heads, heads of many sizes, blocks of keys, unseen keys.
 *
 * In bf16 the weights and the ds of the gradient are rounded to bf16 before they enter the tensor
 * cores: 2^-9 each, relative to sums of absolute values; the bound taken is 2^-7. */
#include "gpu_test.h"
#include "unit/attention_test.h"

static const Case gpu_sizes[] = {
    {.t = 130, .s = 130, .h = 4, .g = 2, .c = 64},
    {.t = 200, .s = 200, .h = 2, .g = 2, .c = 128},
    {.t = 77, .s = 150, .h = 3, .g = 1, .c = 80},
    {.t = 70, .s = 90, .h = 2, .g = 1, .c = 256},
    {.t = 65, .s = 300, .h = 6, .g = 2, .c = 8},
    {.t = 300, .s = 65, .h = 2, .g = 2, .c = 72},
    {.t = 150,
     .s = 150,
     .h = 5,
     .g = 3,
     .c = 64,
     .attr = {.attention = {.group = 3, .head_at = 2}}},
};
enum { N_GPU_SIZES = sizeof gpu_sizes / sizeof *gpu_sizes };

static double inside(DType type) { return type == BF16 ? ldexp(1, -7) : 0; }

static Case case_of(int n, int mask, DType type)
{
    Case c = n < N_SIZES ? attention_sizes[n] : gpu_sizes[n - N_SIZES];
    c.type = type;
    c.strides = n < N_SIZES ? (Strides)((n + mask + 2) % N_STRIDES) : DENSE;
    return c;
}

static void forward(void **state)
{
    (void)state;
    for (int n = 0; n < N_SIZES + N_GPU_SIZES; n++)
        for (int mask = 0; mask < N_MASKS; mask++)
            for (int type = 0; type < 2; type++) {
                Case c = case_of(n, mask, gpu_types[type]);
                case_open(&gpu.b, &c, (Mask)mask, 1);
                Call call = attention_call(&c);
                if (n >= N_SIZES) { /* as in a model: dense tensors, one after the other */
                    call.out[0] = NEW(&gpu.b, c.type, DENSE, c.t, c.h, c.c);
                    if (mask % 2 == 0) {
                        call.in[0] = RANDOM(&gpu.b, c.type, DENSE, c.t, c.h, c.c);
                        call.in[1] = RANDOM(&gpu.b, c.type, DENSE, c.s, c.g, c.c);
                        call.in[2] = RANDOM(&gpu.b, c.type, DENSE, c.s, c.g, c.c);
                    }
                }
                expect_like_ref(KERNEL_attention, &call, gpu_terms(4 * (double)(c.s + c.c)),
                                inside(c.type));
            }
}

/* Carried on from other keys, with o in the type or wide, as visits of attention plans have it. */
static void carried_on(void **state)
{
    (void)state;
    for (int n = 0; n < N_SIZES + N_GPU_SIZES; n++)
        for (int mask = 0; mask < N_MASKS; mask++)
            for (int type = 0; type < 4; type++) {
                Case c = case_of(n, mask, gpu_types[type % 2]);
                case_open(&gpu.b, &c, (Mask)mask, 1);
                const Call call = attention_carry_call(&gpu.b, &c, type / 2);
                expect_like_ref(KERNEL_attention, &call, gpu_terms(8 * (double)(c.s + c.c)),
                                2 * inside(c.type));
            }
}

/* Inputs of the gradient: o and lse over all keys, by ref. */
static void prepare(const Call *f, Call *back, bool wide, int variant)
{
    const Tensor *q = &f->in[0], *k = &f->in[1];
    const DType type = q->dtype, sum = wide ? dtype_wide(type) : type;
    const Strides strides = (Strides)(variant % N_STRIDES);
    run(KERNEL_attention, f);
    *back = (Call){.n_in = 7, .n_out = 3, .attr = f->attr};
    for (int i = 0; i < 4; i++) back->in[i] = f->in[i];
    back->in[4] = bench_new(&gpu.b, type, strides, q->n, 3);
    fill(&gpu.b, &back->in[4], 1);
    back->in[5] = f->out[1];
    back->in[6] = f->out[0];
    back->out[0] = bench_new(&gpu.b, type, strides, q->n, 3);
    back->out[1] = bench_new(&gpu.b, sum, strides, k->n, 3);
    back->out[2] = bench_new(&gpu.b, sum, strides, k->n, 3);
    for (int o = 0; o < 3; o++) {
        back->number[o] = gpu_keeps[(variant + o) % 3];
        back->out[o] = accumulator(&gpu.b, back->out[o], back->number[o]);
    }
}

static void backward(void **state)
{
    (void)state;
    for (int n = 0; n < N_SIZES + N_GPU_SIZES; n++)
        for (int mask = 0; mask < N_MASKS; mask++)
            for (int type = 0; type < 2; type++) {
                Case c = case_of(n, mask, gpu_types[type]);
                case_open(&gpu.b, &c, (Mask)mask, 1);
                const Call f = attention_call(&c);
                Call back;
                prepare(&f, &back, mask % 2, n < N_SIZES ? n + mask : 0);
                expect_like_ref(KERNEL_attention_dx, &back,
                                gpu_terms(8 * (double)(c.s + c.t + c.c)), 2 * inside(c.type));
            }
}

/* Keys that no row sees, and queries that see nothing, may hold anything. */
static void unseen_is_not_read(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++)
        for (int dense = 0; dense < 2; dense++) {
            Case c = {.type = gpu_types[type],
                      .t = 40,
                      .s = 140,
                      .h = 2,
                      .g = 1,
                      .c = 16,
                      .strides = dense ? DENSE : COLUMN_MAJOR};
            case_open(&gpu.b, &c, FULL, 1);
            for (int64_t t = 0; t < c.t; t++) { /* no row sees keys 20 to 23 and 30 to 99 */
                const int live[4] = {3, 20, 100, 100 + (int)t}, none[4] = {24, 24, 0, 0},
                          in_tile[4] = {24, 30, 0, 2};
                const int *range = t == 9 ? none : t % 2 ? in_tile : live;
                for (int r = 0; r < 4; r++) put(&c.ranges, 4 * t + r, range[r]);
            }
            for (int64_t j = 0; j < c.s * c.c; j++) {
                const int64_t key = j / c.c;
                if (key < 2 || (key >= 3 && key < 20) || (key >= 24 && key < 30)) continue;
                if (key >= 100 && key < 138) continue; /* row 38 is the last that sees this far */
                put(&c.k, j, (double)NAN);
                put(&c.v, j, (double)NAN);
            }
            for (int64_t i = 0; i < c.h * c.c; i++) put(&c.q, 9 * c.h * c.c + i, (double)NAN);
            const Call f = attention_call(&c);
            Call back;
            prepare(&f, &back, false, 0);
            for (int64_t i = 0; i < c.h * c.c; i++)
                put(&back.in[4], 9 * c.h * c.c + i, (double)NAN);
            for (int o = 0; o < 3; o++) back.number[o] = 0;
            Call forward_call = f;
            for (int o = 0; o < 3; o++)
                for (int64_t i = 0; i < tensor_count(&back.out[o]); i++)
                    put(&back.out[o], i, (double)NAN);
            const size_t used = gpu.b.arena.used_bytes;
            char *keep = malloc(used);
            assert_non_null(keep);
            memcpy(keep, gpu.b.arena.base, used);
            expect_like_ref(KERNEL_attention_dx, &back, gpu_terms(800), 2 * inside(c.type));
            gpu.b.arena.used_bytes = used; /* again from the same bytes */
            memcpy(gpu.b.arena.base, keep, used);
            expect_like_ref(KERNEL_attention, &forward_call, gpu_terms(800), inside(c.type));
            free(keep);
        }
}

/* Calls that are promised to be causal may run on cuDNN's kernels: sequences of one length, one
 * after the other. cuDNN refuses the last size. */
static void causal_is_promised(void **state)
{
    (void)state;
    static const int64_t size[][5] = {
        {3, 128, 4, 2, 64}, {2, 256, 2, 2, 128}, {2, 384, 6, 1, 80}, {2, 60, 2, 1, 40}};
    for (int i = 0; i < 4; i++)
        for (int view = 0; view < 2; view++) {
            const int64_t seq = size[i][1], t = size[i][0] * seq, h = size[i][2], g = size[i][3];
            Case c = {.type = BF16, .t = t, .s = t, .h = h, .g = g, .c = size[i][4]};
            c.strides = view ? DENSE : PADDED; /* dense: views of one buffer */
            case_open(&gpu.b, &c, FULL, 1);
            Call f = attention_call(&c), back;
            if (!view)
                for (int k = 0; k < 3; k++)
                    f.in[k] = RANDOM(&gpu.b, BF16, DENSE, t, k ? g : h, c.c);
            f.out[0] = NEW(&gpu.b, BF16, DENSE, t, h, c.c);
            for (int64_t row = 0; row < t; row++) {
                const int64_t range[4] = {row - row % seq, row + 1, 0, 0};
                for (int r = 0; r < 4; r++) put(&c.ranges, 4 * row + r, (double)range[r]);
            }
            f.attr.attention.scale = 0.125;
            f.attr.attention.causal = seq;
            prepare(&f, &back, false, 0);
            for (int o = 0; o < 3; o++) back.number[o] = 0;
            const size_t used = gpu.b.arena.used_bytes;
            char *bytes = malloc(used);
            assert_non_null(bytes);
            memcpy(bytes, gpu.b.arena.base, used);
            expect_like_ref(KERNEL_attention, &f, gpu_terms(4 * (double)(t + c.c)), inside(BF16));
            gpu.b.arena.used_bytes = used;
            memcpy(gpu.b.arena.base, bytes, used);
            expect_like_ref(KERNEL_attention_dx, &back, gpu_terms(8 * (double)(t + c.c)),
                            2 * inside(BF16));
            free(bytes);
        }
}

static void large_logits(void **state)
{
    (void)state;
    for (int mask = 0; mask < N_MASKS; mask++) {
        Case c = {.type = F32, .t = 37, .s = 70, .h = 2, .g = 1, .c = 3, .strides = PADDED};
        case_open(&gpu.b, &c, (Mask)mask, 30);
        const Call call = attention_call(&c);
        expect_like_ref(KERNEL_attention, &call, 1e-3, 0); /* exp(800 (1 + 2^-24)) is off by 5e-5 */
    }
}

static void merge(void **state)
{
    (void)state;
    static const int64_t size[][3] = {{7, 3, 5}, {33, 4, 64}, {20, 2, 128},
                                      {0, 2, 8}, {5, 2, 0},   {300, 1, 72}};
    for (int i = 0; i < 6; i++)
        for (int variant = 0; variant < 12; variant++) {
            const DType type = gpu_types[variant % 2];
            const int64_t t = size[i][0], h = size[i][1], n = size[i][2];
            Call c = {.n_in = 4, .n_out = 2};
            for (int p = 0; p < 2; p++) {
                c.in[2 * p] = RANDOM(&gpu.b, type, (Strides)(variant / 2 % 3), t, h, n);
                c.in[2 * p + 1] = RANDOM(&gpu.b, F32, (Strides)(variant % 3), t, h);
                fill(&gpu.b, &c.in[2 * p + 1], 20);
                for (int64_t r = p; r < t * h; r += 5) put(&c.in[2 * p + 1], r, -HUGE_VAL);
            }
            c.out[0] = variant < 6 ? c.in[0] : NEW(&gpu.b, type, DENSE, t, h, n);
            c.out[1] = variant < 6 ? c.in[1] : NEW(&gpu.b, F32, DENSE, t, h);
            expect_like_ref(KERNEL_attention_merge, &c, gpu_terms(64), 0);
        }
}

/* The kernels of attention in two passes, each on random scores; some keys are not seen. */
static void passes(void **state)
{
    (void)state;
    static const int64_t size[][4] = {
        {7, 9, 3, 5}, {130, 77, 2, 64}, {33, 200, 4, 128}, {5, 4, 1, 1}};
    for (int i = 0; i < 4; i++)
        for (int variant = 0; variant < 2 * N_MASKS; variant++) {
            const int64_t t = size[i][0], s = size[i][1], h = size[i][2], c = size[i][3];
            const DType type = gpu_types[variant % 2];
            const double keep = variant / 2 % 2, terms = gpu_terms(4 * (double)(s + t + c));
            const Attr attr = {.attention = {.scale = 0.4}};
            Bench *b = &gpu.b;
            Case k = {.type = type, .strides = DENSE, .t = t, .s = s, .h = h, .g = h, .c = c};
            case_open(b, &k, (Mask)(variant / 2), 1);
            Call scores = {.in = {k.q, k.k, k.ranges}, .n_in = 3, .n_out = 2, .attr = attr};
            scores.out[0] = NEW(b, F32, DENSE, t, h, s);
            scores.out[1] = accumulator(b, NEW(b, F32, DENSE, t, h), keep);
            scores.number[1] = keep;
            expect_like_ref(KERNEL_attention_scores, &scores, terms, inside(type));

            for (int id = KERNEL_attention_weigh; id <= KERNEL_attention_scores_dx; id++) {
                const Tensor slab = RANDOM(b, F32, DENSE, t, h, s),
                             lse = RANDOM(b, F32, DENSE, t, h);
                const Tensor x = RANDOM(b, type, DENSE, s, h, c),
                             y = RANDOM(b, type, DENSE, t, h, c);
                const Tensor rows = accumulator(b, NEW(b, F32, DENSE, t, h, c), keep);
                const Tensor keys = accumulator(b, NEW(b, F32, DENSE, s, h, c), keep);
                Call weigh = {.in = {slab, lse, x}, .n_in = 3, .out = {rows}, .n_out = 1};
                Call dx = {
                    .in = {slab, lse, x, y, RANDOM(b, F32, DENSE, t, h)}, .n_in = 5, .n_out = 2};
                Call last = {.in = {slab, y, x}, .n_in = 3, .out = {rows, keys}, .n_out = 2};
                dx.out[0] = NEW(b, F32, DENSE, t, h, s), dx.out[1] = keys;
                Call *call = id == KERNEL_attention_weigh      ? &weigh
                             : id == KERNEL_attention_weigh_dx ? &dx
                                                               : &last;
                for (int64_t at = 0; at < t * h * s && call != &last; at += 7)
                    put(&slab, at, -HUGE_VAL);
                call->attr = attr;
                call->number[0] = call == &dx ? 0 : keep;
                call->number[1] = keep;
                expect_like_ref((KernelId)id, call, terms, inside(type));
            }
        }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(forward),
                                          cmocka_unit_test(carried_on),
                                          cmocka_unit_test(backward),
                                          cmocka_unit_test(unseen_is_not_read),
                                          cmocka_unit_test(causal_is_promised),
                                          cmocka_unit_test(large_logits),
                                          cmocka_unit_test(merge),
                                          cmocka_unit_test(passes)};

GPU_MAIN(tests)
