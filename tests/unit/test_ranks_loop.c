/* test_ranks_loop.c -- the training loop on several ranks: one line per step; all ranks end after
 * the same step; the first error is reported with its rank; no rank waits forever. */
#define _DEFAULT_SOURCE
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "support/data_test.h"
#include "support/jobs.h"
#include "train/loop.h"

enum { RANKS = 3, STEPS = 6 };

/* Planted faults, and the results of the ranks. */
typedef struct {
    Dataset data;
    char dir[64];
    int fail_rank, stop_rank, sleep_rank; /* fails, stops or sleeps at its GEMM `at`; -1: none */
    int at;
    int nan_rank, nan_gemms; /* the rank whose next nan_gemms GEMMs from `at` on give NaN */
    int64_t steps;           /* 0: STEPS */
    double timeout_s;
    volatile sig_atomic_t stop[RANKS];
    TrainResult result[RANKS];
    Trace trace[RANKS];
    bool traced;
    FILE *out; /* printed lines */
} Plan;

static _Thread_local Plan *plan_here;
static _Thread_local int rank_here, gemms, planted;

static Err counted_gemm(const Call *c)
{
    Plan *p = plan_here;
    gemms++;
    if (gemms == p->at && rank_here == p->fail_rank) return err_fail(ERR_CHECK, "planted");
    if (gemms == p->at && rank_here == p->stop_rank) p->stop[rank_here] = 1;
    if (gemms == p->at && rank_here == p->sleep_rank) usleep(400000);
    TRY(device_ref.kernel[KERNEL_gemm](c));
    if (rank_here != p->nan_rank || gemms < p->at || planted == p->nan_gemms) return OK;
    if (c->out[0].n[0] == 0) return OK; /* of an empty micro-batch */
    memset(c->out[0].data, 0xFF, dtype_bytes(c->out[0].dtype));
    planted++;
    return OK;
}

static Err train_body(WorldRank *w, void *work)
{
    Plan *p = work;
    Job *job;
    Device device = device_ref;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    set.parallel.mesh.dp_shard = RANKS;
    set.parallel.rank = w->rank;
    set.micros = 2;
    plan_here = p, rank_here = w->rank, gemms = planted = 0;
    device.kernel[KERNEL_gemm] = counted_gemm;
    TRY(ARENA_NEW(w->arena, 1, &job));
    TRY(job_compile(&set, w->arena, job));
    if (p->traced) TRY(trace_open(&p->trace[w->rank], w->rank, w->ranks, w->arena));
    const TrainSettings t = {.job = job,
                             .device = &device,
                             .world = w,
                             .train = &p->data,
                             .lr = {.lr = 1e-3, .steps = p->steps ? p->steps : STEPS},
                             .global = 5,
                             .seed = 3,
                             .dir = p->dir,
                             .log_samples = true,
                             .peak_flops = 1e12,
                             .stop = &p->stop[w->rank],
                             .out = p->out,
                             .trace = p->traced ? &p->trace[w->rank] : NULL};
    TRY(train_loop(&t, &p->result[w->rank]));
    if (!p->traced) return OK;
    TRY(world_agree(w, OK));
    const Trace *all[RANKS] = {&p->trace[0], &p->trace[1], &p->trace[2]};
    char path[128];
    snprintf(path, sizeof path, "%s/trace.json", p->dir);
    return world_agree(w, w->rank == 0 ? trace_write(path, all, RANKS, &job->model) : OK);
}

static Err run_plan(Plan *p)
{
    int64_t id[400];
    const JobSettings set = test_job_settings("llama", JOB_STEP);
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
    snprintf(p->dir, sizeof p->dir, "/tmp/test_ranks_loop_XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    const WorldSettings world = {.ranks = RANKS,
                                 .in_flight = 8,
                                 .records = 64,
                                 .timeout_s = p->timeout_s,
                                 .body = train_body,
                                 .work = p};
    p->out = fopen("/dev/null", "w");
    assert_non_null(p->out);
    const Err err = world_run(&world);
    fclose(p->out);
    dataset_close(&p->data);
    return err;
}

/* The number of lines of a file of the run that contain the text; 0 if there is no file. Checks
 * that all lines are complete. */
static int lines_with(const Plan *p, const char *name, const char *text)
{
    char path[128], line[1024];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", p->dir, name);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        assert_int_equal(line[strlen(line) - 2], '}');
        n += strstr(line, text) != NULL;
    }
    if (f) fclose(f);
    return n;
}

static int lines_of(const Plan *p) { return lines_with(p, "metrics.jsonl", "\"step\""); }

static void remove_run(const Plan *p)
{
    static const char *const name[] = {"metrics", "samples", "skipped"};
    char path[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s.jsonl", p->dir, name[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/trace.json", p->dir);
    unlink(path);
    assert_int_equal(rmdir(p->dir), 0);
}

static Plan plan(void)
{
    return (Plan){
        .fail_rank = -1, .stop_rank = -1, .sleep_rank = -1, .nan_rank = -1, .timeout_s = 30};
}

