/* test_kernels_loss.c -- cross entropy in steps: whole, sharded over the vocabulary, and its
 * gradient. */
#include "kernel_test.h"

static Bench bench;
enum { T = 7, V = 301 }; /* more columns than a chunk */

/* Targets of dead rows (weight 0) are outside of the vocabulary. */
static const int targets[T] = {3, 300, 0, -100, 256, 140, 99};
static const double weights[T] = {1, 0.25, 1, 0, 2, 1, 0};

typedef struct {
    Tensor logits, targets, weights, m, z, loss, dlogits;
} Case;

static Case new_case(DType type, Strides strides, int64_t tokens, int64_t columns)
{
    const DType wide = dtype_wide(type);
    Case c = {.logits = RANDOM(&bench, type, strides, tokens, columns)};
    c.targets = NEW(&bench, I32, PADDED, tokens);
    c.weights = NEW(&bench, wide, COLUMN_MAJOR, tokens);
    for (int64_t t = 0; t < tokens; t++) {
        put(&c.targets, t, targets[t]);
        put(&c.weights, t, weights[t]);
    }
    c.m = NEW(&bench, wide, PADDED, tokens);
    c.z = NEW(&bench, wide, (Strides)((strides + 1) % N_STRIDES), tokens, 2);
    c.loss = NEW(&bench, wide, DENSE, 1);
    c.dlogits = NEW(&bench, type, (Strides)((strides + 2) % N_STRIDES), tokens, columns);
    return c;
}

static Call sums_of(const Case *c, int64_t base)
{
    Call call = {.in = {c->logits, c->m, c->targets}, .n_in = 3, .out = {c->z}, .n_out = 1};
    call.attr.vocab.base = base;
    return call;
}

static Call dx_of(const Case *c, int64_t base)
{
    Call call = {.n_in = 5, .out = {c->dlogits}, .n_out = 1};
    const Tensor in[] = {c->logits, c->m, c->z, c->targets, c->weights};
    memcpy(call.in, in, sizeof in);
    call.attr.vocab.base = base;
    return call;
}

static void run_steps(const Case *c, double keep)
{
    run_twice(&bench, KERNEL_row_max,
              &(Call){.in = {c->logits}, .n_in = 1, .out = {c->m}, .n_out = 1});
    const Call sums = sums_of(c, 0), dx = dx_of(c, 0);
    run_twice(&bench, KERNEL_row_sums, &sums);
    run_twice(
        &bench, KERNEL_loss,
        &(Call){
            .in = {c->z, c->weights}, .n_in = 2, .out = {c->loss}, .n_out = 1, .number = {keep}});
    run_twice(&bench, KERNEL_loss_dx, &dx);
}

/* The definition, with every sum taken over the whole row. */
static long double expected(const Case *c, long double *m, long double *z, long double *d)
{
    const int64_t v = c->logits.n[1];
    long double loss = 0;
    for (int64_t t = 0; t < c->logits.n[0]; t++) {
        long double sum = 0;
        m[t] = -HUGE_VALL;
        for (int64_t j = 0; j < v; j++) m[t] = fmaxl(m[t], (long double)get(&c->logits, t * v + j));
        for (int64_t j = 0; j < v; j++) sum += expl((long double)get(&c->logits, t * v + j) - m[t]);
        const bool known = targets[t] >= 0 && targets[t] < v;
        z[2 * t] =
            sum - (known ? expl((long double)get(&c->logits, t * v + targets[t]) - m[t]) : 0);
        z[2 * t + 1] = known ? (long double)get(&c->logits, t * v + targets[t]) - m[t] : 0;
        if (weights[t] != 0) loss += (long double)weights[t] * (logl(sum) - z[2 * t + 1]);
        for (int64_t j = 0; j < v; j++)
            d[t * v + j] =
                (long double)weights[t] *
                (expl((long double)get(&c->logits, t * v + j) - m[t]) / sum - (j == targets[t]));
    }
    return loss;
}

