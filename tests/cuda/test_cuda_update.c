/* The optimizer on the GPU: sums of squares, AdamW, SGD, one by one and as lists; and the queues
 * and events that order them. */
#include "gpu_test.h"

static const int64_t counts[] = {0, 1, 7, 64, 1000, 65536, 65544, 200001};
enum { N_COUNTS = sizeof counts / sizeof *counts };

static void sum_squares(void **state)
{
    (void)state;
    for (int i = 0; i < N_COUNTS; i++)
        for (int variant = 0; variant < 6; variant++) {
            const double keep = gpu_keeps[variant % 3];
            Call c = {.n_in = 1, .n_out = 1, .number = {keep}};
            c.in[0] =
                RANDOM(&gpu.b, gpu_types[variant % 2], variant == 4 ? PADDED : DENSE, counts[i]);
            c.out[0] = accumulator(&gpu.b, NEW(&gpu.b, F64, DENSE, 1), keep);
            expect_like_ref(KERNEL_sum_squares, &c, ldexp((double)counts[i] + 16, -53), 0);
        }
}

static Call update_call(int64_t n, DType grad, Strides strides)
{
    Call c = {.n_in = 1, .n_out = 3, .number = {3e-3, 0.7, 0.271, 0.0297}};
    c.attr.adamw.beta1 = 0.9, c.attr.adamw.beta2 = 0.99;
    c.attr.adamw.eps = 1e-8, c.attr.adamw.decay = 0.1;
    c.in[0] = RANDOM(&gpu.b, grad, strides, n);
    for (int o = 0; o < 3; o++) c.out[o] = RANDOM(&gpu.b, F32, strides, n);
    for (int64_t i = 0; i < n; i++) put(&c.out[2], i, fabs(get(&c.out[2], i)));
    return c;
}

static void updates(void **state)
{
    (void)state;
    for (int i = 0; i < N_COUNTS; i++)
        for (int variant = 0; variant < 6; variant++) {
            Call c = update_call(counts[i], gpu_types[variant % 2], (Strides)(variant / 2));
            expect_like_ref(KERNEL_adamw, &c, gpu_terms(16), 0);
            c = update_call(counts[i], gpu_types[variant % 2], (Strides)(variant / 2));
            c.n_out = 1;
            c.attr.sgd.decay = 0.1;
            expect_like_ref(KERNEL_sgd, &c, gpu_terms(16), 0);
        }
}

/* Tensors of an optimizer step, as calls for the kernels and as pieces for the lists. */
typedef struct {
    Call call[N_COUNTS];
    Tensor weight[N_COUNTS], sums, out, own;
    SquaresPiece square[N_COUNTS];
    UpdatePiece piece[N_COUNTS];
    char *listed, *single; /* the arena after the lists; after a kernel */
} Step;

static const double mean_max[2] = {0.01, 0.5};
static const UpdateRates rates = {3e-3, 0.271, 0.0297};

/* A tensor's bytes in a copy of the arena. */
static char *in_copy(char *copy, const void *data)
{
    return copy + ((const char *)data - gpu.b.arena.base);
}

static void step_make(Step *s)
{
    s->sums = RANDOM(&gpu.b, F64, DENSE, N_COUNTS);
    s->out = NEW(&gpu.b, F64, DENSE, 2);
    s->own = NEW(&gpu.b, F64, DENSE, 4); /* mean, rates */
    memcpy(s->own.data, mean_max, sizeof(double));
    memcpy((double *)s->own.data + 1, &rates, sizeof rates);
    for (int i = 0; i < N_COUNTS; i++) {
        const int64_t n = counts[i];
        s->call[i] = update_call(n, gpu_types[i % 2], DENSE);
        s->call[i].attr.adamw.decay = i % 3 ? 0.1 : 0;
        s->weight[i] = NEW(&gpu.b, BF16, DENSE, n);
        const Call on = call_on_gpu(&s->call[i]);
        const DType type = on.in[0].dtype;
        s->square[i] =
            (SquaresPiece){on.in[0].data, n, (double *)on_gpu(s->sums).data + i, i % 2, type};
        s->piece[i] = (UpdatePiece){on.in[0].data,
                                    on.out[0].data,
                                    on.out[1].data,
                                    on.out[2].data,
                                    i == 3 ? NULL : on_gpu(s->weight[i]).data,
                                    n,
                                    s->call[i].attr.adamw.decay,
                                    type,
                                    0,
                                    0};
    }
    const size_t room = (gpu.b.arena.used_bytes + 63) / 64 * 64;
    s->listed = malloc(2 * room);
    assert_non_null(s->listed);
    s->single = s->listed + room;
}

