/* test_ranks_shadow_loop.c -- the training loop on a device: losses, validation losses and
 * checkpoints are equal to those on the host, to the bit. A run resumes from its checkpoint, also
 * on other ranks, and replicas are compared. The device is the shadow of `ref`
 * (support/shadow.h). */
#define _DEFAULT_SOURCE
#include <unistd.h>
#include "support/data_test.h"
#include "support/jobs.h"
#include "support/shadow.h"
#include "train/loop.h"
#include "train/run_dir.h"

enum { MAX_RANKS = 4, STEPS = 6 };

typedef struct {
    const Device *device;
    int dp, tp, zero;
    int64_t steps, every, check_every;
    Dataset data;
    char dir[64];
    FILE *warn; /* NULL: standard error */
    FILE *out;  /* of rank 0; NULL: nowhere */
    TrainResult result[MAX_RANKS];
} Plan;

static Err compile(WorldRank *w, const Plan *p, JobKind kind, Job **out)
{
    JobSettings set = test_job_settings("gpt2", kind);
    set.dtype = F32;
    set.parallel.mesh = (MeshSizes){1, p->dp, p->tp, 1, 0, 0, 0, 0, false};
    set.parallel.zero = p->zero;
    set.parallel.rank = w->rank;
    set.micros = 4 / p->dp;
    TRY(ARENA_NEW(w->arena, 1, out));
    return job_compile(&set, w->arena, *out);
}

static Err train_body(WorldRank *w, void *work)
{
    Plan *p = work;
    Job *job, *valid;
    char folder[80];
    TRY(compile(w, p, JOB_STEP, &job));
    TRY(compile(w, p, JOB_LOSS, &valid));
    snprintf(folder, sizeof folder, "%s/checkpoints", p->dir);
    if (w->rank == 0) (void)run_dir_make(folder);
    TRY(world_agree(w, OK));
    const TrainSettings t = {.job = job,
                             .valid_job = valid,
                             .device = p->device,
                             .capture = true, /* of one rank alone */
                             .world = w,
                             .train = &p->data,
                             .valid = &p->data,
                             .lr = {.decay = DECAY_CONSTANT, .lr = 1e-3, .steps = p->steps},
                             .global = 4,
                             .valid_every = 2,
                             .valid_limit = 4,
                             .seed = 3,
                             .dir = p->dir,
                             .peak_flops = 1e12,
                             .check_every = p->check_every,
                             .save = {.folder = folder,
                                      .every = p->every,
                                      .keep = 2,
                                      .job = {.optim = "adamw",
                                              .dtype = "f32",
                                              .device = "d",
                                              .kernels = "",
                                              .config = "",
                                              .model = "{}"}},
                             .out = w->rank == 0 && p->out ? p->out : fopen("/dev/null", "w"),
                             .warn = p->warn};
    const Err err = train_loop(&t, &p->result[w->rank]);
    if (t.out != p->out) fclose(t.out);
    return err;
}

static Err expected = OK; /* of a run */

static void run(Plan *p)
{
    const WorldSettings world = {.ranks = p->dp * p->tp,
                                 .in_flight = 64,
                                 .records = 64,
                                 .timeout_s = 60,
                                 .body = train_body,
                                 .work = p};
    int64_t id[400];
    const JobSettings set = test_job_settings("gpt2", JOB_STEP);
    for (int i = 0; i < 400; i++) id[i] = (i * 7 + i / 3) % set.config->vocab;
    Buffer b = array_file(id, 400, 2);
    const char *path = scratch_write("tokens.bin", &b);
    buffer_free(&b);
    const DatasetSettings data = {.path = &path,
                                  .n_paths = 1,
                                  .format = FORMAT_UINT16,
                                  .seq_len = TEST_T,
                                  .vocab = set.config->vocab,
                                  .seed = 1};
    DO(dataset_open(&data, &arena, &p->data));
    if (world_run(&world) != expected) fail_msg("dp %d, tp %d: %s", p->dp, p->tp, err_text());
    dataset_close(&p->data);
    const ShadowCount count = shadow_count();
    assert_true(count.contexts == 0 && count.bytes == 0);
}

static void new_dir(Plan *p)
{
    snprintf(p->dir, sizeof p->dir, "/tmp/test_shadow_loop_XXXXXX");
    assert_non_null(mkdtemp(p->dir));
}

static void remove_dir(const Plan *p)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", p->dir);
    assert_int_equal(system(command), 0);
}

static void expect_same(const Plan *a, const Plan *b)
{
    const TrainResult *x = &a->result[0], *y = &b->result[0];
    assert_int_equal(x->steps, y->steps);
    assert_memory_equal(&x->last_loss, &y->last_loss, sizeof x->last_loss);
    assert_memory_equal(&x->valid_loss, &y->valid_loss, sizeof x->valid_loss);
}