static void check_case(const Case *c, double keep, double tolerance)
{
    long double *m = kept(&c->m, 0), *z = kept(&c->z, 0), *d = kept(&c->dlogits, 0);
    long double *loss = kept(&c->loss, keep);
    loss[0] += expected(c, m, z, d);
    run_steps(c, keep);
    expect_close("m", &c->m, m, tolerance);
    expect_close("z", &c->z, z, tolerance);
    expect_close("loss", &c->loss, loss, tolerance);
    expect_close("dlogits", &c->dlogits, d, tolerance);
    expect_gaps(&bench);
    free(m);
    free(z);
    free(d);
    free(loss);
}

static void values(void **state)
{
    (void)state;
    const double keeps[] = {0, 1, 0.5};
    for (int k = 0; k < 18; k++) {
        bench_clear(&bench);
        const Case c = new_case(k % 2 ? F32 : F64, (Strides)(k / 2 % N_STRIDES), T, V);
        fill(&bench, &c.logits, k < 9 ? 5 : 900); /* 900: exp alone would overflow */
        if (keeps[k / 6] != 0) fill(&bench, &c.loss, 3);
        check_case(&c, keeps[k / 6], rounding(c.logits.dtype));
    }
}

static Call fused_call(const Case *c, double keep)
{
    return (Call){.in = {c->logits, c->targets, c->weights},
                  .n_in = 3,
                  .out = {c->dlogits, c->loss},
                  .n_out = 2,
                  .number = {0, keep}};
}

/* One kernel for all steps, and one for the loss alone; in place; dead rows of any content. */
static void fused(void **state)
{
    (void)state;
    const double keeps[] = {0, 1, 0.5};
    for (int k = 0; k < 18; k++) {
        bench_clear(&bench);
        Case c = new_case(k % 2 ? F32 : F64, (Strides)(k / 2 % N_STRIDES), T, V);
        const double keep = keeps[k / 6], tolerance = rounding(c.logits.dtype);
        fill(&bench, &c.logits, k < 9 ? 5 : 900);
        if (keep != 0) fill(&bench, &c.loss, 3);
        long double *m = kept(&c.m, 0), *z = kept(&c.z, 0), *d = kept(&c.dlogits, 0);
        long double *loss = kept(&c.loss, keep);
        loss[0] += expected(&c, m, z, d);
        for (int64_t t = 0; t < T; t++)
            for (int64_t j = 0; j < V && weights[t] == 0; j++)
                put(&c.logits, t * V + j, (double)NAN);
        const Tensor alone = NEW(&bench, c.loss.dtype, DENSE, 1), first = c.loss;
        put(&alone, 0, keep != 0 ? get(&c.loss, 0) : (double)NAN);
        if (k % 3 == 0) c.dlogits = c.logits;
        const Call call = fused_call(&c, keep);
        Call loss_alone = {.n_in = 3, .out = {alone}, .n_out = 1, .number = {keep}};
        memcpy(loss_alone.in, call.in, sizeof call.in);
        run(KERNEL_token_loss, &loss_alone);
        run(KERNEL_token_loss_dx, &call);
        expect_close("loss", &first, loss, tolerance);
        expect_close("dlogits", &c.dlogits, d, tolerance);
        assert_true(get(&alone, 0) == get(&first, 0));
        free(m);
        free(z);
        free(d);
        free(loss);
    }
}

static void no_rows(void **state)
{
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        bench_clear(&bench);
        const Case c = new_case(F64, DENSE, 0, 5);
        if (keep) put(&c.loss, 0, 4);
        run_steps(&c, keep);
        assert_true(get(&c.loss, 0) == 4.0 * keep);
        const Call call = fused_call(&c, keep);
        run(KERNEL_token_loss_dx, &call);
        assert_true(get(&c.loss, 0) == 4.0 * keep);
    }
}