static void step_run(const Step *s)
{
    const size_t bytes = gpu.b.arena.used_bytes;
    double *const out = on_gpu(s->out).data;
    const double *mean = on_gpu(s->own).data;
    const UpdateNumbers numbers = {.beta1 = 0.9,
                                   .beta2 = 0.99,
                                   .eps = 1e-8,
                                   .rates = (const UpdateRates *)(const void *)(mean + 1),
                                   .factor = out};
    DeviceList *squares, *update;
    gpu_ok(gpu.m->copy(gpu.q, gpu.base, gpu.b.arena.base, bytes));
    gpu_ok(gpu.m->lists->squares_open(gpu.context, s->square, N_COUNTS, NULL, &squares));
    gpu_ok(gpu.m->lists->update_open(gpu.context, s->piece, N_COUNTS, NULL, &update));
    gpu_ok(gpu.m->lists->squares_run(gpu.q, squares));
    gpu_ok(gpu.m->lists->clip(gpu.q, &(DeviceClip){.sums = on_gpu(s->sums).data,
                                                   .n = N_COUNTS,
                                                   .mean = mean,
                                                   .max_norm = mean_max[1],
                                                   .out = out}));
    gpu_ok(gpu.m->lists->update_run(gpu.q, update, &numbers));
    gpu_ok(gpu.m->copy(gpu.q, s->listed, gpu.base, bytes));
    gpu_ok(gpu.m->sync(gpu.q));
    gpu.m->lists->list_close(squares);
    gpu.m->lists->list_close(update);
    gpu.calls++;
}

/* The kernel of one tensor gives the same bits; the clip factor follows from their norm. */
static void check_squares(const Step *s)
{
    const double *got = (const double *)(void *)in_copy(s->listed, s->sums.data);
    const double *out = (const double *)(void *)in_copy(s->listed, s->out.data);
    double total = 0;
    for (int i = 0; i < N_COUNTS; i++) {
        Call c = {.in = {s->call[i].in[0]}, .n_in = 1, .n_out = 1, .number = {i % 2}};
        c.out[0] = s->sums;
        c.out[0].n[0] = 1;
        c.out[0].data = (double *)s->sums.data + i;
        run_on_gpu(KERNEL_sum_squares, &c, gpu.b.arena.base, s->single);
        const double want = *(const double *)(void *)in_copy(s->single, c.out[0].data);
        if (got[i] != want) fail_msg("squares %d: %.17g, by the kernel %.17g", i, got[i], want);
        total += want;
    }
    const double norm = sqrt(total) * mean_max[0], factor = mean_max[0] * (mean_max[1] / norm);
    assert_true(norm > mean_max[1]);
    assert_true(fabs(out[1] - norm) <= 1e-14 * norm);
    assert_true(fabs(out[0] - factor) <= 1e-14 * factor);
}

