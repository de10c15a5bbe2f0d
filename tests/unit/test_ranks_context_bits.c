/* test_ranks_context_bits.c -- attention over ranks gives the same bits however long transfers and
 * ranks take, and whether or not transfers overlap: in f32 and bf16 on the cpu, for every plan, and
 * in slices. */
#include "support/expect.h"

#include "device/cpu/cpu.h"
#include "support/world.h"

typedef struct {
    const char *model;
    DType dtype;
    ContextKind context;
    MeshSizes mesh;
    TokenMap tokens;
    int inner;
    const char *schedule;
    int slices;
    Recompute recompute;
} Row;

/* rsa is for full masks: its plan has all pairs, of which the ranges leave some. */
static World world(const Row *row)
{
    static ModelConfig full;
    World w = world_of(test_job_settings(row->model, JOB_STEP));
    DO(device_cpu_open(NULL, &w.device));
    full = *w.set.config;
    full.full_mask = true;
    full.n_kv_heads = full.n_heads;
    if (row->context == CONTEXT_RSA) w.set.config = &full;
    w.set.dtype = row->dtype;
    w.set.micros = 2;
    w.set.compile.recompute = row->recompute;
    w.set.parallel = (ParallelSettings){.mesh = row->mesh,
                                        .context = row->context,
                                        .tokens = row->tokens,
                                        .cp_inner = row->inner,
                                        .slices = row->slices};
    if (row->schedule) w.set.schedule = row->schedule;
    w.steps = 2;
    w.validate = true;
    return w;
}

/* The ways to run a step: with delays of transfers, of ranks, without overlap. */
static void disturb(World *w, int way)
{
    w->hostile = way > 0;
    w->seed = (uint64_t)(17 * way + 3);
    w->jitter_s = way % 2 ? 2e-4 : 0;
    w->set.parallel.in_order = way >= 3;
    w->threads = way == 4 ? 2 : 0; /* polls between tiles */
}

static void same_bits(void **state)
{
    static const Row rows[] = {
        {"llama", F32, CONTEXT_GATHER, {.cp = 3}, TOKENS_ZIGZAG, 0, NULL, 0, RECOMPUTE_NONE},
        {"llama", F32, CONTEXT_RING, {.cp = 4}, TOKENS_ZIGZAG, 0, NULL, 0, RECOMPUTE_NONE},
        {"mistral", BF16, CONTEXT_RING, {.cp = 3}, TOKENS_STRIPED, 0, NULL, 0, RECOMPUTE_FULL},
        {"gpt2", BF16, CONTEXT_DOUBLE_RING, {.cp = 4}, TOKENS_ZIGZAG, 2, NULL, 0, RECOMPUTE_NONE},
        {"llama", F32, CONTEXT_LIGHTSEQ, {.cp = 4}, TOKENS_CONTIGUOUS, 0, NULL, 0, RECOMPUTE_FULL},
        {"qwen3", BF16, CONTEXT_LIGHTSEQ, {.cp = 3}, TOKENS_CONTIGUOUS, 0, NULL, 0, RECOMPUTE_NONE},
        {"llama", F32, CONTEXT_TOKEN_RING, {.cp = 4}, TOKENS_ZIGZAG, 0, NULL, 0, RECOMPUTE_NONE},
        {"llama", F32, CONTEXT_RSA, {.cp = 3}, TOKENS_CONTIGUOUS, 0, NULL, 0, RECOMPUTE_NONE},
        {"llama", BF16, CONTEXT_RSA, {.cp = 2}, TOKENS_CONTIGUOUS, 0, NULL, 0, RECOMPUTE_FULL},
        {"gpt2",
         F32,
         CONTEXT_RING,
         {.cp = 2, .pp = 2},
         TOKENS_ZIGZAG,
         0,
         "seq1f1b",
         3,
         RECOMPUTE_NONE},
        {"llama", BF16, CONTEXT_GATHER, {.cp = 3}, TOKENS_ZIGZAG, 0, "gpipe", 2, RECOMPUTE_FULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        World w = world(&rows[i]);
        WorldResult a;
        DO(world_run_job(&w, &a));
        for (int way = 1; way < 5; way++) {
            WorldResult b;
            char what[128];
            disturb(&w, way);
            if (world_run_job(&w, &b) != OK)
                fail_msg("row %d, %s, way %d: %s", (int)i, context_name(rows[i].context), way,
                         err_text());
            if (!world_equal(&a, &b, what))
                fail_msg("row %d, %s, way %d: %s", (int)i, context_name(rows[i].context), way,
                         what);
            world_result_close(&b);
        }
        world_result_close(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
