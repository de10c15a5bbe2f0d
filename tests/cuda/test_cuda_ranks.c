/* Ranks on a GPU: losses, norms and gradients compared with `ref`; layouts of threads that share
 * the GPU compared with one rank on it; and runs that must be equal to the bit.
 *
 *     test_cuda_ranks [SHARED-OBJECT [WORD]]     exit status 77 and the reason: there is no GPU
 *
 * With a word, only the layouts that have it in their names. */
#include "support/expect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/registry.h"
#include "support/device_rows.h"

enum { SKIPPED = 77 };

static const Device *cuda;
static int on_gpu; /* worlds that ran on the GPU */
static const char *word = "";

static bool chosen(int row) { return strstr(device_rows[row].name, word) != NULL; }

static void run(const char *name, const World *w, WorldResult *out)
{
    if (world_run_job(w, out) != OK) fail_msg("%s: %s", name, err_text());
    on_gpu += w->device == cuda;
}

static double relative(double a, double b)
{
    const double off = fabs(a - b);
    return isfinite(off) ? off / fmax(fmax(fabs(a), fabs(b)), 1e-30) : HUGE_VAL;
}

/* Values of one step that were computed before its update. */
static double differ(const WorldResult *a, const WorldResult *b)
{
    const double off = fmax(relative(a->loss[0], b->loss[0]), relative(a->norm[0], b->norm[0]));
    return fmax(off, world_differ(a, b, PART_GRAD));
}

/* Bound on the gradients: about twenty sums of a thousand terms each. 8 u sqrt(20,000) is 7e-5 in
 * f32, and 2.2 with u = 2^-9; for bf16 it is PyTorch's own error instead, some percent. */
static double bound(DType t) { return t == BF16 ? 6e-2 : 7e-5; }

/* One step of every layout: close to `ref` in f32 on the same ranks. */
static void as_ref(void **state)
{
    (void)state;
    for (int i = 0; i < n_device_rows; i++) {
        if (!chosen(i)) continue;
        ModelConfig config;
        WorldResult want, got;
        World w = device_world(&device_rows[i], &device_ref, &config);
        const DType dtype = w.set.dtype;
        w.steps = 1;
        w.validate = false;
        w.init = true;
        w.set.dtype = F32;
        run(device_rows[i].name, &w, &want);
        w.set.dtype = dtype;
        w.device = cuda;
        run(device_rows[i].name, &w, &got);
        const double off = differ(&want, &got);
        printf("%-16s %s: %.2e from ref\n", device_rows[i].name, dtype_name(dtype), off);
        if (!(off <= bound(dtype))) fail_msg("%s: off by %g", device_rows[i].name, off);
        world_result_close(&want);
        world_result_close(&got);
    }
}

/* Three steps: close to the losses of one rank on the GPU. */
static void as_one_rank(void **state)
{
    (void)state;
    for (int i = 4; i < n_device_rows; i++) {
        if (!chosen(i)) continue;
        ModelConfig config;
        WorldResult one, many;
        World w = device_world(&device_rows[i], cuda, &config);
        const int dp = w.set.parallel.mesh.dp_shard > 0 ? w.set.parallel.mesh.dp_shard : 1;
        w.validate = false;
        w.init = true;
        run(device_rows[i].name, &w, &many);
        w.set.parallel = (ParallelSettings){.mesh = {1, 1, 1, 1}};
        w.set.schedule = "1f1b";
        if (dp > 1) w.set.micros *= dp;
        run(device_rows[i].name, &w, &one);
        for (int s = 0; s < w.steps; s++) {
            const double off = relative(one.loss[s], many.loss[s]);
            if (!(off <= (w.set.dtype == BF16 ? 2e-2 : 1e-4)) || one.live[s] != many.live[s])
                fail_msg("%s: step %d: loss %.9g, one rank %.9g", device_rows[i].name, s,
                         many.loss[s], one.loss[s]);
        }
        world_result_close(&one);
        world_result_close(&many);
    }
}

static void same(const char *name, const WorldResult *want, const World *w)
{
    WorldResult got;
    char what[128];
    run(name, w, &got);
    if (!world_equal(want, &got, what)) fail_msg("%s: %s", name, what);
    world_result_close(&got);
}

/* Equal bits: run to run; over the levels of ZeRO; with jitter and late transfers; staged by the
 * host. */
static void exact(void **state)
{
    (void)state;
    for (int i = 0; i < n_device_rows; i++) {
        if (!chosen(i)) continue;
        ModelConfig config;
        WorldResult want;
        World w = device_world(&device_rows[i], cuda, &config);
        w.init = true;
        w.validate = false;
        run(device_rows[i].name, &w, &want);
        w.hostile = true;
        w.jitter_s = 3e-4;
        w.seed = (uint64_t)i;
        same(device_rows[i].name, &want, &w);
        w.hostile = false;
        w.staged = true;
        same("staged", &want, &w);
        w.staged = false;
        for (int zero = 0; w.set.parallel.mesh.dp_shard > 1 && zero < 4; zero++) {
            w.set.parallel.zero = zero;
            if (zero < 2 || w.set.parallel.reduce_each) same("zero", &want, &w);
        }
        world_result_close(&want);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_ref), cmocka_unit_test(as_one_rank),
                                       cmocka_unit_test(exact)};
    if (argc > 2) word = argv[2];
    device_cuda_search(getenv("PATH"));
    if (device_open("cuda", argc > 1 ? argv[1] : NULL, &cuda) != OK) {
        printf("SKIPPED: ranks on a GPU: %s\n", err_text());
        return SKIPPED;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d worlds on the GPU\n", on_gpu);
    return failed || on_gpu == 0;
}
