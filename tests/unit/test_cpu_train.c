/* test_cpu_train.c -- training steps on device/cpu: the loss curve of f32 against ref's f64 and
 * of bf16 against f32, and the same bits for any number of threads and from run to run. */
#include "cpu_test.h"
#include "job/job.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s", err_text());                                              \
    } while (0)

enum {
    SEQUENCES = 3,
    LENGTH = 21,
    DOCUMENT = 8,
    ROWS = SEQUENCES * LENGTH,
    STEPS = 100,
    LONGEST = 200
};

typedef struct {
    const char *model;
    DType dtype;
    const Device *device;
    int threads, steps;
    bool overfit; /* the same sequences in every step, without weight decay and clipping */
    bool retied;  /* gpt2 with its own lm_head, llama with the embedding as lm_head */
    bool packed;  /* documents of DOCUMENT tokens, which do not attend to each other */
    int micros;   /* 0: one */
    double loss[LONGEST], norm[LONGEST];
} Run;

/* Odd sizes, none a multiple of a vector. */
static const ModelField llama_sizes[] = {
    {"tie_word_embeddings", "true", "test", 2}, {"num_hidden_layers", "2", "test", 2},
    {"hidden_size", "44", "test", 2},           {"num_attention_heads", "4", "test", 2},
    {"num_key_value_heads", "2", "test", 2},    {"head_dim", "10", "test", 2},
    {"intermediate_size", "77", "test", 2},     {"vocab_size", "53", "test", 2}};
static const ModelField gpt2_sizes[] = {{"tie_word_embeddings", "false", "test", 2},
                                        {"n_layer", "2", "test", 2},
                                        {"n_embd", "36", "test", 2},
                                        {"n_head", "4", "test", 2},
                                        {"n_inner", "91", "test", 2},
                                        {"vocab_size", "47", "test", 2}};

enum {
    N_LLAMA = sizeof llama_sizes / sizeof *llama_sizes,
    N_GPT2 = sizeof gpt2_sizes / sizeof *gpt2_sizes
};

/* Most tokens follow from the one before, and from the parity of the row where attention can know
 * it: there is something to learn. */
static void fill_batch(Rank *r, const Run *run, int step, int32_t vocab)
{
    const int32_t rows = ROWS / (run->micros ? run->micros : 1);
    InputRow row = {.weight = 1};
    for (int32_t i = 0; i < ROWS; i++) {
        const int32_t at = i % LENGTH, local = i % rows;
        const int32_t odd = run->packed ? 0 : (i + 1 + step) % 2;
        row.token = at == 0 ? (step * 7 + i) % vocab : row.target;
        row.target = (row.token * 3 + 1 + odd) % vocab;
        row.position = at;
        row.range[0] = local - (run->packed ? at % DOCUMENT : at);
        row.range[1] = local + 1;
        rank_put_row(r, i / rows, local, &row);
    }
}

static void train(Run *run)
{
    const bool gpt2 = strncmp(run->model, "gpt2", 4) == 0;
    Arena arena;
    ModelConfig config;
    Job job;
    Rank rank;
    Team *team = NULL;
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    const int skip = !run->retied; /* the first row */
    const ModelField *const sizes = gpt2 ? gpt2_sizes : llama_sizes;
    const int n = gpt2 ? N_GPT2 : N_LLAMA;
    DO(model_config_load(run->model, sizes + skip, n - skip, &arena, &config));
    const JobSettings set = {.kind = JOB_STEP,
                             .config = &config,
                             .dtype = run->dtype,
                             .batch = {SEQUENCES / (run->micros ? run->micros : 1), LENGTH},
                             .micros = run->micros ? run->micros : 1,
                             .schedule = "1f1b",
                             .optim = {.kind = OPTIM_ADAMW,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = run->overfit ? 0 : 0.1,
                                       .clip = run->overfit ? 0 : 1,
                                       .block = 65536}};
    DO(job_compile(&set, &arena, &job));
    if (run->threads > 1) DO(team_open(&team, run->threads, NULL));
    const RankSettings rank_set = {
        .program = &job.linked, .device = run->device, .team = team, .optim = set.optim};
    DO(rank_open(&rank, &rank_set));
    DO(rank_init_weights(&rank, 2));
    for (int i = 0; i < run->steps; i++) {
        StepResult result;
        fill_batch(&rank, run, run->overfit ? 0 : i, (int32_t)config.vocab);
        DO(rank_step(&rank, &(StepSettings){.step = i + 1, .lr = 3e-3}, &result));
        run->loss[i] = result.loss;
        run->norm[i] = result.grad_norm;
    }
    rank_close(&rank);
    team_close(team);
    arena_close(&arena);
}

