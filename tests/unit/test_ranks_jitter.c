/* test_ranks_jitter.c -- ranks that sleep at random before actions and instructions, over a hostile
 * comm: losses and weights of five steps are the same to the bit in every order, and whether
 * they poll between the tiles of kernels or not. Dead memory is NaN, so reads after the end of a
 * lifetime would show. */
#include "support/expect.h"

#include <math.h>
#include "device/cpu/cpu.h"
#include "support/world.h"

typedef struct {
    const char *model, *schedule;
    int layers, micros;
    MeshSizes mesh;
    int zero;
    bool evict;
    ContextKind context;
    TokenMap tokens;
} Row;

static const Row rows[] = {
    {"llama", "1f1b", 3, 4, {1, 1, 1, 3, 0, 0, 0, 0, false}, 0, false, 0, 0},
    {"llama", "1f1b", 4, 5, {1, 1, 1, 4, 0, 0, 0, 0, false}, 0, true, 0, 0},
    {"gpt2", "interleaved", 4, 5, {1, 2, 1, 2, 0, 0, 0, 0, false}, 3, false, 0, 0},
    {"qwen3", "zbh1", 3, 4, {1, 1, 2, 3, 0, 0, 0, 0, false}, 0, false, 0, 0},
    {"gpt2-untied", "zbv", 4, 3, {1, 2, 1, 2, 0, 0, 0, 0, false}, 2, false, 0, 0},
    {"llama-tied", "dualpipev", 4, 5, {1, 1, 1, 2, 0, 0, 0, 0, false}, 0, false, 0, 0},
    {"llama", "1f1b", 2, 2, {1, 1, 1, 1, 3, 0, 0, 0, false}, 0, false, CONTEXT_RING, TOKENS_ZIGZAG},
    {"qwen3",
     "1f1b",
     2,
     3,
     {1, 2, 1, 1, 2, 0, 0, 0, false},
     3,
     false,
     CONTEXT_RING,
     TOKENS_STRIPED},
    {"llama", "zbv", 4, 3, {1, 1, 1, 2, 3, 0, 0, 0, false}, 0, false, CONTEXT_LIGHTSEQ, 0},
    {"gpt2", "1f1b", 2, 2, {1, 1, 1, 1, 4, 0, 0, 0, false}, 0, false, CONTEXT_TOKEN_RING, 0},
    {"mistral", "1f1b", 2, 2, {1, 1, 2, 1, 4, 0, 0, 0, false}, 0, false, CONTEXT_DOUBLE_RING, 0},
    {"llama", "seq1f1b", 2, 3, {1, 1, 2, 2, 0, 0, 0, 0, false}, 0, false, 0, 0},
};
enum { N_ROWS = sizeof rows / sizeof *rows, SEEDS = 2 };

static World world(const Row *row, ModelConfig *config)
{
    World w = world_of(test_job_settings(row->model, JOB_STEP));
    *config = *w.set.config;
    config->n_layers = row->layers;
    w.set.config = config;
    w.set.dtype = F32;
    w.set.micros = row->micros;
    w.set.optim.clip = 0.4;
    w.set.parallel.mesh = row->mesh;
    w.set.parallel.zero = row->zero;
    w.set.parallel.schedule = row->schedule;
    w.set.parallel.evict = row->evict;
    if (row->context) DO(device_cpu_open(NULL, &w.device)); /* kernels with tiles, which poll */
    w.set.parallel.context = row->context;
    w.set.parallel.tokens = row->tokens;
    w.set.parallel.cp_inner = row->context == CONTEXT_DOUBLE_RING ? 2 : 0;
    return w;
}

static void any_timing(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROWS; i++) {
        ModelConfig config;
        World w = world(&rows[i], &config);
        WorldResult plain, slept;
        char what[128];
        DO(world_run_job(&w, &plain));
        assert_int_equal(plain.delays, 0);
        for (int s = 0; s < w.steps; s++)
            if (!isfinite(plain.loss[s])) fail_msg("%s: step %d: no loss", rows[i].schedule, s);
        w.hostile = true;
        w.threads = 1;
        w.jitter_s = 60e-6;
        for (w.seed = 1; w.seed <= SEEDS; w.seed++) {
            if (world_run_job(&w, &slept) != OK) fail_msg("%s: %s", rows[i].schedule, err_text());
            if (!world_equal(&plain, &slept, what)) fail_msg("%s: %s", rows[i].schedule, what);
            assert_true(slept.delays > (uint64_t)(w.steps * slept.ranks * rows[i].micros));
            world_result_close(&slept);
        }
        world_result_close(&plain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_timing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
