/* test_bounded.c -- dims with a cap and a live extent in a slot. A micro-batch with fewer live
 * rows than the program's cap gives the bits of a program with the smaller cap. The content of
 * dead rows (invalid ids, NaN) and of memory before the step never reaches a result. Tokens,
 * targets, positions, ranges and weights are inputs: one program runs any of them. */
#include <math.h>

#include "support/expect.h"
#include "support/jobs.h"

enum { FEW = 5 };

static void fill(TestJob *t, int micro, int64_t rows)
{
    TestBatch b = test_job_batch(&t->job.settings, 0);
    b.rows = rows; /* the content of a row does not depend on the number of rows */
    rank_fill_batch(&t->rank, micro, &b);
}

static double step_once(TestJob *t)
{
    StepResult result;
    DO(rank_step(&t->rank, &(StepSettings){.step = 1, .lr = 1e-2}, &result));
    return result.loss_sum;
}

static void expect_same(const char *what, const TestJob *a, const TestJob *b)
{
    int p;
    if (!ranks_equal(&a->rank, &b->rank, PART_GRAD, &p))
        fail_msg("%s: d.%s differs", what, a->job.model.param[p].name);
    if (!ranks_equal(&a->rank, &b->rank, PART_WEIGHT, &p))
        fail_msg("%s: %s differs", what, a->job.model.param[p].name);
}

static void fewer_rows_of(const char *model, DType dtype, Recompute recompute)
{
    static TestJob wide, narrow;
    JobSettings set = test_job_settings(model, JOB_STEP);
    set.micros = 1;
    set.dtype = dtype;
    set.compile.recompute = recompute;
    DO(test_job_open(&wide, &set, 1));
    set.batch.seq_len = FEW;
    DO(test_job_open(&narrow, &set, 1));
    wide.rank.settings.poison = narrow.rank.settings.poison = true;
    fill(&wide, 0, FEW);
    fill(&narrow, 0, FEW);
    const double a = step_once(&wide), b = step_once(&narrow);
    if (!(a == b)) fail_msg("%s: loss %.17g with a cap of %d, %.17g without", model, a, TEST_T, b);
    assert_int_equal(wide.rank.step.live_tokens, narrow.rank.step.live_tokens);
    expect_same(model, &wide, &narrow);
    test_job_close(&wide);
    test_job_close(&narrow);
}

static void fewer_live_rows(void **state)
{
    (void)state;
    for (const TestModel *m = test_models; m->name; m++) {
        fewer_rows_of(m->name, F64, RECOMPUTE_NONE);
        fewer_rows_of(m->name, F32, RECOMPUTE_FULL);
    }
}

/* Chunks of the head that begin after the last live row do nothing. A chunk may have a single live
 * row. */
static void chunks_past_the_live_rows(void **state)
{
    (void)state;
    static TestJob chunked, whole;
    for (int64_t rows = 1; rows <= 4; rows++)
        for (int64_t live = 0; live <= TEST_T; live += 3 - live % 2) {
            JobSettings set = test_job_settings("llama", JOB_GRADIENTS);
            set.micros = 1;
            set.compile.chunk_elements = rows * set.config->vocab;
            DO(test_job_open(&chunked, &set, 1));
            set.compile.chunk_elements = TEST_T * set.config->vocab;
            DO(test_job_open(&whole, &set, 1));
            chunked.rank.settings.poison = whole.rank.settings.poison = true;
            fill(&chunked, 0, live);
            fill(&whole, 0, live);
            const double a = step_once(&chunked), b = step_once(&whole);
            if (!(fabs(a - b) <= 1e-13 * fabs(b)))
                fail_msg("%lld rows live, chunks of %lld: loss %.17g, not %.17g", (long long)live,
                         (long long)rows, a, b);
            assert_true(ranks_differ(&chunked.rank, &whole.rank, PART_GRAD) <= 1e-12);
            test_job_close(&chunked);
            test_job_close(&whole);
        }
}

/* A micro-batch without live rows adds nothing, whether it is first or last; the first one starts
 * the sums. */