/* The content of a dead row has no effect, and its gradient is 0. In place, too. */
static void dead_rows(void **state)
{
    (void)state;
    bench_clear(&bench);
    Case c = new_case(F64, PADDED, T, V);
    run_steps(&c, 0);
    const double loss = get(&c.loss, 0);
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < V && weights[t] == 0; j++) put(&c.logits, t * V + j, (double)NAN);
    c.dlogits = c.logits;
    run_steps(&c, 0);
    assert_true(get(&c.loss, 0) == loss);
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < V && weights[t] == 0; j++)
            assert_true(get(&c.dlogits, t * V + j) == 0);
}

/* Two parts of the vocabulary: the max of their maxima, the sum of their sums; each then has its
 * own columns of the gradient. A third part of no columns changes nothing. */
static void vocabulary_in_parts(void **state)
{
    (void)state;
    bench_clear(&bench);
    const int64_t base[] = {0, 130, V}, columns[] = {130, V - 130, 0};
    const Case whole = new_case(F64, PADDED, T, V);
    fill(&bench, &whole.logits, 30);
    check_case(&whole, 0, 1e-13);
    Case part[3];
    double max[T], z[2 * T] = {0};
    for (int64_t t = 0; t < T; t++) max[t] = -HUGE_VAL;
    for (int p = 0; p < 3; p++) {
        part[p] = new_case(F64, COLUMN_MAJOR, T, columns[p]);
        part[p].logits.data = (double *)whole.logits.data + base[p] * whole.logits.stride[1];
        memcpy(part[p].logits.stride, whole.logits.stride, sizeof whole.logits.stride);
        run(KERNEL_row_max,
            &(Call){.in = {part[p].logits}, .n_in = 1, .out = {part[p].m}, .n_out = 1});
        for (int64_t t = 0; t < T; t++) max[t] = fmax(max[t], get(&part[p].m, t));
    }
    for (int p = 0; p < 3; p++) {
        for (int64_t t = 0; t < T; t++) put(&part[p].m, t, max[t]);
        const Call call = sums_of(&part[p], base[p]);
        run_twice(&bench, KERNEL_row_sums, &call);
        for (int64_t i = 0; i < 2 * T; i++) z[i] += get(&part[p].z, i);
    }
    for (int64_t i = 0; i < 2 * T; i++) assert_true(fabs(z[i] - get(&whole.z, i)) < 1e-13 * V);
    for (int p = 0; p < 3; p++) {
        for (int64_t i = 0; i < 2 * T; i++) put(&part[p].z, i, z[i]);
        const Call call = dx_of(&part[p], base[p]);
        run_twice(&bench, KERNEL_loss_dx, &call);
        for (int64_t i = 0; i < T * columns[p]; i++) {
            const int64_t at = i / columns[p] * V + base[p] + i % columns[p];
            assert_true(fabs(get(&part[p].dlogits, i) - get(&whole.dlogits, at)) < 1e-13);
        }
    }
}

static long double loss_value(void *work)
{
    const Case *c = work;
    run(KERNEL_row_max, &(Call){.in = {c->logits}, .n_in = 1, .out = {c->m}, .n_out = 1});
    const Call sums = sums_of(c, 0);
    run(KERNEL_row_sums, &sums);
    run(KERNEL_loss, &(Call){.in = {c->z, c->weights}, .n_in = 2, .out = {c->loss}, .n_out = 1});
    return (long double)get(&c->loss, 0);
}

static void gradient(void **state)
{
    (void)state;
    bench_clear(&bench);
    Case c = new_case(F64, COLUMN_MAJOR, 5, 23);
    put(&c.targets, 1, 22);
    put(&c.targets, 4, 11);
    run_steps(&c, 0);
    expect_gradient("dlogits", loss_value, &c, &c.logits, &c.dlogits, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),    cmocka_unit_test(no_rows),
        cmocka_unit_test(dead_rows), cmocka_unit_test(vocabulary_in_parts),
        cmocka_unit_test(gradient),  cmocka_unit_test(fused),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: loss", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}