static const Device *cpu(void)
{
    const Device *device;
    DO(device_cpu_open(NULL, &device));
    return device;
}

/* The largest distance of two curves, relative to the first loss. */
static double largest_distance(const Run *a, const Run *b)
{
    double most = 0;
    for (int i = 0; i < a->steps; i++)
        most = fmax(most, fabs(a->loss[i] - b->loss[i]) / a->loss[0]);
    return most;
}

/* f32 has errors of a few 2^-24 per step, which Adam's division by small moments amplifies; bf16
 * has 2^-8 in every activation. The curves must also descend. */
static void curves(void **state)
{
    (void)state;
    const char *const model[] = {"llama-tiny", "gpt2-tiny"};
    for (int m = 0; m < 2; m++) {
        Run exact = {.model = model[m], .dtype = F64, .device = &device_ref, .steps = STEPS};
        Run single = {.model = model[m], .dtype = F32, .device = cpu(), .steps = STEPS};
        Run narrow = {.model = model[m], .dtype = BF16, .device = cpu(), .steps = STEPS};
        train(&exact);
        train(&single);
        train(&narrow);
        print_message("%s: loss %.4f -> %.4f (f64), %.4f (f32), %.4f (bf16); apart %.1e, %.1e\n",
                      model[m], exact.loss[0], exact.loss[STEPS - 1], single.loss[STEPS - 1],
                      narrow.loss[STEPS - 1], largest_distance(&exact, &single),
                      largest_distance(&single, &narrow));
        assert_true(exact.loss[STEPS - 1] < 0.6 * exact.loss[0]);
        assert_true(fabs(exact.loss[0] - single.loss[0]) < 1e-6 * exact.loss[0]);
        assert_true(largest_distance(&exact, &single) < 1e-4);
        assert_true(largest_distance(&single, &narrow) < 5e-2);
    }
}

/* The same sequences 200 times, to a loss near 0: there the probability of a target is near 1, and
 * the loss and its gradient are small differences. f32 ends within one rounding per step of f64,
 * relative to the loss at the end. Initial weights matter: from some, steps of Adam amplify one
 * rounding of a weight a thousandfold, in f64 too. */
static void overfitted(void **state)
{
    (void)state;
    static const Run setting[] = {
        {.model = "llama-tiny", .packed = true, .threads = 3},
        {.model = "llama-tiny", .retied = true},
        {.model = "gpt2-tiny"},
        {.model = "gpt2-tiny", .retied = true, .packed = true, .threads = 2, .micros = SEQUENCES},
    };
    for (int i = 0; i < (int)(sizeof setting / sizeof *setting); i++) {
        Run exact = setting[i], single = setting[i];
        exact.dtype = F64;
        exact.device = &device_ref;
        single.dtype = F32;
        single.device = cpu();
        exact.steps = single.steps = LONGEST;
        exact.overfit = single.overfit = true;
        train(&exact);
        train(&single);
        const double end = exact.loss[LONGEST - 1], roundings = LONGEST * ldexp(1, -24);
        const double apart = fabs(single.loss[LONGEST - 1] / end - 1);
        print_message("%s%s%s, overfitted: loss %.1e (f64), f32 apart %.1e of it\n", single.model,
                      single.retied ? ", other tie" : "", single.packed ? ", packed" : "", end,
                      apart);
        assert_true(end < 2e-3);
        assert_true(apart < roundings);
    }
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const DType dtype = cpu_types[i / 2];
        const char *const model = i % 2 ? "gpt2-tiny" : "llama-tiny";
        Run first = {.model = model, .dtype = dtype, .device = cpu(), .threads = 1, .steps = 12};
        train(&first);
        for (int n = 1; n <= MAX_THREADS; n++) { /* n = 1 also compares run with run */
            Run other = {
                .model = model, .dtype = dtype, .device = cpu(), .threads = n, .steps = 12};
            train(&other);
            assert_memory_equal(first.loss, other.loss, sizeof first.loss);
            assert_memory_equal(first.norm, other.norm, sizeof first.norm);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curves),
        cmocka_unit_test(overfitted),
        cmocka_unit_test(threads_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
