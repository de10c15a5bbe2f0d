/* test_ranks_tokens.c -- tokens over cp against one rank: f64 on ref, within 1e-10. Losses, norms,
 * gradients, weights, moments and the validation loss are compared: a wrong gradient hides behind a
 * right loss. Two sequences per micro-batch, since a map over their concatenation is right for
 * one. */
#include "support/expect.h"

#include <stdio.h>
#include "support/world.h"

enum { STEPS = 2 };

static World world(const char *model, int micros)
{
    World w = world_of(test_job_settings(model, JOB_STEP));
    w.set.batch.sequences = 2;
    w.set.micros = micros;
    w.set.optim.clip = 0.4;
    w.set.parallel.context = CONTEXT_GATHER; /* plans assume that no document spans sequences */
    w.steps = STEPS;
    w.validate = true;
    return w;
}

static void compare(const char *name, const World *one, const World *many)
{
    WorldResult a, b;
    DO(world_run_job(one, &a));
    if (world_run_job(many, &b) != OK) fail_msg("%s: %s", name, err_text());
    const double off = world_differ_all(&a, &b);
    if (!(off <= 1e-10)) fail_msg("%s: off by %g", name, off);
    assert_int_equal(b.scalars_sent > 0, b.ranks > 1);
    world_result_close(&a);
    world_result_close(&b);
}

static const char *const models[] = {"llama", "gpt2", "mistral", "qwen3", "llama-tied"};

/* TEST_T tokens divide by no 2 cp; with cp=8 some parts have one token. */
static void every_map(void **state)
{
    (void)state;
    static const int sizes[] = {2, 3, 4, 5, 8};
    for (int i = 0; i < 5; i++)
        for (int map = TOKENS_CONTIGUOUS; map < N_TOKEN_MAPS; map++) {
            char name[64];
            const char *model = models[(i + map) % 5];
            World one = world(model, 2), many = world(model, 2);
            many.set.parallel.mesh.cp = sizes[i];
            many.set.parallel.tokens = (TokenMap)map;
            many.set.parallel.zero = (i + map) % 4;
            snprintf(name, sizeof name, "%s, cp=%d %s", model, sizes[i],
                     token_map_name((TokenMap)map));
            compare(name, &one, &many);
        }
}

/* A last micro-batch of one sequence, of a part of it, of one token: most ranks then have no live
 * row there. Keys are all-gathered, or heads exchanged, or both. The printed loss was right with
 * the wrong live rows; the gradients were not. */
static void short_last_batch(void **state)
{
    (void)state;
    static const int64_t rows[] = {TEST_T, TEST_T + 1, 2 * TEST_T - 1, 4, 1};
    for (int map = TOKENS_CONTIGUOUS; map < N_TOKEN_MAPS; map++)
        for (int i = 0; i < 5; i++)
            for (int cp = 2; cp <= 4; cp += 1 + i % 2) {
                char name[64];
                World one = world("llama", 3), many = world("llama", 3);
                one.rows = many.rows = rows[i];
                one.numbers = many.numbers = 3;
                one.validate = many.validate = i == 0;
                many.set.parallel.mesh.cp = cp;
                many.set.parallel.mesh.cp_heads = cp == 4 ? 2 : 0;
                if (cp == 2 && i % 2) many.set.parallel.context = CONTEXT_ULYSSES;
                many.set.parallel.tokens = (TokenMap)map;
                snprintf(name, sizeof name, "%d rows, cp=%d %s", (int)rows[i], cp,
                         token_map_name((TokenMap)map));
                compare(name, &one, &many);
            }
}

/* Tokens are cut over cp, then over tp. */
static void with_tensor_and_sequence(void **state)
{
    (void)state;
    for (int variant = 0; variant < 6; variant++) {
        World one = world("llama", 2), many = world("llama", 2);
        many.set.parallel.mesh.cp = 2 + variant % 2;
        many.set.parallel.mesh.tp = 2;
        many.set.parallel.sequence = variant / 3;
        many.set.parallel.tokens = (TokenMap)(TOKENS_CONTIGUOUS + variant % 3);
        one.rows = many.rows = TEST_T - 2;
        one.numbers = many.numbers = 2;
        compare("x tp", &one, &many);
    }
}

/* HSDP, ZeRO and stages beside cp; recomputation. */
static void with_other_axes(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        World one = world("llama-tied", 8), many = world("llama-tied", 2);
        many.set.parallel.mesh = (MeshSizes){.dp_replicate = 2, .dp_shard = 2, .cp = 3};
        many.set.parallel.zero = zero;
        many.set.parallel.tokens = TOKENS_STRIPED;
        many.set.compile.recompute = zero % 2 ? RECOMPUTE_FULL : RECOMPUTE_SELECTIVE;
        one.numbers = many.numbers = 7;
        one.rows = many.rows = TEST_T;
        compare("HSDP", &one, &many);
        many = world("llama-tied", 8);
        many.set.parallel.mesh = (MeshSizes){.cp = 2, .pp = 2};
        many.set.parallel.zero = zero;
        many.numbers = one.numbers;
        many.rows = one.rows;
        compare("stages", &one, &many);
    }
}

/* No live token anywhere: loss and norm are 0, nothing is NaN. */
static void without_tokens(void **state)
{
    (void)state;
    World w = world("llama", 1);
    WorldResult r;
    w.set.parallel.mesh.cp = 3;
    w.set.parallel.tokens = TOKENS_ZIGZAG;
    w.without = 0;
    w.validate = false;
    DO(world_run_job(&w, &r));
    for (int s = 0; s < w.steps; s++)
        assert_true(r.live[s] == 0 && r.loss[s] == 0 && r.norm[s] == 0);
    assert_true(world_differ(&r, &r, PART_MASTER) == 0);
    world_result_close(&r);
}

/* Copies of packs in the programs of a rank. */
static int64_t count_copies(const Job *job)
{
    int64_t n = 0;
    for (int k = 0; k < job->model.n_kinds; k++)
        for (int i = 0; i < job->program[k].n_instr; i++) {
            const Instr *in = &job->program[k].instr[i];
            if (in->op == OP_pack) n += job->program[k].move[in->attr.move.index].n_copies;
        }
    return n;
}

/* A striped sequence of 16,384 tokens moves as one box per rank, like a zigzag one as two. */
static void long_sequences_have_few_boxes(void **state)
{
    (void)state;
    for (int map = TOKENS_ZIGZAG; map < N_TOKEN_MAPS; map++) {
        static Job job;
        Arena arena;
        JobSettings set = test_job_settings("llama", JOB_STEP);
        ModelConfig longer = *set.config;
        set.batch.seq_len = longer.max_positions = 16384;
        set.config = &longer;
        set.parallel.mesh.cp = 4;
        set.parallel.context = CONTEXT_GATHER;
        set.parallel.tokens = (TokenMap)map;
        DO(arena_open(&arena, "job", ARENA_PLENTY));
        DO(job_compile(&set, &arena, &job));
        const int64_t n = count_copies(&job), boxes = map == TOKENS_STRIPED ? 4 : 7;
        /* keys and values: unpacked in F, in I and in B, their gradients packed in I and in B */
        assert_int_equal(n, 2 * 5 * boxes);
        arena_close(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_map),
        cmocka_unit_test(short_last_batch),
        cmocka_unit_test(with_tensor_and_sequence),
        cmocka_unit_test(with_other_axes),
        cmocka_unit_test(without_tokens),
        cmocka_unit_test(long_sequences_have_few_boxes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
