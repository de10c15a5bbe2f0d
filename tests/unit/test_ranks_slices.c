/* test_ranks_slices.c -- sequences in slices, one after another: f64 on ref, within 1e-10 of one
 * rank that runs whole sequences, over five steps of AdamW with clipping. Cases: slices of
 * uneven lengths and of equal flops; micro-batches that end before the last slice, and empty
 * ones; two documents in a sequence, windows, grouped heads, norms of q and k; every kind of
 * recomputation; one rank, and every kind of parallelism. Transfers are hostile, and unwritten
 * memory is NaN. */
#include "support/expect.h"

#include "device/cpu/cpu.h"
#include "support/world.h"
#include "support/verified.h"

typedef struct {
    const char *model, *schedule;
    int micros; /* of a rank */
    int slices;
    const int64_t *cuts; /* NULL: of equal flops */
    Recompute recompute;
    bool split; /* I and W apart */
    MeshSizes mesh;
    int zero;
    bool sequence, each, empty; /* empty: the last micro-batches have no rows */
    int chunks;
    ContextKind context;
    TokenMap tokens;
} Row;

static const int64_t three[] = {0, 4, 8, 9}, two[] = {0, 2, 9}, late[] = {0, 7, 9},
                     four[] = {0, 1, 5, 7, 9}, nine[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

static int at_least_one(int n) { return n ? n : 1; }

static World world(const Row *row)
{
    World w = world_of(test_job_settings(row->model, JOB_STEP));
    w.set.micros = row->micros;
    w.set.optim.clip = 0.4;
    w.hostile = true;
    w.validate = true;
    w.seed = (uint64_t)(row->slices * 100 + row->micros);
    return w;
}

static World in_slices(const Row *row)
{
    World w = world(row);
    w.set.schedule = row->schedule;
    w.set.split = row->split;
    w.set.compile.recompute = row->recompute;
    w.set.parallel = (ParallelSettings){.mesh = row->mesh,
                                        .zero = row->zero,
                                        .sequence = row->sequence,
                                        .reduce_each = row->each,
                                        .chunks = row->chunks,
                                        .context = row->context,
                                        .tokens = row->tokens,
                                        .slices = row->slices,
                                        .cuts = row->cuts};
    return w;
}

/* The same micro-batches on one rank, whole. */
static World whole(const Row *row)
{
    World w = world(row);
    w.set.micros =
        row->micros * at_least_one(row->mesh.dp_shard) * at_least_one(row->mesh.dp_replicate);
    return w;
}

static void compare(const char *what, int number, const Row *row)
{
    World one = whole(row), many = in_slices(row);
    WorldResult a, b;
    one.numbers = many.numbers = row->empty ? one.set.micros - 1 : 0;
    DO(world_run_job(&one, &a));
    if (world_run_job(&many, &b) != OK)
        fail_msg("%s, row %d, %s: %s", what, number, row->model, err_text());
    const double off = world_differ_all(&a, &b);
    if (!(off <= 1e-10)) fail_msg("%s, row %d, %s: off by %g", what, number, row->model, off);
    world_result_close(&a);
    world_result_close(&b);
}

static void compare_all(const char *what, const Row *row, int n)
{
    for (int i = 0; i < n; i++) compare(what, i, &row[i]);
}
#define COMPARE(rows) compare_all(#rows, rows, sizeof rows / sizeof *rows)

static void one_rank(void **state)
{
    static const Row rows[] = {
        {"llama", "seq1f1b", 3, 3, three, .recompute = RECOMPUTE_NONE},
        {"gpt2", "seq1f1b", 3, 2, two, .recompute = RECOMPUTE_SELECTIVE},
        {"qwen3", "seq1f1b", 2, 4, four, .recompute = RECOMPUTE_FULL},
        {"mistral", "seq1f1b", 3, 3, three, .recompute = RECOMPUTE_FULL, .split = true},
        {"qwen2", "terapipe", 2, 2, NULL, .recompute = RECOMPUTE_SELECTIVE, .split = true},
        {"llama-tied", "gpipe", 2, 2, late, .recompute = RECOMPUTE_NONE, .split = true},
        {"gpt2-untied", "seq1f1b", 4, 9, nine, .recompute = RECOMPUTE_FULL, .empty = true},
        {"llama", "seq1f1b", 1, 2, NULL, .recompute = RECOMPUTE_NONE},
        {"llama", "terapipe", 3, 4, four, .recompute = RECOMPUTE_SELECTIVE, .empty = true},
        {"gpt2", "gpipe", 2, 3, NULL, .recompute = RECOMPUTE_FULL},
        {"mistral", "terapipe", 1, 9, nine, .recompute = RECOMPUTE_NONE},
    };
    (void)state;
    COMPARE(rows);
}

static void many_ranks(void **state)
{
    static const Row rows[] = {
        {"llama", "seq1f1b", 2, 3, three, .mesh = {.dp_shard = 1, .tp = 2}},
        {"gpt2", "seq1f1b", 2, 2, two, .mesh = {.dp_shard = 1, .tp = 3}, .sequence = true},
        {"qwen3", "seq1f1b", 2, 4, four, .mesh = {.dp_shard = 2, .tp = 2}, .sequence = true,
         .zero = 3},
        {"llama-tied", "seq1f1b", 2, 3, three, .mesh = {.dp_shard = 3}, .zero = 3, .empty = true},
        {"llama", "terapipe", 3, 2, late, .mesh = {.dp_replicate = 2, .dp_shard = 2}, .zero = 2},
        {"mistral", "gpipe", 2, 3, NULL, .mesh = {.dp_shard = 2}, .zero = 1, .each = true},
        {"llama", "seq1f1b", 2, 3, three, RECOMPUTE_FULL, .mesh = {.dp_shard = 1, .tp = 4},
         .sequence = true},
        {"gpt2", "terapipe", 2, 4, four, RECOMPUTE_SELECTIVE, .mesh = {.dp_shard = 2, .tp = 2},
         .zero = 2},
    };
    (void)state;
    COMPARE(rows);
}

static void pipelines(void **state)
{
    static const Row rows[] = {
        {"llama-tied", "seq1f1b", 3, 3, three, .mesh = {.dp_shard = 1, .pp = 2}},
        {"gpt2", "seq1f1b", 1, 4, four, .mesh = {.dp_shard = 1, .pp = 4}},
        {"qwen3", "terapipe", 2, 3, three, RECOMPUTE_FULL, .mesh = {.dp_shard = 1, .pp = 3}},
        {"llama", "gpipe", 2, 2, NULL, RECOMPUTE_SELECTIVE, true, .mesh = {.dp_shard = 1, .pp = 2}},
        {"mistral", "seq1f1b", 2, 2, two, .mesh = {.dp_shard = 2, .pp = 2}, .zero = 3,
         .empty = true},
        {"llama", "seq1f1b", 3, 3, three, .mesh = {.dp_shard = 1, .tp = 2, .pp = 2},
         .sequence = true},
        {"gpt2-untied", "seq1f1b", 2, 9, nine, .mesh = {.dp_shard = 2, .pp = 3}, .zero = 2},
    };
    (void)state;
    COMPARE(rows);
}

/* Tokens over cp, dealt slice by slice: slices shorter than the number of ranks, in rings of up to
 * four; some ranks have no rows of a slice. */
static void over_context(void **state)
{
    static const Row rows[] = {
        {"llama", "seq1f1b", 3, 3, three, .mesh = {.cp = 2}, .context = CONTEXT_RING},
        {"qwen3", "seq1f1b", 2, 4, four, .mesh = {.cp = 3}, .context = CONTEXT_GATHER},
        {"mistral", "seq1f1b", 2, 3, three, RECOMPUTE_FULL, true, .mesh = {.cp = 4},
         .context = CONTEXT_RING, .tokens = TOKENS_STRIPED},
        {"gpt2", "terapipe", 2, 2, late, RECOMPUTE_SELECTIVE, .mesh = {.cp = 2, .pp = 2},
         .context = CONTEXT_ULYSSES},
        {"llama-tied", "seq1f1b", 2, 9, nine, .mesh = {.cp = 2, .pp = 2}, .zero = 3,
         .context = CONTEXT_DOUBLE_RING, .empty = true},
        {"llama", "gpipe", 2, 3, NULL, .split = true, .mesh = {.cp = 4, .cp_heads = 2}, .zero = 2,
         .context = CONTEXT_RING, .tokens = TOKENS_CONTIGUOUS},
        {"llama", "seq1f1b", 2, 2, two, RECOMPUTE_FULL, .mesh = {.cp = 2, .tp = 2},
         .sequence = true, .context = CONTEXT_GATHER, .empty = true},
        {"gpt2-untied", "terapipe", 1, 4, four, .mesh = {.cp = 4, .cp_heads = 2, .dp_shard = 2},
         .zero = 3, .context = CONTEXT_GATHER},
    };
    (void)state;
    COMPARE(rows);
}

/* Recomputing and splitting change no bit, also in f32 on the cpu. */
static void same_bits(void **state)
{
    const Row first = {"llama", "seq1f1b", 3, 3, three, .recompute = RECOMPUTE_NONE};
    static const Recompute mode[] = {RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_NONE};
    WorldResult a, b;
    (void)state;
    World w = in_slices(&first);
    w.set.dtype = F32;
    DO(device_cpu_open(NULL, &w.device));
    DO(world_run_job(&w, &a));
    for (int i = 0; i < 3; i++) {
        char what[128];
        w.set.compile.recompute = mode[i];
        w.set.compile.offload_names = i == 2 ? "attn.*,mid" : NULL;
        w.set.split = i > 0;
        DO(world_run_job(&w, &b));
        if (!world_equal(&a, &b, what)) fail_msg("mode %d: %s", i, what);
        world_result_close(&b);
    }
    world_result_close(&a);
}

/* As `sheaf verify` does: layouts as words, three grades; the bits of one stage, of a fold, and of
 * zero 0 with the same slices. */
static void verified(void **state)
{
    static const char *const words[] = {"schedule=seq1f1b slices=3 dp=2",
                                        "schedule=seq1f1b slices=2 pp=3",
                                        "schedule=terapipe pp=2",
                                        "schedule=gpipe slices=3 dp=2 zero=3",
                                        "schedule=seq1f1b slices=4 tp=2 sequence",
                                        "schedule=seq1f1b slices=7 pp=2 dp=2 zero=2"};
    static const int exact[] = {1, 1, 0, 1, 0, 1};
    const VerifySettings s = verified_cpu(test_model("llama"), F32, 1, 7);
    Arena arena;
    (void)state;
    DO(arena_open(&arena, "verified", ARENA_PLENTY));
    for (int i = 0; i < 6; i++) {
        VerifyLine line[MAX_VERIFY_LINES];
        ParallelSettings layout;
        int grades[N_GRADES] = {0};
        DO(layout_parse(words[i], strlen(words[i]), &layout));
        const int n = expect_verified(&s, &layout, &arena, line);
        for (int k = 0; k < n; k++) grades[line[k].grade]++;
        assert_int_equal(grades[GRADE_EXACT], exact[i]);
    }
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),     cmocka_unit_test(many_ranks), cmocka_unit_test(pipelines),
        cmocka_unit_test(over_context), cmocka_unit_test(same_bits),  cmocka_unit_test(verified),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
