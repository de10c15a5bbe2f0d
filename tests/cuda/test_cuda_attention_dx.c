/* The gradient of attention on the GPU, in bf16 with heads of 64 and 128 channels, for which sm_90
 * has kernels of its own: sizes around their tiles, all masks, shared and shifted heads, blocks of
 * keys, accumulating outputs, strided views, delta instead of o, unseen keys, and both orders of
 * sums. */
#include "gpu_test.h"
#include "unit/attention_test.h"

static const Case sizes[] = {
    {.t = 1, .s = 3, .h = 1, .g = 1, .c = 64},
    {.t = 130, .s = 130, .h = 4, .g = 2, .c = 64},
    {.t = 129, .s = 257, .h = 2, .g = 2, .c = 128},
    {.t = 300, .s = 65, .h = 3, .g = 1, .c = 64},
    {.t = 65, .s = 391, .h = 4, .g = 1, .c = 128},
    {.t = 520, .s = 520, .h = 2, .g = 1, .c = 64},
    {.t = 393, .s = 393, .h = 2, .g = 1, .c = 128},
    /* shards of heads, split within groups; a key head that no head reads */
    {.t = 150,
     .s = 150,
     .h = 5,
     .g = 3,
     .c = 64,
     .attr = {.attention = {.group = 3, .head_at = 2}}},
    {.t = 70,
     .s = 140,
     .h = 3,
     .g = 2,
     .c = 128,
     .attr = {.attention = {.group = 4, .head_at = 2}}},
    {.t = 70, .s = 140, .h = 2, .g = 2, .c = 64, .attr = {.attention = {.group = 4, .head_at = 2}}},
};
enum { N_DX_SIZES = sizeof sizes / sizeof *sizes };

static const double inside = 2.0 / 128; /* weights and ds are rounded to bf16 */

static double terms_of(const Case *c) { return gpu_terms(8 * (double)(c->s + c->t + c->c)); }

/* A view of `heads` heads of longer rows, each with a gap after it. */
static Tensor view_of(DType type, int64_t n, int64_t heads, int64_t c)
{
    Tensor t = NEW(&gpu.b, type, DENSE, n, 2 * heads + 1, c + 8);
    t.n[1] = heads, t.n[2] = c;
    t.stride[1] *= 2;
    fill(&gpu.b, &t, 1);
    return t;
}

/* The gradient of a forward call over all keys. Variants choose types and layouts of the outputs,
 * what accumulates, and whether delta is given. */
static Call gradient_of(const Case *c, const Call *f, int variant)
{
    const bool views = variant % 3 == 1, wide = variant % 2 == 1, given = variant % 4 >= 2;
    Call back = {.n_in = 7, .n_out = 3, .attr = f->attr};
    run(KERNEL_attention, f);
    memcpy(back.in, f->in, sizeof *f->in * 4);
    back.in[4] =
        views ? view_of(BF16, c->t, c->h, c->c) : RANDOM(&gpu.b, BF16, DENSE, c->t, c->h, c->c);
    back.in[5] = f->out[1];
    back.in[6] = f->out[0];
    if (given) {
        const Tensor delta = NEW(&gpu.b, F32, DENSE, c->t, c->h);
        const Call sum = {.in = {back.in[4], f->out[0]}, .n_in = 2, .out = {delta}, .n_out = 1};
        run(KERNEL_attention_delta, &sum);
        back.in[6] = delta;
    }
    for (int o = 0; o < 3; o++) {
        const int64_t n = o ? c->s : c->t, heads = o ? c->g : c->h;
        const DType type = wide ? F32 : BF16;
        back.number[o] = gpu_keeps[(variant + o) % 3];
        back.out[o] = variant % 5 == 4 ? NEW(&gpu.b, type, PADDED, n, heads, c->c)
                      : views          ? view_of(type, n, heads, c->c)
                                       : NEW(&gpu.b, type, DENSE, n, heads, c->c);
        back.out[o] = accumulator(&gpu.b, back.out[o], back.number[o]);
    }
    return back;
}

