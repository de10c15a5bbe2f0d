/* test_ranks_fp8.c -- GEMMs in FP8 on several ranks: the bits of one rank over dp, ZeRO and
 * pipelines, every amax of one rank over tp and cp, and memory to the byte. */
#include "support/expect.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include "device/cpu/cpu.h"
#include "support/world.h"

static World world(const char *model, Scaling scaling)
{
    static ModelConfig with_marks;
    World w = world_of(test_job_settings(model, JOB_STEP));
    w.set.dtype = BF16;
    if (scaling == SCALING_DELAYED) {
        with_marks = *w.set.config;
        with_marks.fp8_marks = true;
        w.set.config = &with_marks;
    }
    w.set.compile.fp8 = (Fp8Options){.names = "*",
                                     .compute = E4M3,
                                     .gradient = scaling == SCALING_BLOCK ? E4M3 : E5M2,
                                     .scaling = scaling};
    w.init = true; /* programs read weights rounded to bf16 */
    w.steps = 2;
    DO(device_cpu_open(NULL, &w.device));
    return w;
}

static void same(const char *name, const WorldResult *a, const World *w)
{
    WorldResult b;
    char what[128];
    if (world_run_job(w, &b) != OK) fail_msg("%s: %s", name, err_text());
    if (!world_equal(a, &b, what)) fail_msg("%s: %s", name, what);
    world_result_close(&b);
}

static void bits_are_equal(void **state)
{
    (void)state;
    for (int scaling = SCALING_TENSOR; scaling <= SCALING_DELAYED; scaling++) {
        World w = world("llama", (Scaling)scaling), plain;
        WorldResult a, b;
        char what[128];
        w.set.micros = 4;
        DO(world_run_job(&w, &a));
        plain = w;
        plain.set.compile.fp8.names = NULL;
        DO(world_run_job(&plain, &b));
        assert_false(world_equal(&a, &b, what)); /* GEMMs do run in FP8 */
        world_result_close(&b);
        World pp = w, recomputed = w;
        pp.set.parallel.mesh.pp = 2;
        pp.set.schedule = scaling == SCALING_TENSOR ? "1f1b" : "zbv";
        same("pp", &a, &pp);
        recomputed.set.compile.recompute = RECOMPUTE_SELECTIVE;
        same("selective", &a, &recomputed);
        recomputed.set.compile.recompute = RECOMPUTE_FULL;
        same("full", &a, &recomputed);
        World offloaded = w;
        offloaded.set.compile.offload_names = "attn.in,mlp.act";
        same("offload", &a, &offloaded);
        world_result_close(&a);

        World dp = w, one = w;
        dp.set.micros = 2;
        dp.set.parallel.mesh.dp_shard = 3;
        one.set.micros = 6;
        one.set.parallel.fold = 3;
        DO(world_run_job(&dp, &a));
        same("fold", &a, &one);
        dp.set.parallel.reduce_each = true;
        world_result_close(&a);
        DO(world_run_job(&dp, &a));
        dp.set.parallel.zero = 3;
        same("zero 3", &a, &dp);
        world_result_close(&a);
    }
}

/* Losses of eight steps are those of bf16 within half an ulp of e4m3, 2^-5, and not equal. */
static void losses_follow_bf16(void **state)
{
    (void)state;
    for (int scaling = SCALING_TENSOR; scaling <= SCALING_DELAYED; scaling++) {
        World w = world("llama", (Scaling)scaling);
        WorldResult fp8, bf16;
        w.steps = WORLD_STEPS;
        DO(world_run_job(&w, &fp8));
        w.set.compile.fp8.names = NULL;
        DO(world_run_job(&w, &bf16));
        for (int s = 0; s < w.steps; s++) {
            assert_true(fp8.loss[s] != bf16.loss[s]);
            if (!(fabs(fp8.loss[s] - bf16.loss[s]) <= ldexp(bf16.loss[s], -5)))
                fail_msg("step %d: loss %.6g, in bf16 %.6g", s, fp8.loss[s], bf16.loss[s]);
        }
        world_result_close(&fp8);
        world_result_close(&bf16);
    }
}

/* ---- what quantize reads on each rank: a device that notes it ---- */

