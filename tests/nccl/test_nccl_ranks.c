/* Whole training steps with NCCL: dp, ZeRO 1 to 3, tp, sp, pipelines, mixes. With the stand-in,
 * which adds in the order of ranks, the numbers equal those of `local` on the host to the bit, and
 * so do the bytes sent. On a GPU: one rank as without NCCL; several as by direct copies, within
 * rounding. */
#define _GNU_SOURCE
#include "support/expect.h"

#include <math.h>
#include "nccl/nccl_test.h"
#include "support/device_rows.h"

static const char *word; /* only rows with it in their names; NULL: all */

static bool is_left_out(const DeviceRow *row) { return word && !strstr(row->name, word); }

static void run_world(const char *name, const World *w, WorldResult *out)
{
    if (world_run_job(w, out) != OK) fail_msg("%s: %s", name, err_text());
}

static void compare(const char *name, const WorldResult *want, const WorldResult *got)
{
    char what[128];
    if (!world_equal(want, got, what)) fail_msg("%s: %s", name, what);
    for (int k = 0; k < N_COMM_KINDS; k++)
        if (got->sent[k] != want->sent[k])
            fail_msg("%s: %lld bytes sent by %s, %lld on the host", name, (long long)got->sent[k],
                     comm_kind_name((CommKind)k), (long long)want->sent[k]);
}

/* Every transfer of device memory was a launch, except empty ones; scalars are on the host. */
static void books(const char *name, const WorldResult *r)
{
    const StandinCount count = setup.count();
    const ShadowCount left = shadow_count();
    if (count.misuses > 0) fail_msg("%s: %s", name, count.misuse);
    if (count.open != 0 || count.aborted != 0) fail_msg("%s: communicators are left", name);
    if (left.contexts != 0 || left.bytes != 0) fail_msg("%s: contexts are left", name);
    if (count.opened != r->channels)
        fail_msg("%s: %lld communicators, %lld predicted", name, (long long)count.opened,
                 (long long)r->channels);
    if (r->ranks > 1 && count.launches < r->ranks) fail_msg("%s: NCCL was not called", name);
    printf("%-14s %d ranks: %lld communicators, %lld launches, %lld of several calls\n", name,
           r->ranks, (long long)count.opened, (long long)count.launches, (long long)count.grouped);
}

/* On a GPU, the values that a step computes before its update, within rounding: NCCL chooses the
 * order of sums. The bounds are those of test_cuda_ranks. */
static void compare_near(const char *name, DType dtype, const WorldResult *want,
                         const WorldResult *got)
{
    const double bound = dtype == BF16 ? 6e-2 : 7e-5;
    const double loss = fabs(got->loss[0] / want->loss[0] - 1);
    const double norm = fabs(got->norm[0] / want->norm[0] - 1);
    const double grad = world_differ(want, got, PART_GRAD);
    printf("%-18s %d ranks: loss %.1e, norm %.1e, gradients %.1e from direct copies\n", name,
           got->ranks, loss, norm, grad);
    if (!(loss <= bound && norm <= bound && grad <= bound)) fail_msg("%s: too far", name);
    for (int k = 0; k < N_COMM_KINDS; k++)
        if (got->sent[k] != want->sent[k])
            fail_msg("%s: %lld bytes sent by %s, %lld wanted", name, (long long)got->sent[k],
                     comm_kind_name((CommKind)k), (long long)want->sent[k]);
}

static void every_layout(void **state)
{
    (void)state;
    for (int i = 0; i < n_device_rows; i++) {
        const DeviceRow *row = &device_rows[i];
        ModelConfig config;
        WorldResult want, got;
        World w = device_world(row, &device_ref, &config);
        const bool alone = row->dp <= 1 && row->tp <= 1 && row->pp <= 1 && row->cp <= 1;
        w.sums = true; /* host transfers in the group of all ranks, which may be that of tp */
        if ((!setup.on_shadow && !setup.many && !alone) || is_left_out(row)) continue;
        if (!setup.on_shadow) {
            w.device = setup.device;
            w.init = true;
            w.validate = false;
            w.steps = alone ? 3 : 1;
        }
        run_world(row->name, &w, &want);
        w.device = setup.device;
        w.nccl = &setup.nccl;
        if (setup.on_shadow) shadow_set((uint64_t)i, i % 2 ? SHADOW_COIN : SHADOW_LATEST);
        const Err err = world_run_job(&w, &got);
        if (err == ERR_CONFIG && !setup.on_shadow && strstr(err_text(), "as threads on one GPU")) {
            printf("SKIPPED: %s as threads: %s\n", row->name, err_text());
            world_result_close(&want);
            continue;
        }
        if (err != OK) fail_msg("%s: %s", row->name, err_text());
        if (setup.on_shadow || alone)
            compare(row->name, &want, &got);
        else
            compare_near(row->name, w.set.dtype, &want, &got);
        if (setup.on_shadow) books(row->name, &got);
        world_result_close(&want);
        world_result_close(&got);
    }
}

/* Loading code may wait for all of the GPU, and so for a transfer that needs this rank: every
 * kernel is called before the first transfer. */
