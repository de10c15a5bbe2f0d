/* test_ranks_shadow.c -- ranks on a device whose queues run late: numbers and bytes sent are equal
 * to those of ranks on the host, to the bit, at any timing. The host never accesses device memory
 * (it would crash), and nothing stays open. The device is the shadow of `ref`
 * (support/shadow.h). */
#include "support/expect.h"

#include "support/device_rows.h"
#include "support/shadow.h"

static void closed(const char *name)
{
    const ShadowCount count = shadow_count();
    if (count.contexts != 0 || count.bytes != 0)
        fail_msg("%s: %lld contexts and %lld bytes are left open", name, (long long)count.contexts,
                 (long long)count.bytes);
}

static void same(const char *name, const WorldResult *want, const World *w)
{
    WorldResult got;
    char what[128];
    if (world_run_job(w, &got) != OK) fail_msg("%s: %s", name, err_text());
    if (!world_equal(want, &got, what)) fail_msg("%s: %s", name, what);
    for (int k = 0; k < N_COMM_KINDS; k++)
        if (got.sent[k] != want->sent[k])
            fail_msg("%s: %lld bytes sent by %s, %lld on the host", name, (long long)got.sent[k],
                     comm_kind_name((CommKind)k), (long long)want->sent[k]);
    if (got.scalars_sent != want->scalars_sent) fail_msg("%s: scalars differ", name);
    world_result_close(&got);
    closed(name);
}

static void every_layout(void **state)
{
    (void)state;
    for (int i = 0; i < n_device_rows; i++) {
        ModelConfig config;
        WorldResult want;
        World w = device_world(&device_rows[i], &device_ref, &config);
        DO(world_run_job(&w, &want));
        w.device = &device_shadow;
        for (int pace = SHADOW_COIN; pace <= SHADOW_LATEST; pace++) {
            shadow_set((uint64_t)i, (ShadowPace)pace);
            same(device_rows[i].name, &want, &w);
            const ShadowCount count = shadow_count();
            assert_true(count.ran > 100 && count.late > count.ran / 10);
        }
        world_result_close(&want);
    }
}

/* Runs a row's world on `ref`, then on the shadow as changed by `how`, and compares. */
static void same_as_ref(int row, uint64_t seed, void (*how)(World *w, int row))
{
    ModelConfig config;
    WorldResult want;
    World w = device_world(&device_rows[row], &device_ref, &config);
    w.steps = 2;
    DO(world_run_job(&w, &want));
    w.device = &device_shadow;
    how(&w, row);
    shadow_set(seed + (uint64_t)row, SHADOW_COIN);
    same(device_rows[row].name, &want, &w);
    world_result_close(&want);
}

/* Ranks with jitter, and a hostile comm. */
static void be_late(World *w, int row)
{
    w->hostile = true;
    w->jitter_s = 2e-4;
    w->seed = (uint64_t)row;
}

static void any_timing(void **state)
{
    (void)state;
    for (int i = 4; i < n_device_rows; i += 3) same_as_ref(i, 100, be_late);
}

/* Transfers through host memory, as for backends without device transport. */
static void be_staged(World *w, int row)
{
    (void)row;
    w->staged = true;
}

static void staged(void **state)
{
    (void)state;
    for (int i = 4; i < n_device_rows; i++) same_as_ref(i, 200, be_staged);
}

/* Autotuning before the first step and before a validation between steps, in every layout, leaves
 * the results unchanged. */
static void be_tuned(World *w, int row)
{
    (void)row;
    w->autotune = true;
}

static void tuned(void **state)
{
    (void)state;
    shadow_set_candidates(1);
    for (int i = 0; i < n_device_rows; i++) same_as_ref(i, 300, be_tuned);
    shadow_set_candidates(0);
}

static Device limited;

static void be_limited(World *w, int row)
{
    (void)row;
    w->device = &limited;
    w->autotune = w->capture = true;
}

/* Optional tables of the runtime are NULL, one by one and all together. Without lists the kernels
 * sum_squares, adamw and sgd run instead. The results are those of the host in every case. */
static void optional_tables(void **state)
{
    (void)state;
    for (int without = 1; without < 8; without++) {
        DeviceRuntime runtime;
        const bool all = without == 7;
        if (!all && (without & (without - 1))) continue; /* pairs: covered by the others */
        limited = shadow_without(without & 1, without & 2, without & 4, &runtime);
        for (int i = 0; i < n_device_rows; i += without & 1 ? 1 : 6)
            same_as_ref(i, 400, be_limited);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_layout), cmocka_unit_test(any_timing),
                                       cmocka_unit_test(staged), cmocka_unit_test(tuned),
                                       cmocka_unit_test(optional_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
