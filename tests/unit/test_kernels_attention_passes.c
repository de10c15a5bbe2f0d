/* test_kernels_attention_passes.c -- attention in two passes that keeps its scores: block by block
 * it is attention over all keys, and so are its gradients; cpu as ref. */
#include "cpu_test.h"
#include "attention_test.h"

enum { T = 37, S = 77, FIRST = 30, H = 3, C = 70 }; /* keys in blocks of 30 and 47 */

/* Rows from..from+n of the keys. */
static Tensor block_of_keys(Tensor x, int b)
{
    x.data = (char *)x.data + (size_t)(b * FIRST * x.stride[0]) * dtype_bytes(x.dtype);
    x.n[0] = b ? S - FIRST : FIRST;
    return x;
}

static Attr block_attr(Attr a, int b)
{
    a.attention.key_at = b * FIRST;
    return a;
}

typedef struct {
    Tensor scores[2], lse, ds[2];
} Passes;

static Call scores_call(const Case *c, const Passes *p, int b)
{
    return (Call){.in = {c->q, block_of_keys(c->k, b), c->ranges},
                  .n_in = 3,
                  .out = {p->scores[b], p->lse},
                  .n_out = 2,
                  .number = {0, b},
                  .attr = block_attr(c->attr, b)};
}

static Call weigh_call(const Case *c, const Passes *p, int b)
{
    return (Call){.in = {p->scores[b], p->lse, block_of_keys(c->v, b)},
                  .n_in = 3,
                  .out = {c->o},
                  .n_out = 1,
                  .number = {b},
                  .attr = c->attr};
}

static Call weigh_dx_call(const Case *c, const Passes *p, const Tensor *dout, const Tensor *delta,
                          const Tensor *dv, int b, double keep)
{
    return (Call){.in = {p->scores[b], p->lse, block_of_keys(c->v, b), *dout, *delta},
                  .n_in = 5,
                  .out = {p->ds[b], block_of_keys(*dv, b)},
                  .n_out = 2,
                  .number = {0, keep},
                  .attr = c->attr};
}

static Call scores_dx_call(const Case *c, const Passes *p, const Tensor *dq, const Tensor *dk,
                           int b, double keep)
{
    return (Call){.in = {p->ds[b], c->q, block_of_keys(c->k, b)},
                  .n_in = 3,
                  .out = {*dq, block_of_keys(*dk, b)},
                  .n_out = 2,
                  .number = {b ? 1 : keep, keep},
                  .attr = c->attr};
}

static Case open_case(Bench *b, Mask mask, DType type, Strides strides, double size, Passes *p)
{
    Case c = {.type = type, .strides = strides, .t = T, .s = S, .h = H, .g = H, .c = C};
    const DType wide = dtype_wide(type);
    bench_clear(b);
    case_open(b, &c, mask, size);
    p->lse = NEW(b, wide, strides, T, H);
    for (int i = 0; i < 2; i++) {
        p->scores[i] = NEW(b, wide, strides, T, H, i ? S - FIRST : FIRST);
        p->ds[i] = NEW(b, wide, strides, T, H, i ? S - FIRST : FIRST);
    }
    return c;
}

static void expect_equal(const char *name, const Tensor *got, const Tensor *want)
{
    for (int64_t i = 0; i < tensor_count(got); i++) {
        const double a = get(got, i), b = get(want, i);
        if (a != b && !(fabs(a - b) <= 1e-12 * (1 + fabs(b))))
            fail_msg("%s[%d]: %.17g, not %.17g", name, (int)i, a, b);
    }
}

