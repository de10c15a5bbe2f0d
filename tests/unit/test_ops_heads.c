/* test_ops_heads.c -- the row "h=g" of attention and of its gradient, where the cut is within a
 * group of heads that share a key head: parts then hold copies of it, and their gradients are
 * summed.
 *
 *     heads       0 1 2 | 3 4 5 | 6 7        outputs of heads are put together;
 *     key heads   0     | 0 1   | 1          dk and dv are summed over the copies
 *
 * f64, random operands, sums that do not start at 0. */
#include "kernel_test.h"

/* Heads [from, from + n) of x[t,h,c] or x[t,h]: a view of the same bytes. */
static Tensor heads_of(Tensor x, int64_t from, int64_t n)
{
    x.data = (char *)x.data + (size_t)(from * x.stride[1]) * dtype_bytes(x.dtype);
    x.n[1] = n;
    return x;
}

enum { T = 7, S = 9, H = 8, G = 2, C = 3, GROUP = H / G, MAX_CUTS = 8 };

/* Attention and its gradient, whole or a part of it. */
typedef struct {
    Tensor q, k, v, ranges, dout, o, lse, dq, dk, dv;
} Block;

static Block block_new(Bench *b)
{
    Block x = {.q = RANDOM(b, F64, DENSE, T, H, C), .k = RANDOM(b, F64, DENSE, S, G, C)};
    x.v = RANDOM(b, F64, DENSE, S, G, C);
    x.ranges = NEW(b, I32, DENSE, T, 4);
    for (int t = 0; t < T; t++)
        for (int r = 0; r < 4; r++) put(&x.ranges, 4 * t + r, r == 1 ? t + 3 : 0);
    x.dout = RANDOM(b, F64, DENSE, T, H, C);
    return x;
}

static void block_outputs(Bench *b, Block *x)
{
    x->o = NEW(b, F64, DENSE, T, H, C);
    x->lse = NEW(b, F64, DENSE, T, H);
    x->dq = NEW(b, F64, DENSE, T, H, C);
    x->dk = RANDOM(b, F64, DENSE, S, G, C);
    x->dv = RANDOM(b, F64, DENSE, S, G, C);
}

/* `n` heads from `from` on, and the key heads that they read. */
static Block block_part(const Block *x, int64_t from, int64_t n)
{
    const int64_t key = n ? from / GROUP : 0, keys = n ? (from + n - 1) / GROUP - key + 1 : 0;
    Block p = *x;
    Tensor *head[] = {&p.q, &p.dout, &p.o, &p.lse, &p.dq};
    Tensor *shared[] = {&p.k, &p.v, &p.dk, &p.dv};
    for (int i = 0; i < 5; i++) *head[i] = heads_of(*head[i], from, n);
    for (int i = 0; i < 4; i++) *shared[i] = heads_of(*shared[i], key, keys);
    return p;
}

/* Adds to dk and dv. The gradient reads the o and lse just written. */
static void block_run(const Block *x, int64_t group, int64_t head_at)
{
    const Attr attr = {.attention = {.scale = 0.6, .group = group, .head_at = head_at}};
    run(KERNEL_attention, &(Call){.in = {x->q, x->k, x->v, x->ranges},
                                  .n_in = 4,
                                  .out = {x->o, x->lse},
                                  .n_out = 2,
                                  .attr = attr});
    run(KERNEL_attention_dx, &(Call){.in = {x->q, x->k, x->v, x->ranges, x->dout, x->lse, x->o},
                                     .n_in = 7,
                                     .out = {x->dq, x->dk, x->dv},
                                     .n_out = 3,
                                     .attr = attr,
                                     .number = {0, 1, 1}});
}

static void copy_into(const Tensor *to, const Tensor *from)
{
    for (int64_t i = 0; i < tensor_count(to); i++) put(to, i, get(from, i));
}

static void expect_same(const char *what, int cut, Tensor got, Tensor want)
{
    for (int64_t i = 0; i < tensor_count(&want); i++)
        if (!(fabs(get(&got, i) - get(&want, i)) <= 1e-13))
            fail_msg("cut %d, %s[%d]: %.17g, whole %.17g", cut, what, (int)i, get(&got, i),
                     get(&want, i));
}

/* Outputs of heads put together, and those of key heads summed over the parts that hold copies,
 * equal the whole, which starts its sums from the same numbers. */
static void cuts_within_groups_hold(void **state)
{
    static const int cuts[][MAX_CUTS] = {
        {3, 3, 2}, {5, 3}, {1, 1, 1, 1, 1, 1, 1, 1}, {0, 7, 0, 1}, {4, 4}, {8},
    };
    Bench b;
    (void)state;
    bench_open(&b);
    for (int c = 0; c < (int)(sizeof cuts / sizeof *cuts); c++) {
        Block whole = block_new(&b), parts = whole;
        block_outputs(&b, &whole);
        block_outputs(&b, &parts);
        copy_into(&parts.dk, &whole.dk);
        copy_into(&parts.dv, &whole.dv);
        block_run(&whole, 0, 0);
        for (int k = 0, from = 0; k < MAX_CUTS; from += cuts[c][k++]) {
            const Block part = block_part(&parts, from, cuts[c][k]);
            block_run(&part, GROUP, from % GROUP);
        }
        expect_same("o", c, parts.o, whole.o);
        expect_same("lse", c, parts.lse, whole.lse);
        expect_same("dq", c, parts.dq, whole.dq);
        expect_same("dk", c, parts.dk, whole.dk);
        expect_same("dv", c, parts.dv, whole.dv);
        bench_clear(&b);
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_within_groups_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
