/* test_memory.c -- the peak is known before launch: arenas are filled with a pattern, a step runs,
 * and the highest byte that changed, under either of two complementary patterns, equals the peak of
 * the linked program exactly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "job/job.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s", err_text());                                              \
    } while (0)

typedef struct {
    const char *model, *schedule, *offload;
    Recompute recompute;
    int micros;
    bool split;
    int64_t chunk;
} Case;

/* Odd sizes, so that there is padding and a tail everywhere. */
static const ModelField llama_sizes[] = {{"num_hidden_layers", "3", "test", 2},
                                         {"hidden_size", "28", "test", 2},
                                         {"num_attention_heads", "4", "test", 2},
                                         {"num_key_value_heads", "2", "test", 2},
                                         {"head_dim", "6", "test", 2},
                                         {"intermediate_size", "37", "test", 2},
                                         {"vocab_size", "53", "test", 2}};
static const ModelField gpt2_sizes[] = {{"n_layer", "2", "test", 2},
                                        {"n_embd", "20", "test", 2},
                                        {"n_head", "4", "test", 2},
                                        {"n_inner", "31", "test", 2},
                                        {"vocab_size", "47", "test", 2}};

static void compile_case(const Case *c, Arena *arena, ModelConfig *config, Job *job)
{
    const bool gpt2 = strcmp(c->model, "gpt2-tiny") == 0;
    DO(model_config_load(c->model, gpt2 ? gpt2_sizes : llama_sizes, gpt2 ? 5 : 7, arena, config));
    const JobSettings set = {
        .kind = JOB_STEP,
        .config = config,
        .dtype = F32,
        .batch = {2, 11},
        .micros = c->micros,
        .schedule = c->schedule,
        .split = c->split,
        .compile = {.recompute = c->recompute,
                    .offload_names = c->offload,
                    .chunk_elements = c->chunk},
        .optim = {
            .kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1, .block = 64}};
    DO(job_compile(&set, arena, job));
}

static void fill_inputs(Rank *r, int micros, int64_t vocab)
{
    for (int m = 0; m < micros; m++) {
        int32_t *ids = rank_input(r, m, INPUT_TOKENS).data,
                *targets = rank_input(r, m, INPUT_TARGETS).data;
        int32_t *pos = rank_input(r, m, INPUT_POSITIONS).data,
                *ranges = rank_input(r, m, INPUT_RANGES).data;
        float *weights = rank_input(r, m, INPUT_WEIGHTS).data;
        for (int32_t i = 0; i < 22; i++) {
            ids[i] = (int32_t)((7 * i + 3 * m + 1) % vocab);
            targets[i] = (int32_t)((5 * i + m + 2) % vocab);
            pos[i] = i % 11;
            weights[i] = 1;
            const int32_t row[4] = {i - i % 11, i + 1, 0, 0};
            memcpy(&ranges[4 * i], row, sizeof row);
        }
    }
}

static size_t highest_changed(const char *base, size_t bytes, unsigned char pattern)
{
    for (size_t i = bytes; i > 0; i--)
        if ((unsigned char)base[i - 1] != pattern) return i;
    return 0;
}

/* Bytes of an arena that a step touches: the higher of two runs, rounded up to the alignment. */
static void measure(const Job *job, size_t top[N_ARENAS])
{
    static const unsigned char pattern[2] = {0x5A, 0xA5};
    memset(top, 0, N_ARENAS * sizeof *top);
    for (int p = 0; p < 2; p++) {
        Rank r;
        StepResult result;
        DO(job_open_rank(job, NULL, NULL, &r));
        for (int a = 0; a < N_ARENAS; a++) memset(r.base[a], pattern[p], r.arena[a].used_bytes);
        rank_init_weights(&r, 3);
        fill_inputs(&r, job->settings.micros, job->settings.config->vocab);
        DO(rank_step(&r, &(StepSettings){.step = 1, .lr = 1e-3}, &result));
        for (int a = 0; a < N_ARENAS; a++) {
            const size_t at = highest_changed(r.base[a], r.arena[a].used_bytes, pattern[p]);
            if (at > top[a]) top[a] = align_up(at);
        }
        rank_close(&r);
    }
}