static void no_live_row(void **state)
{
    (void)state;
    static TestJob one, two;
    for (int empty = 0; empty < 2; empty++) {
        JobSettings set = test_job_settings(empty ? "gpt2" : "qwen3", JOB_STEP);
        set.micros = 1;
        DO(test_job_open(&one, &set, 1));
        set.micros = 2;
        set.schedule = "gpipe";
        DO(test_job_open(&two, &set, 1));
        fill(&one, 0, TEST_T);
        fill(&two, empty, 0);
        fill(&two, 1 - empty, TEST_T);
        const double a = step_once(&one), b = step_once(&two);
        assert_true(a == b && isfinite(a));
        assert_true(ranks_differ(&one.rank, &two.rank, PART_GRAD) == 0); /* -0 equals 0 */
        assert_true(ranks_differ(&one.rank, &two.rank, PART_WEIGHT) == 0);
        test_job_close(&one);
        test_job_close(&two);
    }
}

/* No live rows at all: loss and gradient are 0. */
static void nothing_live(void **state)
{
    (void)state;
    static TestJob t;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    StepResult result;
    set.optim = (OptimSettings){.kind = OPTIM_SGD, .clip = 1.0, .block = 16};
    DO(test_job_open(&t, &set, 1));
    for (int m = 0; m < set.micros; m++) fill(&t, m, 0);
    DO(rank_step(&t.rank, &(StepSettings){.step = 1, .lr = 1.0}, &result));
    assert_true(result.loss == 0 && result.loss_sum == 0 && result.grad_norm == 0);
    assert_int_equal(result.live_tokens, 0);
    for (int p = 0; p < t.job.model.n_params; p++) {
        const Tensor dw = rank_param(&t.rank, p, PART_GRAD),
                     w = rank_param(&t.rank, p, PART_WEIGHT);
        for (int64_t i = 0; i < tensor_count(&dw); i++)
            assert_true(real_get(&dw, i) == 0 && isfinite(real_get(&w, i)));
    }
    test_job_close(&t);
}

/* Changes one element of an input, and returns the old one. */
static int32_t change(TestJob *t, Input which, int64_t at, int32_t to)
{
    const Tensor in = rank_input(&t->rank, 0, which);
    if (which == INPUT_WEIGHTS) {
        const double was = real_get(&in, at);
        real_set(&in, at, to / 1024.0);
        return (int32_t)(was * 1024.0);
    }
    const int32_t was = ((int32_t *)in.data)[at];
    ((int32_t *)in.data)[at] = to;
    return was;
}

static void micro_batches_are_inputs(void **state)
{
    (void)state;
    static TestJob t;
    static const struct {
        Input which;
        int64_t at;
        int32_t to;
    } rows[] = {{INPUT_TOKENS, 4, 2},
                {INPUT_TARGETS, 4, 3},
                {INPUT_POSITIONS, 4, 17},
                {INPUT_RANGES, 4 * 6, 2},
                {INPUT_WEIGHTS, 4, 512}};
    JobSettings set = test_job_settings("llama", JOB_LOSS);
    set.micros = 1;
    DO(test_job_open(&t, &set, 1));
    fill(&t, 0, TEST_T);
    change(&t, INPUT_WEIGHTS, 4, 1024);
    const double loss = step_once(&t);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int32_t was = change(&t, rows[i].which, rows[i].at, rows[i].to);
        if (step_once(&t) == loss) fail_msg("%s is not read", input_name(rows[i].which));
        change(&t, rows[i].which, rows[i].at, was);
        if (step_once(&t) != loss) fail_msg("%s is kept somewhere", input_name(rows[i].which));
    }
    test_job_close(&t);
}

/* The five inputs of a step are values of role input. No other value of a unit is integer data from
 * outside. */
static void inputs_are_values(void **state)
{
    (void)state;
    static TestJob t;
    const JobSettings set = test_job_settings("qwen3", JOB_GRADIENTS);
    int seen[N_INPUTS] = {0};
    DO(test_job_open(&t, &set, 1));
    for (int k = 0; k < t.job.model.n_kinds; k++) {
        const Graph *g = &t.job.model.kind[k];
        for (Value v = 0; v < g->n_values; v++) {
            const ValueInfo *info = &g->value[v];
            if (info->role != ROLE_INPUT) continue;
            assert_true(info->dims.dim[0].cap == TEST_T && info->dims.dim[0].slot == SLOT_ROWS);
            assert_int_equal(graph_maker(g, v), NO_NODE);
            assert_true(graph_readers(g, v) > 0);
            seen[info->index]++;
        }
    }
    for (int i = 0; i < N_INPUTS; i++) assert_int_equal(seen[i], i < INPUT_PLACES);
    test_job_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewer_live_rows),   cmocka_unit_test(no_live_row),
        cmocka_unit_test(nothing_live),      cmocka_unit_test(micro_batches_are_inputs),
        cmocka_unit_test(inputs_are_values), cmocka_unit_test(chunks_past_the_live_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