static void rank_0_writes_for_all(void **state)
{
    (void)state;
    Plan p = plan();
    DO(run_plan(&p));
    assert_int_equal(lines_of(&p), STEPS);
    assert_int_equal(lines_with(&p, "samples.jsonl", "\"samples\": ["), STEPS);
    assert_int_equal(lines_with(&p, "samples.jsonl", "{\"step\": 6, \"cursor\": 25, \"epoch\": 0"),
                     1);
    /* Five sequences a step; the last one of the file is short. */
    assert_in_range(p.result[0].tokens, STEPS * 5 * TEST_T - TEST_T + 1, STEPS * 5 * TEST_T);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(p.result[r].steps, STEPS);
        assert_int_equal(p.result[r].tokens, p.result[0].tokens);
        assert_true(p.result[r].last_loss == p.result[0].last_loss);
        assert_int_equal(p.result[r].peak_bytes, p.result[0].peak_bytes);
        assert_false(p.result[r].stopped);
    }
    remove_run(&p);
}

/* One rank gets the stop signal; all end after its current step. */
static void all_stop_after_the_same_step(void **state)
{
    (void)state;
    for (int rank = 0; rank < RANKS; rank++) {
        Plan p = plan();
        p.stop_rank = rank;
        p.at = 130 + rank;
        DO(run_plan(&p));
        assert_true(p.result[0].steps > 0 && p.result[0].steps < STEPS);
        assert_int_equal(lines_of(&p), p.result[0].steps);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(p.result[r].steps, p.result[0].steps);
            assert_true(p.result[r].stopped);
        }
        remove_run(&p);
    }
}

/* One rank computes NaN; no rank updates, and the run continues. */
static void a_step_that_is_not_finite_is_skipped_by_all(void **state)
{
    (void)state;
    for (int rank = 0; rank < RANKS; rank++) {
        Plan p = plan();
        p.nan_rank = rank;
        p.at = 61;
        p.nan_gemms = 1;
        DO(run_plan(&p));
        assert_int_equal(lines_of(&p), STEPS);
        assert_int_equal(lines_with(&p, "metrics.jsonl", "\"skipped\": true"), 1);
        assert_int_equal(lines_with(&p, "skipped.jsonl", "not finite\", \"samples\": ["), 1);
        assert_true(p.result[rank].last_loss == p.result[0].last_loss);
        assert_true(p.result[rank].last_loss < p.result[0].first_loss);
        remove_run(&p);
    }
}

static void eight_bad_steps_end_the_run(void **state)
{
    (void)state;
    Plan p = plan();
    p.nan_rank = 1;
    p.at = 61;
    p.nan_gemms = 1 << 20;
    p.steps = 40;
    refused(run_plan(&p), ERR_CHECK, "try a lower optim.lr");
    const int skipped = lines_with(&p, "skipped.jsonl", "step");
    assert_int_equal(skipped, 8);
    assert_int_equal(lines_with(&p, "metrics.jsonl", "\"skipped\": true"), 8);
    remove_run(&p);
}

static void a_step_that_fails_on_one_rank_ends_all(void **state)
{
    (void)state;
    for (int rank = 0; rank < RANKS; rank++) {
        char want[32];
        Plan p = plan();
        p.fail_rank = rank;
        p.at = 61;
        snprintf(want, sizeof want, "rank %d: planted", rank);
        assert_int_equal(run_plan(&p), ERR_CHECK);
        assert_string_equal(err_text(), want);
        remove_run(&p);
    }
}

static void hanging_rank_is_named(void **state)
{
    (void)state;
    Plan p = plan();
    p.sleep_rank = 2;
    p.at = 61;
    p.timeout_s = 0.1;
    refused(run_plan(&p), ERR_PEER, "(run.timeout_s=0.1) for ");
    assert_non_null(strstr(err_text(), "rank 2 has not posted it"));
    remove_run(&p);
}

/* Every rank has its tracks, and every begin has its end. */
static void a_trace_holds_all_ranks(void **state)
{
    (void)state;
    Plan p = plan();
    char path[128], line[1024];
    int slices[RANKS] = {0}, begins[RANKS] = {0}, ends[RANKS] = {0}, rank;
    p.traced = true;
    DO(run_plan(&p));
    snprintf(path, sizeof path, "%s/trace.json", p.dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "{\"ph\": \"X\", \"pid\": %d", &rank) == 1) slices[rank]++;
        if (sscanf(line, "{\"ph\": \"b\", \"pid\": %d", &rank) == 1) begins[rank]++;
        if (sscanf(line, "{\"ph\": \"e\", \"pid\": %d", &rank) == 1) ends[rank]++;
    }
    fclose(f);
    for (int r = 0; r < RANKS; r++) {
        assert_true(slices[r] > 100 && slices[r] == slices[0]);
        assert_true(begins[r] > STEPS && begins[r] == ends[r]);
    }
    remove_run(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_0_writes_for_all),
        cmocka_unit_test(all_stop_after_the_same_step),
        cmocka_unit_test(a_step_that_is_not_finite_is_skipped_by_all),
        cmocka_unit_test(eight_bad_steps_end_the_run),
        cmocka_unit_test(a_step_that_fails_on_one_rank_ends_all),
        cmocka_unit_test(hanging_rank_is_named),
        cmocka_unit_test(a_trace_holds_all_ranks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