static void like_ref(void **state)
{
    (void)state;
    for (int n = 0; n < N_DX_SIZES; n++)
        for (int mask = 0; mask < N_MASKS; mask++) {
            Case c = sizes[n];
            const int variant = 5 * n + mask;
            c.type = BF16;
            case_open(&gpu.b, &c, (Mask)mask, 1);
            if (variant % 3 == 1) {
                c.q = view_of(BF16, c.t, c.h, c.c);
                c.k = view_of(BF16, c.s, c.g, c.c);
                c.v = view_of(BF16, c.s, c.g, c.c);
            }
            const Call f = attention_call(&c), back = gradient_of(&c, &f, variant);
            gpu_any_order((mask + n) % 4 != 0);
            expect_like_ref(KERNEL_attention_dx, &back, terms_of(&c), inside);
        }
    gpu_any_order(false);
}

/* A later block of keys: dq is the sum over blocks, lse and delta are those of all keys. */
static void blocks_of_keys(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++)
        for (int mask = 0; mask < N_MASKS; mask++) {
            const int64_t from = 200, keys = 190;
            Case c = {.type = BF16, .t = 390, .s = 390, .h = 2, .g = 1, .c = wide ? 128 : 64};
            case_open(&gpu.b, &c, (Mask)mask, 1);
            const Call f = attention_call(&c);
            Call back = gradient_of(&c, &f, 3);
            for (int i = 1; i < 3; i++) {
                back.in[i].n[0] = back.out[i].n[0] = keys;
                back.in[i].data = (char *)back.in[i].data + 2 * from * back.in[i].stride[0];
            }
            back.attr.attention.key_at = from;
            gpu_any_order(mask % 4 != 0);
            expect_like_ref(KERNEL_attention_dx, &back, terms_of(&c), inside);
        }
    gpu_any_order(false);
}

static void put_row(const Tensor *t, int64_t row, double x)
{
    const int64_t each = t->n[1] * t->n[2];
    for (int64_t i = 0; i < each; i++) put(t, row * each + i, x);
}

/* Keys that no row sees, and queries that see nothing, may hold anything, also NaN. */
static void unseen_is_not_read(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++)
        for (int any = 0; any < 2; any++) {
            Case c = {.type = BF16, .t = 300, .s = 420, .h = 2, .g = 1, .c = wide ? 128 : 64};
            case_open(&gpu.b, &c, FULL, 1);
            for (int64_t t = 0; t < c.t; t++) { /* no row sees keys 20 to 139 and 330 to 399 */
                const int low[4] = {3, 20, 140, 140 + (int)t / 2}, high[4] = {290, 330, 400, 420};
                const int none[4] = {24, 24, 0, 0};
                const int *range = t % 70 == 9 ? none : t < 200 ? low : high;
                for (int r = 0; r < 4; r++) put(&c.ranges, 4 * t + r, range[r]);
            }
            for (int64_t key = 0; key < c.s; key++) {
                if ((key >= 3 && key < 20) || (key >= 140 && key < 239)) continue;
                if ((key >= 290 && key < 330) || key >= 400) continue;
                put_row(&c.k, key, (double)NAN);
                put_row(&c.v, key, (double)NAN);
            }
            for (int64_t t = 9; t < c.t; t += 70) put_row(&c.q, t, (double)NAN);
            const Call f = attention_call(&c);
            Call back = gradient_of(&c, &f, 0);
            for (int64_t t = 9; t < c.t; t += 70) put_row(&back.in[4], t, (double)NAN);
            gpu_any_order(any);
            expect_like_ref(KERNEL_attention_dx, &back, terms_of(&c), inside);
        }
    gpu_any_order(false);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(like_ref),
                                          cmocka_unit_test(blocks_of_keys),
                                          cmocka_unit_test(unseen_is_not_read)};

GPU_MAIN(tests)
