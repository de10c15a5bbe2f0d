/* test_causal.c -- the attribute `causal` of attention in compiled programs, and the key ranges
 * of a dataset, which must agree with it. */
#include "support/data_test.h"

#include "data/dataset.h"
#include "support/jobs.h"

static int count_causal(JobSettings set, int64_t *what)
{
    Job job;
    int n = 0;
    DO(job_compile(&set, &arena, &job));
    for (int k = 0; k < job.model.n_kinds; k++)
        for (int i = 0; i < job.program[k].n_instr; i++) {
            const Instr *in = &job.program[k].instr[i];
            if (in->op != OP_attention && in->op != OP_attention_dx) continue;
            *what = in->attr.kernel.attention.causal;
            n += in->attr.kernel.attention.causal != 0;
        }
    return n;
}

static void attention_is_marked_causal(void **state)
{
    (void)state;
    int64_t what = 0;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    assert_int_equal(count_causal(set, &what), 0);
    set.causal = true;
    assert_true(count_causal(set, &what) >= 2); /* forward and backward */
    assert_int_equal(what, set.batch.seq_len);
    JobSettings cut = set;
    cut.schedule = "seq1f1b";
    cut.parallel.slices = 2;
    assert_int_equal(count_causal(cut, &what), 0);
    JobSettings shard = set;
    shard.parallel.mesh.cp = 2; /* rows of a rank are not whole sequences */
    assert_int_equal(count_causal(shard, &what), 0);
    JobSettings window = test_job_settings("mistral", JOB_STEP);
    window.causal = true;
    assert_true(window.config->window > 0);
    assert_int_equal(count_causal(window, &what), 0);
}

static void ranges_are_causal(void **state)
{
    (void)state;
    enum { T = 7, N = 3 };
    int64_t id[100];
    int32_t tokens[N * T], targets[N * T], positions[N * T], ranges[N * T][4];
    float weights[N * T];
    Dataset data;
    for (int i = 0; i < 100; i++) id[i] = i % 5 == 4 ? 0 : i % 13;
    Buffer b = array_file(id, 100, 2);
    const char *path = scratch_write("tokens.bin", &b);
    buffer_free(&b);
    const DatasetSettings set = {
        .path = &path, .n_paths = 1, .format = FORMAT_UINT16, .seq_len = T, .vocab = 16, .seed = 1};
    DO(dataset_open(&set, &arena, &data));
    const InputRows rows = {.tokens = tokens,
                            .targets = targets,
                            .positions = positions,
                            .ranges = &ranges[0][0],
                            .weights = weights,
                            .weight_type = F32};
    for (int i = 0; i < N; i++) DO(dataset_fill(&data, dataset_sample(&data, i), 0, &rows, i * T));
    for (int t = 0; t < N * T; t++) {
        assert_int_equal(ranges[t][0], t - t % T);
        assert_int_equal(ranges[t][1], t + 1);
        assert_int_equal(ranges[t][2], ranges[t][3]);
    }
    dataset_close(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_is_marked_causal),
                                       cmocka_unit_test(ranges_are_causal)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