/* The list's results of tensor i against the kernel's bits, and its bf16 weights. */
static void check_update(const Step *s, int i)
{
    for (int o = 0; o < 3; o++) {
        const void *at = s->call[i].out[o].data;
        const float *list = (const float *)(void *)in_copy(s->listed, at);
        const float *kernel = (const float *)(void *)in_copy(s->single, at);
        for (int64_t k = 0; k < counts[i]; k++)
            if (list[k] != kernel[k])
                fail_msg("list %d output %d [%d]: %g, by the kernel %g", i, o, (int)k,
                         (double)list[k], (double)kernel[k]);
    }
    if (i == 3) return; /* it has no bf16 weights */
    Tensor weight = s->weight[i], master = s->call[i].out[0];
    weight.data = in_copy(s->listed, weight.data);
    master.data = in_copy(s->listed, master.data);
    for (int64_t k = 0; k < counts[i]; k++)
        assert_true(fabs(get(&weight, k) - get(&master, k)) <= ldexp(fabs(get(&master, k)), -8));
}

/* Squares, clip and AdamW as lists, against the kernels on the same bytes. */
static void lists(void **state)
{
    (void)state;
    Step s;
    step_make(&s);
    step_run(&s);
    check_squares(&s);
    for (int i = 0; i < N_COUNTS; i++) {
        Call one = s.call[i];
        one.number[1] = *(const double *)(void *)in_copy(s.listed, s.out.data);
        run_on_gpu(KERNEL_adamw, &one, gpu.b.arena.base, s.single);
        check_update(&s, i);
    }
    free(s.listed);
    bench_clear(&gpu.b);
}

/* One queue waits for another; kernels read host memory; too large an allocation is refused. */
static void queues(void **state)
{
    (void)state;
    enum { N = 1 << 22 };
    DeviceEvent *event;
    float *host;
    Tensor x = {.dtype = F32, .ndim = 1, .n = {N}, .stride = {1}}, y = x;
    DeviceQueue *copies = gpu.m->queue(gpu.context, QUEUE_D2H);
    void *much;
    bool done = false;
    gpu_ok(gpu.m->event_open(gpu.context, &event));
    gpu_ok(gpu.m->alloc_host(gpu.context, N * sizeof *host, (void **)&host));
    for (int i = 0; i < N; i++) host[i] = (float)i;
    x.data = host; /* read over the bus */
    y.data = gpu.base;
    for (int i = 0; i < 20; i++) { /* y = -y; the last is -x */
        const Call c = {.in = {i ? y : x},
                        .n_in = 1,
                        .out = {y},
                        .n_out = 1,
                        .attr = {.scale = {i ? -1 : 1}},
                        .queue = gpu.q};
        gpu_ok(gpu.device->kernel[KERNEL_scale](&c));
    }
    gpu_ok(gpu.m->record(gpu.q, event));
    gpu_ok(gpu.m->wait(copies, event));
    gpu_ok(gpu.m->copy(copies, host, gpu.base, N * sizeof *host));
    gpu_ok(gpu.m->sync(copies));
    gpu_ok(gpu.m->done(event, &done));
    assert_true(done);
    for (int i = 0; i < N; i++) assert_true(host[i] == -(float)i);
    gpu_ok(gpu.m->set(gpu.q, gpu.base, 0xff, 64));
    gpu_ok(gpu.m->copy(gpu.q, host, gpu.base, 128));
    gpu_ok(gpu.m->sync(gpu.q));
    assert_true(isnan(host[15]) && !isnan(host[16]));
    assert_int_equal(gpu.m->alloc(gpu.context, (size_t)1 << 60, &much), ERR_NOMEM);
    assert_non_null(strstr(err_text(), "free of"));
    gpu.m->free_host(gpu.context, host);
    gpu.m->event_close(event);
    gpu.calls++;
    DeviceInfo info;
    gpu_ok(gpu.m->info(gpu.context, &info));
    printf("%s; %zu of %zu bytes free, %zu of workspace\n", info.name, info.free_bytes,
           info.total_bytes, info.workspace_bytes);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(sum_squares), cmocka_unit_test(updates),
                                          cmocka_unit_test(lists), cmocka_unit_test(queues)};

GPU_MAIN(tests)