static void nothing_is_loaded_between_transfers(void **state)
{
    (void)state;
    for (int i = 4; setup.on_shadow && i < n_device_rows; i++) {
        ModelConfig config;
        WorldResult got;
        World w = device_world(&device_rows[i], setup.device, &config);
        w.steps = 2;
        w.validate = false;
        w.nccl = &setup.nccl;
        shadow_unload();
        run_world(device_rows[i].name, &w, &got);
        if (shadow_count().loaded_late > 0)
            fail_msg("%s: %lld kernels are loaded beside transfers", device_rows[i].name,
                     (long long)shadow_count().loaded_late);
        world_result_close(&got);
    }
}

/* True if all transfers of the row are collectives, and the host need not count rounds. */
static bool is_captured(const DeviceRow *row)
{
    return !row->rounds && row->pp <= 1 && (row->dp > 1 || row->tp > 1) && row->cp <= 1;
}

/* Steps as graphs with their transfers: the bits, and the bytes sent, of steps that are walked. */
static void as_graphs(void **state)
{
    (void)state;
    int rows = 0;
    for (int i = 0; i < n_device_rows; i++) {
        const DeviceRow *row = &device_rows[i];
        ModelConfig config;
        WorldResult want, got;
        if (!is_captured(row) || !setup.on_shadow) continue;
        World w = device_world(row, setup.device, &config);
        w.steps = 5;
        w.sums = true;
        w.validate = false;
        w.pattern = 0x3C; /* all rows are live, in every step */
        w.nccl = &setup.nccl;
        run_world(row->name, &w, &want);
        (void)setup.count();
        w.capture = true;
        shadow_set((uint64_t)i, i % 2 ? SHADOW_COIN : SHADOW_LATEST);
        run_world(row->name, &w, &got);
        compare(row->name, &want, &got);
        books(row->name, &got);
        if (got.captured != got.ranks || got.launched != got.ranks * (w.steps - 1))
            fail_msg("%s: %lld captures, %lld launches", row->name, (long long)got.captured,
                     (long long)got.launched);
        rows++;
        world_result_close(&want);
        world_result_close(&got);
    }
    printf("%d layouts as graphs\n", rows);
    assert_true(rows > 0 || !setup.on_shadow);
}

/* Sends among more than two threads on a GPU need the user's word. */
static void sends_of_threads_are_refused(void **state)
{
    (void)state;
    ModelConfig config;
    WorldResult got;
    int row = 0;
    while (row < n_device_rows && strcmp(device_rows[row].name, "mix") != 0) row++;
    World w = device_world(&device_rows[row], setup.device, &config);
    if (!setup.on_shadow) skip();
    w.nccl = &setup.nccl;
    unsetenv("SHEAF_NCCL_THREADS");
    assert_int_equal(world_run_job(&w, &got), ERR_CONFIG);
    setenv("SHEAF_NCCL_THREADS", "1", 1);
    assert_non_null(strstr(err_text(), "4 ranks as threads on one GPU send to single ranks"));
    (void)setup.count();
}

/* Several ranks cannot go on without a graph that one of them has not: the run ends, and the
 * message has the way out. */
static void a_refused_graph_ends_the_run(void **state)
{
    (void)state;
    ModelConfig config;
    WorldResult got;
    World w = device_world(&device_rows[4], setup.device, &config);
    if (!setup.on_shadow) skip();
    w.steps = 3;
    w.pattern = 0x3C;
    w.nccl = &setup.nccl;
    w.capture = true;
    shadow_refuse_capture_at(20);
    assert_int_equal(world_run_job(&w, &got), ERR_IO);
    shadow_refuse_capture_at(-1);
    assert_non_null(strstr(err_text(), "a library cannot be captured"));
    assert_non_null(strstr(err_text(), "run.capture=off avoids it"));
    (void)setup.count();
}

/* Ranks that sleep at random, posts that are late. */
static void any_timing(void **state)
{
    (void)state;
    for (int i = 4; setup.on_shadow && i < n_device_rows; i += 2) {
        ModelConfig config;
        WorldResult want, got;
        World w = device_world(&device_rows[i], &device_ref, &config);
        w.steps = 2;
        run_world(device_rows[i].name, &w, &want);
        w.device = setup.device;
        w.nccl = &setup.nccl;
        w.hostile = true;
        w.jitter_s = 2e-4;
        w.seed = (uint64_t)i;
        shadow_set(100 + (uint64_t)i, SHADOW_COIN);
        run_world(device_rows[i].name, &w, &got);
        compare(device_rows[i].name, &want, &got);
        books(device_rows[i].name, &got);
        world_result_close(&want);
        world_result_close(&got);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_layout),
                                       cmocka_unit_test(nothing_is_loaded_between_transfers),
                                       cmocka_unit_test(as_graphs),
                                       cmocka_unit_test(a_refused_graph_ends_the_run),
                                       cmocka_unit_test(sends_of_threads_are_refused),
                                       cmocka_unit_test(any_timing)};
    const int status = graph_test_open(argc, argv);
    if (status != 0) return status;
    if (argc > 3) word = argv[3];
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (setup.on_shadow) shadow_run_async(false);
    return failed;
}
