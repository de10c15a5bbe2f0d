/* The end of a step on the GPU: sums of squares, AdamW, SGD, one by one and as lists; and the queues
 * and events that order it all. */
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

static Call update_call(int64_t n, DType grad, Lay lay)
{
    Call c = {.n_in = 1, .n_out = 3, .number = {3e-3, 0.7, 0.271, 0.0297}};
    c.attr.adamw.beta1 = 0.9, c.attr.adamw.beta2 = 0.99;
    c.attr.adamw.eps = 1e-8, c.attr.adamw.decay = 0.1;
    c.in[0] = RANDOM(&gpu.b, grad, lay, n);
    for (int o = 0; o < 3; o++) c.out[o] = RANDOM(&gpu.b, F32, lay, n);
    for (int64_t i = 0; i < n; i++) put(&c.out[2], i, fabs(get(&c.out[2], i)));
    return c;
}

static void updates(void **state)
{
    (void)state;
    for (int i = 0; i < N_COUNTS; i++)
        for (int variant = 0; variant < 6; variant++) {
            Call c = update_call(counts[i], gpu_types[variant % 2], (Lay)(variant / 2));
            expect_like_ref(KERNEL_adamw, &c, gpu_terms(16), 0);
            c = update_call(counts[i], gpu_types[variant % 2], (Lay)(variant / 2));
            c.n_out = 1;
            c.attr.sgd.decay = 0.1;
            expect_like_ref(KERNEL_sgd, &c, gpu_terms(16), 0);
        }
}

/* Squares, clip and AdamW as lists, against the kernels on the same bytes. */
static void lists(void **state)
{
    (void)state;
    enum { N = N_COUNTS };
    Call c[N];
    Tensor weight[N];
    SquaresPiece square[N];
    UpdatePiece piece[N];
    const Tensor sums = RANDOM(&gpu.b, F64, DENSE, N), out = NEW(&gpu.b, F64, DENSE, 2);
    const size_t room = (size_t)1 << 25;
    char *host = malloc(2 * room), *single = host + room;
    double total = 0;
    assert_non_null(host);
    for (int i = 0; i < N; i++) {
        c[i] = update_call(counts[i], gpu_types[i % 2], DENSE);
        weight[i] = NEW(&gpu.b, BF16, DENSE, counts[i]);
        const Call on = call_on_gpu(&c[i]);
        square[i] = (SquaresPiece){on.in[0].data, counts[i], (double *)on_gpu(sums).data + i, i % 2,
                                   on.in[0].dtype};
        piece[i] = (UpdatePiece){on.in[0].data,
                                 on.out[0].data,
                                 on.out[1].data,
                                 on.out[2].data,
                                 i == 3 ? NULL : on_gpu(weight[i]).data,
                                 counts[i],
                                 i % 3 ? 0.1 : 0,
                                 on.in[0].dtype};
    }
    const size_t bytes = gpu.b.arena.used_bytes;
    assert_true(bytes <= room);
    gpu_ok(gpu.m->copy(gpu.q, gpu.base, gpu.b.arena.base, bytes));
    DeviceList *squares, *update;
    gpu_ok(gpu.m->squares_open(gpu.context, square, N, &squares));
    gpu_ok(gpu.m->update_open(gpu.context, piece, N, &update));
    const double mean_max[2] = {0.01, 0.5};
    const Tensor on_out = on_gpu(out);
    const UpdateNumbers numbers = {3e-3, 0.9, 0.99, 1e-8, 0.271, 0.0297, on_out.data};
    gpu_ok(gpu.m->squares_run(gpu.q, squares));
    gpu_ok(gpu.m->clip(gpu.q, on_gpu(sums).data, N, mean_max, on_out.data));
    gpu_ok(gpu.m->update_run(gpu.q, update, &numbers));
    gpu_ok(gpu.m->copy(gpu.q, host, gpu.base, bytes));
    gpu_ok(gpu.m->sync(gpu.q));
    gpu.m->list_close(squares);
    gpu.m->list_close(update);
    gpu.calls++;

    const Tensor got_sums = {host + ((char *)sums.data - gpu.b.arena.base), F64, 1, {N}, {1}};
    const double *got_out = (const double *)(void *)(host + ((char *)out.data - gpu.b.arena.base));
    for (int i = 0; i < N; i++) { /* the kernel of one tensor gives the same bits */
        Call s = {.n_in = 1, .n_out = 1, .in = {c[i].in[0]}, .number = {i % 2}};
        s.out[0] = sums;
        s.out[0].n[0] = 1;
        s.out[0].data = (double *)sums.data + i;
        run_on_gpu(KERNEL_sum_squares, &s, gpu.b.arena.base, single);
        const double want =
            *(const double *)(void *)(single + ((char *)s.out[0].data - gpu.b.arena.base));
        if (get(&got_sums, i) != want)
            fail_msg("squares %d: %.17g, by the kernel %.17g", i, get(&got_sums, i), want);
        total += want;
    }
    const double norm = sqrt(total) * mean_max[0];
    assert_true(fabs(got_out[1] - norm) <= 1e-14 * norm);
    const double factor = norm > mean_max[1] ? mean_max[0] * (mean_max[1] / norm) : mean_max[0];
    assert_true(norm > mean_max[1]);
    assert_true(fabs(got_out[0] - factor) <= 1e-14 * factor);
    for (int i = 0; i < N; i++) {
        Call one = c[i];
        one.number[1] = got_out[0];
        one.attr.adamw.decay = i % 3 ? 0.1 : 0;
        run_on_gpu(KERNEL_adamw, &one, gpu.b.arena.base, single);
        for (int o = 0; o < 3; o++) {
            const size_t at = (size_t)((char *)c[i].out[o].data - gpu.b.arena.base);
            for (int64_t k = 0; k < counts[i]; k++) {
                float list, kernel;
                memcpy(&list, host + at + 4 * k, 4);
                memcpy(&kernel, single + at + 4 * k, 4);
                if (list != kernel)
                    fail_msg("list %d output %d [%d]: %g, %g", i, o, (int)k, (double)list,
                             (double)kernel);
                if (o > 0 || i == 3) continue;
                uint16_t half;
                memcpy(&half, host + ((char *)weight[i].data - gpu.b.arena.base) + 2 * k, 2);
                const uint32_t wide = (uint32_t)half << 16;
                float rounded;
                memcpy(&rounded, &wide, 4);
                assert_true(fabsf(rounded - list) <= ldexpf(fabsf(list), -8));
            }
        }
    }
    free(host);
    bench_clear(&gpu.b);
}

/* One queue waits for another; host memory is seen by kernels; what is asked too much is told. */
static void queues(void **state)
{
    (void)state;
    enum { N = 1 << 22 };
    DeviceEvent *event;
    float *host;
    Tensor x = {.dtype = F32, .ndim = 1, .n = {N}, .stride = {1}}, y = x;
    DeviceQueue *copies = gpu.m->queue(gpu.context, LANE_D2H);
    void *much;
    bool done = false;
    gpu_ok(gpu.m->event_open(gpu.context, &event));
    gpu_ok(gpu.m->alloc_host(gpu.context, N * sizeof *host, (void **)&host));
    for (int i = 0; i < N; i++) host[i] = (float)i;
    x.data = host; /* read over the bus */
    y.data = gpu.base;
    for (int i = 0; i < 20; i++) { /* y = -y, in the end x itself */
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
