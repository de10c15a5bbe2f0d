/* test_cudnn_fit.c -- attention of the benchmarked models, compiled for one rank in bf16: every
 * call must fit cuDNN's fused kernels, forward and backward, whatever the other passes do. Also
 * the chunks of their logits. */
#include "support/data_test.h"

#include "device/cuda/attention/cudnn_fit.h"
#include "job/attention.h"
#include "support/jobs.h"

/* Counts the calls that fit: forward and backward. */
static void count_fits(const JobSettings *set, int n[2])
{
    Job job;
    n[0] = n[1] = 0;
    DO(job_compile(set, &arena, &job));
    for (int k = 0; k < job.model.n_kinds; k++)
        for (int i = 0; i < job.program[k].n_instr; i++) {
            const Instr *in = &job.program[k].instr[i];
            if (in->op != OP_attention && in->op != OP_attention_dx) continue;
            const bool backward = in->op == OP_attention_dx;
            const Call c = instr_call(&job.program[k], in);
            const char *misfit = cudnn_misfit(&c, backward, CUDNN_FIT_OLDEST);
            if (misfit) fail_msg("%s, %s: %s", set->config->name, op_info(in->op)->name, misfit);
            assert_int_equal(c.attr.attention.causal, set->batch.seq_len);
            n[backward]++;
        }
}

static JobSettings settings_of(const char *name, BatchShape batch, ModelConfig *config)
{
    DO(model_config_load(name, NULL, 0, &arena, config));
    JobSettings set = test_job_settings("llama", JOB_STEP);
    set.config = config;
    set.dtype = BF16;
    set.batch = batch;
    set.causal = true;
    set.compile.chunk_elements = 64 << 20;
    set.optim.block = 65536;
    return set;
}

static const struct {
    const char *name;
    BatchShape batch;
} models[] = {{"gpt2-124m", {64, 1024}}, {"gpt2-1558m", {16, 1024}}, {"llama3.2-1b", {8, 4096}}};

static void models_fit(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
            ModelConfig config;
            JobSettings set = settings_of(models[i].name, models[i].batch, &config);
            int n[2];
            set.compile.recompute = (Recompute)recompute;
            count_fits(&set, n);
            /* In F, and in I and B; a full recompute repeats the forward in these. */
            assert_true(n[0] >= 1);
            assert_int_equal(n[1], 2);
        }
}

/* The same over two ranks that shard the heads. */
static void sharded_heads_fit(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        ModelConfig config;
        JobSettings set = settings_of(models[i].name, models[i].batch, &config);
        int n[2];
        if (config.n_heads % 2 != 0) continue;
        set.parallel.mesh.tp = 2;
        set.parallel.rank = 1;
        count_fits(&set, n);
        assert_int_equal(n[1], 2);
    }
}

static const char *choice_of(const JobSettings *set, bool backward, char text[256])
{
    Job job;
    Call call;
    DO(job_compile(set, &arena, &job));
    assert_true(job_attention_call(&job, backward, &call));
    cudnn_fit_text(cudnn_misfit(&call, backward, 91900), 91900, text, 256);
    return text;
}

/* What the first lines of a run say, by model. */
static void choices_have_reasons(void **state)
{
    (void)state;
    ModelConfig config;
    char text[256];
    const char own[] = "our own kernels instead of cuDNN's: ";
    for (int backward = 0; backward < 2; backward++) {
        JobSettings set = settings_of("llama3.2-1b", (BatchShape){2, 1024}, &config);
        assert_string_equal(choice_of(&set, backward, text), "cuDNN 9.19.0");
        set.causal = false;
        assert_non_null(strstr(choice_of(&set, backward, text), own));
        assert_non_null(strstr(text, "not promised to be causal"));
        set.causal = true;
        set.dtype = F32;
        assert_non_null(strstr(choice_of(&set, backward, text), "not bf16"));
        set.dtype = BF16;
        config.head_size = 100;
        assert_non_null(strstr(choice_of(&set, backward, text), "multiple of 8 channels"));
    }
}

static int losses_of(const JobSettings *set)
{
    Job job;
    int n = 0;
    DO(job_compile(set, &arena, &job));
    for (int k = 0; k < job.model.n_kinds; k++)
        for (int i = 0; i < job.program[k].n_instr; i++)
            n += job.program[k].instr[i].op == OP_token_loss_dx;
    return n;
}

/* Chunks of logits on a device with its own memory: 4,096 rows. */
static void logits_by_rows(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        ModelConfig config;
        JobSettings set = settings_of(models[i].name, models[i].batch, &config);
        set.compile.chunk_elements = 0;
        set.compile.device_memory = true;
        const int on_device = losses_of(&set);
        assert_int_equal(on_device, models[i].batch.sequences * models[i].batch.seq_len / 4096);
        set.compile.device_memory = false;
        assert_true(losses_of(&set) >= 4 * on_device);
    }
}

/* Calls that do not fit, for one reason at a time. */
static void misfits(void **state)
{
    (void)state;
    const Tensor x = {(void *)4096, BF16, 3, {256, 4, 64}, {256, 64, 1}};
    const Call good = {.in = {x, x, x, x, x, x, x},
                       .n_in = 7,
                       .out = {x, x, x},
                       .n_out = 3,
                       .attr = {.attention = {.causal = 128}}};
    assert_null(cudnn_misfit(&good, true, CUDNN_FIT_OLDEST));
    Call bad[12];
    for (int i = 0; i < 12; i++) bad[i] = good;
    bad[0].attr.attention.causal = 0;
    bad[1].attr.attention.causal = 96;
    bad[2].in[1].n[0] = 128;
    bad[3].in[0].n[2] = 68;
    bad[4].attr.attention.head_at = 1;
    bad[5].attr.attention.group = 4;
    bad[6].in[2].stride[0] = 260;
    bad[7].in[0].data = (char *)4096 + 8;
    bad[8].n_in = 6;
    bad[9].out[1].dtype = F32;
    bad[10].number[2] = 1;
    bad[11].in[6].stride[2] = 2;
    for (int i = 0; i < 12; i++)
        if (!cudnn_misfit(&bad[i], true, CUDNN_FIT_OLDEST)) fail_msg("misfit %d is accepted", i);
    bad[1].attr.attention.causal = 64; /* not a multiple of 128: depends on the version */
    assert_non_null(cudnn_misfit(&bad[1], true, CUDNN_FIT_ANY_LENGTH - 1));
    assert_null(cudnn_misfit(&bad[1], true, CUDNN_FIT_ANY_LENGTH));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_fit),
                                       cmocka_unit_test(sharded_heads_fit),
                                       cmocka_unit_test(choices_have_reasons),
                                       cmocka_unit_test(logits_by_rows), cmocka_unit_test(misfits)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