static void peak_is_exact(const Case *c)
{
    Arena arena;
    ModelConfig config;
    Job job;
    size_t top[N_ARENAS];
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    compile_case(c, &arena, &config, &job);
    measure(&job, top);
    for (int a = 0; a < N_ARENAS; a++)
        if (top[a] != job.linked.bytes[a])
            fail_msg(
                "%s %s x %d, recompute %d, split %d: arena %d: %zu bytes touched, %zu predicted",
                c->model, c->schedule, c->micros, (int)c->recompute, c->split, a, top[a],
                job.linked.bytes[a]);
    for (int a = 0; a < N_ARENAS; a++) assert_true(job.linked.live[a] <= job.linked.bytes[a]);
    arena_close(&arena);
}

static void peaks(void **state)
{
    (void)state;
    for (int model = 0; model < 2; model++)
        for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++)
            for (int micros = 1; micros <= 4; micros *= 2)
                for (int schedule = 0; schedule < 2; schedule++)
                    for (int split = 0; split < 2; split++)
                        peak_is_exact(&(Case){.model = model ? "gpt2-tiny" : "llama-tiny",
                                              .recompute = (Recompute)recompute,
                                              .micros = micros,
                                              .schedule = schedule ? "gpipe" : "1f1b",
                                              .split = split,
                                              .chunk = 53 * 4 * (model + 1)});
}

static void peaks_offloaded(void **state)
{
    (void)state;
    for (int micros = 1; micros <= 4; micros *= 2)
        peak_is_exact(&(Case){.model = "llama-tiny",
                              .offload = "mlp.*,attn.out,mid",
                              .micros = micros,
                              .schedule = "gpipe"});
}

static size_t work_of(Case c)
{
    Arena arena;
    ModelConfig config;
    Job job;
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    compile_case(&c, &arena, &config, &job);
    const size_t bytes = job.linked.bytes[ARENA_WORK];
    arena_close(&arena);
    return bytes;
}

/* Each memory option reduces the peak of the work arena. */
static void options_save_memory(void **state)
{
    (void)state;
    const Case base = {.model = "llama-tiny", .schedule = "gpipe", .micros = 4};
    Case c = base;
    const size_t none = work_of(c);
    c.recompute = RECOMPUTE_SELECTIVE;
    const size_t selective = work_of(c);
    c.recompute = RECOMPUTE_FULL;
    const size_t full = work_of(c);
    assert_true(full < selective && selective < none);
    c = base;
    c.schedule = "1f1b"; /* one rank: a micro-batch at a time */
    assert_true(work_of(c) * 2 < none);
    c = base;
    c.offload = "mlp.*";
    assert_true(work_of(c) < none);
}

/* No value has two dims of tokens: eight times the tokens take eight times the bytes. */
static void memory_is_linear_in_tokens(void **state)
{
    (void)state;
    size_t bytes[4];
    for (int i = 0; i < 4; i++) {
        Arena arena;
        ModelConfig config;
        Job job;
        DO(arena_open(&arena, "test", ARENA_PLENTY));
        const ModelField longer = {"max_position_embeddings", "8192", "test", 2};
        DO(model_config_load("llama-tiny", &longer, 1, &arena, &config));
        const JobSettings set = {.kind = JOB_STEP,
                                 .config = &config,
                                 .dtype = F32,
                                 .batch = {1, (int64_t)1024 << i},
                                 .micros = 1,
                                 .schedule = "1f1b",
                                 .compile = {.chunk_elements = 1024 * 256},
                                 .optim = {.block = 64}};
        DO(job_compile(&set, &arena, &job));
        bytes[i] = job.linked.bytes[ARENA_WORK];
        arena_close(&arena);
    }
    for (int i = 1; i < 3; i++) {
        const int64_t step = (int64_t)bytes[i] - (int64_t)bytes[i - 1];
        const int64_t next = (int64_t)bytes[i + 1] - (int64_t)bytes[i];
        assert_int_equal(next, 2 * step);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(peaks), cmocka_unit_test(peaks_offloaded),
                                       cmocka_unit_test(options_save_memory),
                                       cmocka_unit_test(memory_is_linear_in_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