enum { MAX_NOTES = 4096 };

static struct {
    pthread_mutex_t lock;
    int n;
    pthread_t thread[MAX_NOTES];
    double amax[MAX_NOTES];
    Kernel quantize;
} notes = {.lock = PTHREAD_MUTEX_INITIALIZER};

static Err noting_quantize(const Call *call)
{
    pthread_mutex_lock(&notes.lock);
    if (notes.n < MAX_NOTES) {
        notes.thread[notes.n] = pthread_self();
        notes.amax[notes.n++] = (double)*(const float *)call->in[1].data;
    }
    pthread_mutex_unlock(&notes.lock);
    return notes.quantize(call);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The numbers that the thread of the first note, or of the first one after it, has noted, in order
 * of size; returns how many. */
static int take_rank(int rank, double *out)
{
    pthread_t seen[MAX_WORLD];
    int n_seen = 0, n = 0;
    for (int i = 0; i < notes.n && n_seen <= rank; i++) {
        bool known = false;
        for (int k = 0; k < n_seen; k++) known = known || pthread_equal(seen[k], notes.thread[i]);
        if (!known) seen[n_seen++] = notes.thread[i];
    }
    for (int i = 0; i < notes.n && n_seen > rank; i++)
        if (pthread_equal(seen[rank], notes.thread[i])) out[n++] = notes.amax[i];
    qsort(out, (size_t)n, sizeof *out, by_value);
    return n;
}

static void run_noting(World *w)
{
    static Device noting;
    WorldResult r;
    noting = *w->device;
    notes.quantize = noting.kernel[KERNEL_quantize];
    noting.kernel[KERNEL_quantize] = noting_quantize;
    notes.n = 0;
    w->device = &noting;
    w->set.dtype = F32;
    w->steps = 1;
    w->set.micros = 1;
    DO(world_run_job(w, &r));
    assert_in_range(notes.n, 1, MAX_NOTES - 1);
    world_result_close(&r);
}

/* In f32 ranks differ by so little that hardly a code does, so every amax is that of one rank
 * within an ulp of bf16. One that is not reduced over the ranks is that of a part, and mostly
 * smaller. */
static void amax_is_that_of_one_rank(void **state)
{
    (void)state;
    static const MeshSizes mesh[] = {{.tp = 2}, {.cp = 2}, {.tp = 2, .cp = 2}, {.cp = 3}};
    static double want[MAX_NOTES], got[MAX_NOTES];
    for (int m = 0; m < 8; m++) {
        World one = world("llama", SCALING_TENSOR), many = world("llama", SCALING_TENSOR);
        many.set.parallel.mesh = mesh[m / 2];
        many.set.parallel.sequence = m % 2 && mesh[m / 2].tp > 1;
        if (m % 2 && !many.set.parallel.sequence) continue;
        run_noting(&one);
        const int n = take_rank(0, want);
        run_noting(&many);
        const int ranks =
            (mesh[m / 2].tp ? mesh[m / 2].tp : 1) * (mesh[m / 2].cp ? mesh[m / 2].cp : 1);
        for (int r = 0; r < ranks; r++) {
            assert_int_equal(take_rank(r, got), n);
            for (int i = 0; i < n; i++)
                if (fabs(got[i] - want[i]) > ldexp(want[i], -8))
                    fail_msg("mesh %d, rank %d: amax %d of %d is %.9g, on one rank %.9g", m, r, i,
                             n, got[i], want[i]);
        }
    }
}

static void memory_is_exact(void **state)
{
    (void)state;
    for (int scaling = SCALING_TENSOR; scaling <= SCALING_DELAYED; scaling++) {
        World w = world("llama", (Scaling)scaling);
        world_peaks_are_exact("one rank", w);
        w.set.parallel.mesh.tp = 2;
        w.set.parallel.sequence = true;
        world_peaks_are_exact("tp", w);
        w.set.parallel = (ParallelSettings){.mesh = {.dp_shard = 2}, .zero = 3};
        world_peaks_are_exact("zero 3", w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_equal),
        cmocka_unit_test(losses_follow_bf16),
        cmocka_unit_test(amax_is_that_of_one_rank),
        cmocka_unit_test(memory_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
