/* test_cpu_train.c -- training steps on device/cpu: the loss curve of f32 against ref's f64 and
 * of bf16 against f32, and the same bits for any number of threads and from run to run. */
#include "cpu_test.h"
#include "job/job.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s", err_text());                                              \
    } while (0)

enum { SEQUENCES = 3, LENGTH = 21, ROWS = SEQUENCES * LENGTH, STEPS = 100, LONGEST = 200 };

typedef struct {
    const char *model;
    DType dtype;
    const Device *device;
    int threads, steps;
    bool overfit; /* the same sequences in every step, without weight decay and clipping */
    double loss[LONGEST], norm[LONGEST];
} Run;

/* Odd sizes, none a multiple of a vector. */
static const ModelField llama_sizes[] = {
    {"num_hidden_layers", "2", "test", 2},   {"hidden_size", "44", "test", 2},
    {"num_attention_heads", "4", "test", 2}, {"num_key_value_heads", "2", "test", 2},
    {"head_dim", "10", "test", 2},           {"intermediate_size", "77", "test", 2},
    {"vocab_size", "53", "test", 2}};
static const ModelField gpt2_sizes[] = {{"n_layer", "2", "test", 2},
                                        {"n_embd", "36", "test", 2},
                                        {"n_head", "4", "test", 2},
                                        {"n_inner", "91", "test", 2},
                                        {"vocab_size", "47", "test", 2}};

/* Most tokens follow from the one before: there is something to learn. */
static void fill_batch(Rank *r, int step, int32_t vocab)
{
    const Tensor weights = rank_input(r, 0, INPUT_WEIGHTS);
    int32_t *ids = rank_input(r, 0, INPUT_TOKENS).data,
            *pos = rank_input(r, 0, INPUT_POSITIONS).data;
    int32_t *targets = rank_input(r, 0, INPUT_TARGETS).data;
    int32_t *ranges = rank_input(r, 0, INPUT_RANGES).data;
    for (int32_t i = 0; i < ROWS; i++) {
        const int32_t at = i % LENGTH;
        ids[i] = at == 0 ? (step * 7 + i) % vocab : (ids[i - 1] * 3 + 1 + (i + step) % 2) % vocab;
        targets[i] = (ids[i] * 3 + 1 + (i + 1 + step) % 2) % vocab;
        pos[i] = at;
        put(&weights, i, 1);
        const int32_t range[4] = {i - at, i + 1, 0, 0};
        memcpy(&ranges[4 * i], range, sizeof range);
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
    DO(model_config_load(run->model, gpt2 ? gpt2_sizes : llama_sizes, gpt2 ? 5 : 7, &arena,
                         &config));
    const JobSettings set = {.kind = JOB_STEP,
                             .config = &config,
                             .dtype = run->dtype,
                             .batch = {SEQUENCES, LENGTH},
                             .micros = 1,
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
    DO(rank_init_weights(&rank, 3));
    for (int i = 0; i < run->steps; i++) {
        StepResult result;
        fill_batch(&rank, run->overfit ? 0 : i, (int32_t)config.vocab);
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
 * the loss and its gradient are small differences. f32 stays near f64, relative to the loss at the
 * end. */
static void overfitted(void **state)
{
    (void)state;
    Run exact = {.model = "llama-tiny",
                 .dtype = F64,
                 .device = &device_ref,
                 .steps = LONGEST,
                 .overfit = true};
    Run single = exact;
    single.dtype = F32;
    single.device = cpu();
    train(&exact);
    train(&single);
    const double end = exact.loss[LONGEST - 1], apart = fabs(single.loss[LONGEST - 1] / end - 1);
    print_message("llama-tiny, overfitted: loss %.1e (f64), f32 apart %.1e of it\n", end, apart);
    assert_true(end < 2e-3);
    assert_true(apart < LONGEST * ldexp(1, -24)); /* one rounding per step */
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