/* Half of a run on the host, half on the device, in one folder: checkpoints fit any device. */
static void resumes(void **state)
{
    (void)state;
    static const Plan row[] = {{.dp = 1, .tp = 1},
                               {.dp = 2, .tp = 1, .zero = 1},
                               {.dp = 2, .tp = 2},
                               {.dp = 2, .tp = 1, .zero = 3}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int first = 0; first < 2; first++) {
            Plan whole = row[i], half = row[i];
            shadow_set(i, SHADOW_COIN);
            whole.device = &device_ref;
            whole.steps = STEPS;
            whole.every = 0;
            new_dir(&whole);
            run(&whole);
            half.device = first ? &device_shadow : &device_ref;
            half.steps = STEPS / 2;
            half.every = first ? 1 : 0; /* with a checkpoint per step, and without */
            half.check_every = row[i].zero || row[i].dp == 1 ? 0 : 1;
            new_dir(&half);
            run(&half);
            half.device = first ? &device_ref : &device_shadow;
            half.steps = STEPS;
            run(&half);
            expect_same(&whole, &half);
            remove_dir(&whole);
            remove_dir(&half);
        }
}

/* Saved by two ranks and resumed by one and by four: on the device as on the host. */
static void on_other_ranks(void **state)
{
    (void)state;
    for (int variant = 0; variant < 2; variant++) {
        Plan host = {.device = &device_ref, .dp = 2, .tp = 1, .zero = 2, .steps = STEPS / 2};
        Plan device = host;
        device.device = &device_shadow;
        shadow_set((uint64_t)variant, SHADOW_LATEST);
        new_dir(&host);
        new_dir(&device);
        run(&host);
        run(&device);
        host.steps = device.steps = STEPS;
        host.dp = device.dp = variant ? 2 : 1;
        host.tp = device.tp = variant ? 2 : 1;
        host.zero = device.zero = 0;
        run(&host);
        run(&device);
        expect_same(&host, &device);
        remove_dir(&host);
        remove_dir(&device);
    }
}

/* A file of algorithms in an older form is replaced, with a warning; one of another device is an
 * error. */
static void algorithms_in_another_form(void **state)
{
    (void)state;
    for (int old = 0; old < 2; old++) {
        Plan p = {.device = &device_shadow, .dp = 2, .tp = 1, .steps = 1};
        char path[96], text[256] = "", *output = NULL;
        size_t bytes;
        new_dir(&p);
        snprintf(path, sizeof path, "%s/kernels.txt", p.dir);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "sheaf %s %d\nof some card\n", old ? "products" : "autotune",
                AUTOTUNE_VERSION - old);
        fclose(f);
        assert_non_null(p.warn = open_memstream(&output, &bytes));
        expected = old ? OK : ERR_CONFIG;
        run(&p);
        expected = OK;
        fclose(p.warn);
        assert_true((strstr(output, "measured again") != NULL) == old);
        assert_non_null(f = fopen(path, "r"));
        assert_non_null(fgets(text, sizeof text, f));
        fclose(f);
        assert_true((strstr(text, "shadow autotune") != NULL) == old);
        free(output);
        remove_dir(&p);
    }
}

/* Autotuning takes seconds and is reported; a resumed run has its algorithms and reports
 * nothing. */
static void autotuning_is_reported(void **state)
{
    (void)state;
    Plan p = {.device = &device_shadow, .dp = 2, .tp = 1, .steps = 1};
    new_dir(&p);
    for (int resumed = 0; resumed < 2; resumed++) {
        char *output = NULL;
        size_t bytes;
        assert_non_null(p.out = open_memstream(&output, &bytes));
        run(&p);
        fclose(p.out);
        assert_true((strstr(output, "autotuning GEMMs") == NULL) == resumed);
        free(output);
    }
    remove_dir(&p);
}

/* A device without optional tables: the same losses, and no file of algorithms. */
static void optional_tables(void **state)
{
    (void)state;
    DeviceRuntime runtime;
    const Device limited = shadow_without(true, true, true, &runtime);
    for (int dp = 1; dp < 3; dp++) {
        Plan host = {.device = &device_ref, .dp = dp, .tp = 1, .steps = STEPS}, other = host;
        char path[96];
        other.device = &limited;
        new_dir(&host);
        new_dir(&other);
        run(&host);
        run(&other);
        expect_same(&host, &other);
        snprintf(path, sizeof path, "%s/kernels.txt", other.dir);
        assert_int_not_equal(access(path, F_OK), 0);
        remove_dir(&host);
        remove_dir(&other);
    }
}

/* A refused capture is reported once, with the reason; the losses are the same. */
static void refusal_is_reported(void **state)
{
    (void)state;
    Plan p = {.device = &device_shadow, .dp = 1, .tp = 1, .steps = STEPS}, refused = p;
    char *output = NULL;
    size_t bytes;
    new_dir(&p);
    new_dir(&refused);
    run(&p);
    assert_non_null(refused.warn = open_memstream(&output, &bytes));
    shadow_refuse_capture_at(9);
    run(&refused);
    shadow_refuse_capture_at(-1);
    fclose(refused.warn);
    expect_same(&p, &refused);
    const char *first = strstr(output, "op by op: shadow: the capture fails");
    assert_true(first && !strstr(first + 1, "op by op"));
    free(output);
    remove_dir(&p);
    remove_dir(&refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(resumes),
                                       cmocka_unit_test(on_other_ranks),
                                       cmocka_unit_test(algorithms_in_another_form),
                                       cmocka_unit_test(autotuning_is_reported),
                                       cmocka_unit_test(refusal_is_reported),
                                       cmocka_unit_test(optional_tables)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