/* The passes, block by block, against attention over all keys at once. */
static void blocks_are_attention(void **state)
{
    CpuBench *bench = *state;
    Bench *b = &bench->b;
    for (int mask = 0; mask < N_MASKS; mask++)
        for (int large = 0; large < 2; large++) {
            static const double keep[] = {0.5, 0.5, 0.5};
            Passes p;
            const Case c = open_case(b, (Mask)mask, F64, PADDED, large ? 8 : 1.5, &p);
            const Call whole = attention_call(&c);
            Case parts = c;
            parts.o = NEW(b, F64, PADDED, T, H, C);
            run(KERNEL_attention, &whole);
            for (int i = 0; i < 2; i++) {
                const Call s = scores_call(&parts, &p, i);
                run_twice(b, KERNEL_attention_scores, &s);
            }
            for (int i = 0; i < 2; i++) {
                const Call w = weigh_call(&parts, &p, i);
                run_twice(b, KERNEL_attention_weigh, &w);
            }
            expect_equal("o", &parts.o, &c.o);
            expect_equal("lse", &p.lse, &c.lse);

            const Call dx = attention_dx_call(b, &c, keep);
            Tensor delta = NEW(b, F64, DENSE, T, H), sum[3];
            const Call d = {
                .in = {dx.in[4], c.o}, .n_in = 2, .out = {delta}, .n_out = 1, .attr = c.attr};
            run(KERNEL_attention_delta, &d);
            for (int i = 0; i < 3; i++) {
                sum[i] = NEW(b, F64, PADDED, i ? S : T, H, C);
                for (int64_t k = 0; k < tensor_count(&sum[i]); k++)
                    put(&sum[i], k, get(&dx.out[i], k));
            }
            run(KERNEL_attention_dx, &dx);
            for (int i = 0; i < 2; i++) {
                const Call w = weigh_dx_call(&c, &p, &dx.in[4], &delta, &sum[2], i, 0.5);
                run_twice(b, KERNEL_attention_weigh_dx, &w);
            }
            for (int i = 0; i < 2; i++) {
                const Call s = scores_dx_call(&c, &p, &sum[0], &sum[1], i, 0.5);
                run_twice(b, KERNEL_attention_scores_dx, &s);
            }
            for (int i = 0; i < 3; i++)
                expect_equal(i == 0 ? "dq" : i == 1 ? "dk" : "dv", &sum[i], &dx.out[i]);
            expect_gaps(b);
        }
}

static void like_ref(CpuBench *c, KernelId id, Call call, double terms)
{
    against_ref(c, id, &call, 4 * tol_sum(call.out[0].dtype, terms));
}

/* Scores of an exponent that is off by tol_sum make weights that are off by as much. */
static void cpu_is_ref(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < 2 * N_MASKS; i++) {
        Bench *b = &c->b;
        Passes p;
        const DType type = cpu_types[i % 2];
        const Strides strides = (Strides)(i % N_STRIDES);
        const double keep = i / 2 % 2;
        Case k = open_case(b, (Mask)(i / 2), type, strides, 1.5, &p);
        const Tensor dout = RANDOM(b, type, strides, T, H, C), delta = RANDOM(b, F32, DENSE, T, H);
        const Tensor sum[3] = {accumulator(b, NEW(b, F32, strides, T, H, C), 1),
                               accumulator(b, NEW(b, F32, strides, S, H, C), keep),
                               accumulator(b, NEW(b, F32, strides, S, H, C), keep)};
        fill(b, &k.o, 1); /* this and lse are not used */
        fill(b, &k.lse, 1);
        k.o = NEW(b, F32, strides, T, H, C);
        for (int j = 0; j < 2; j++) like_ref(c, KERNEL_attention_scores, scores_call(&k, &p, j), C);
        for (int j = 0; j < 2; j++) like_ref(c, KERNEL_attention_weigh, weigh_call(&k, &p, j), S);
        for (int j = 0; j < 2; j++)
            like_ref(c, KERNEL_attention_weigh_dx,
                     weigh_dx_call(&k, &p, &dout, &delta, &sum[2], j, keep), C);
        for (int j = 0; j < 2; j++)
            like_ref(c, KERNEL_attention_scores_dx,
                     scores_dx_call(&k, &p, &sum[0], &sum[1], j, keep), S);
        expect_gaps(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_attention),
        cmocka_unit_test(cpu_is_ref),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
