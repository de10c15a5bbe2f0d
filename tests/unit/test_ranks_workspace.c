/* The memory that a device takes beside tensors, without a device: sizes of scratch in 64 bits,
 * room for the lists of the optimizer in every layout, and one number for ranks of a class. */
#include "support/expect.h"

#include "device/cuda/scratch.h"
#include "device/cuda_workspace.h"
#include "device/runtime.h"
#include "plan/simulate.h"
#include "support/device_rows.h"
#include "support/shadow.h"

static Tensor of(DType type, int ndim, const int64_t *n)
{
    Tensor t = {.dtype = type, .ndim = ndim};
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t.n[i] = n[i];
        t.stride[i] = step;
        step *= n[i];
    }
    return t;
}
#define T(type, ...)                                                                               \
    of(type, sizeof((const int64_t[]){__VA_ARGS__}) / 8, (const int64_t[]){__VA_ARGS__})

static Call attention_dx(int64_t t, int64_t h, int64_t g, int64_t c)
{
    Call a = {.n_in = 7, .n_out = 3};
    a.in[0] = a.in[4] = a.in[6] = a.out[0] = T(BF16, t, h, c);
    a.in[1] = a.in[2] = a.out[1] = a.out[2] = T(BF16, t, g, c);
    a.in[3] = T(I32, t, 4), a.in[5] = T(F32, t, h);
    return a;
}

/* The sums of dq in f32 are most of the scratch of attention's gradient. */
static void sums_of_dq(void **state)
{
    (void)state;
    const int64_t t = 32768, h = 32, c = 128;
    Call a = attention_dx(t, h, 8, c);
    const size_t sums = sizeof(float) * (size_t)(t * h * c);
    const size_t own = cuda_workspace.scratch(KERNEL_attention_dx, &a);
    assert_true(own > sums && own < sums + sums / 8);
    a.attr.attention.causal = t; /* then cuDNN may run it, with dk and dv of each head */
    assert_true(cuda_workspace.scratch(KERNEL_attention_dx, &a) > 2 * sums);
    a = attention_dx(t, 8, 8, c);
    a.attr.attention.causal = t;
    assert_true(cuda_workspace.scratch(KERNEL_attention_dx, &a) < sums / 4 + sums / 16);
    a = attention_dx((int64_t)1 << 20, h, 8, c); /* more than 2^32 bytes */
    assert_true(cuda_workspace.scratch(KERNEL_attention_dx, &a) > (size_t)1 << 34);
}

/* More elements than an int counts: 65,536 rows of 50,304 words. */
static void large_losses(void **state)
{
    (void)state;
    Call c = {.n_in = 3, .n_out = 2};
    c.in[0] = c.out[0] = T(BF16, 65536, 50304);
    c.out[1] = T(F32, 1);
    assert_int_equal(cuda_workspace.scratch(KERNEL_token_loss_dx, &c), 8 * 65537);
    c.in[0] = T(BF16, (int64_t)65536 * 50304);
    assert_int_equal(cuda_workspace.scratch(KERNEL_sum_squares, &c), 8 * (50304 + 1));
    c = (Call){.n_in = 2, .n_out = 1};
    c.in[0] = T(BF16, 1 << 24, 16384), c.in[1] = T(I32, 1 << 24), c.out[0] = T(F32, 128256, 16384);
    assert_true(cuda_workspace.scratch(KERNEL_embedding_dw, &c) > (size_t)1 << 36);
    assert_int_equal(cuda_workspace.scratch(KERNEL_add, &c), 0);
}

static size_t no_scratch(KernelId id, const Call *call)
{
    (void)id;
    (void)call;
    return 0;
}

/* Lists of the shadow device take their room of the step arena, or fail. */
static void lists_have_room(void **state)
{
    (void)state;
    const DeviceWorkspace workspace = {.scratch = no_scratch,
                                       .squares = device_shadow.runtime->lists->squares_shape,
                                       .update = device_shadow.runtime->lists->update_shape};
    for (int i = 0; i < n_device_rows; i++) {
        ModelConfig config;
        WorldResult got;
        World w = device_world(&device_rows[i], &device_shadow, &config);
        w.set.workspace = &workspace;
        w.steps = 1;
        if (world_run_job(&w, &got) != OK) fail_msg("%s: %s", device_rows[i].name, err_text());
        world_result_close(&got);
    }
}

/* Homes of equal size have other parameters in them, but take equal room. */
static void classes(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero += 3) {
        Arena arena, temp;
        Simulation all;
        Mesh mesh;
        JobSettings set = test_job_settings("llama", JOB_STEP);
        set.dtype = BF16;
        set.workspace = &cuda_workspace;
        set.parallel.mesh = (MeshSizes){.dp_shard = 5, .tp = 2};
        set.parallel.zero = zero;
        DO(arena_open(&arena, "simulation", ARENA_PLENTY));
        DO(arena_open(&temp, "temp", ARENA_PLENTY));
        DO(job_mesh(&set, &mesh));
        const SimulateInput in = {.job = &set, .mesh = &mesh};
        DO(simulate(&in, &arena, &temp, &all));
        const RankCount *c = &all.class[all.greatest].count;
        assert_int_equal(c->bytes[ARENA_KERNELS], BLAS_SCRATCH);
        size_t sum = c->save_bytes + c->valid_bytes + c->pinned_bytes;
        for (int a = 0; a < N_ARENAS; a++) sum += c->bytes[a];
        assert_int_equal(sum, c->total_bytes);
        assert_true(c->pinned_bytes > STAGING_BYTES);
        assert_int_equal(rank_count_bytes(c, false),
                         sum - c->bytes[ARENA_HOST] - c->save_bytes - c->pinned_bytes);
        arena_close(&temp);
        arena_close(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_dq),
        cmocka_unit_test(large_losses),
        cmocka_unit_test(lists_have_room),
        cmocka_unit_test(classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
