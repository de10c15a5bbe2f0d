/* test_split_cost.c -- parallel.split=cost: all ranks split the model alike, whatever their own
 * shares of it are, and the layouts run with the numbers of one rank. */
#include "support/expect.h"
#include "support/jobs.h"

#include <stdio.h>
#include <string.h>

#include "verify/layouts.h"
#include "verify/trial.h"

typedef struct {
    const char *model;
    int layers, vocab, tp, pp;
    Recompute at_last; /* on the last stage; NONE: no rule */
    Recompute all;     /* on the others */
} SplitCase;

/* Sizes near the point where a rank's own flops would move a unit to another stage. */
static const SplitCase cases[] = {
    {"gpt2", 5, 280, 2, 2, RECOMPUTE_NONE, RECOMPUTE_NONE}, /* heads 2 and 1 */
    {"gpt2", 5, 280, 2, 3, RECOMPUTE_NONE, RECOMPUTE_NONE},
    {"gpt2", 6, 144, 2, 2, RECOMPUTE_NONE, RECOMPUTE_NONE},
    {"gpt2-untied", 5, 264, 1, 2, RECOMPUTE_FULL, RECOMPUTE_NONE},
    {"llama", 5, 368, 1, 2, RECOMPUTE_FULL, RECOMPUTE_NONE},
    {"llama", 5, 432, 3, 2, RECOMPUTE_FULL, RECOMPUTE_NONE},
    {"llama", 7, 64, 1, 3, RECOMPUTE_FULL, RECOMPUTE_SELECTIVE}, /* JOB_LOSS beside JOB_STEP */
    {"llama", 7, 184, 1, 3, RECOMPUTE_FULL, RECOMPUTE_SELECTIVE},
    {"mistral", 5, 272, 2, 2, RECOMPUTE_NONE, RECOMPUTE_FULL},
};

static JobSettings settings_of(const SplitCase *c, ModelConfig *config)
{
    JobSettings set = test_job_settings(c->model, JOB_STEP);
    *config = *set.config;
    config->n_layers = c->layers;
    config->vocab = c->vocab;
    set.config = config;
    set.parallel.mesh.tp = c->tp;
    set.parallel.mesh.pp = c->pp;
    set.parallel.split = "cost";
    set.compile.recompute = c->all;
    set.stage[0] = (StageRecompute){c->at_last, c->pp - 1, c->pp - 1};
    set.n_stage_rules = c->at_last != RECOMPUTE_NONE;
    return set;
}

/* Writes the first unit of each chunk: "0 4 7". */
static void split_of(const JobSettings *set, char *text)
{
    static Job job; /* large */
    Arena arena;
    DO(arena_open(&arena, "split", ARENA_PLENTY));
    DO(job_compile(set, &arena, &job));
    text[0] = '\0';
    for (int c = 0; c <= job.chunks.chunks; c++)
        sprintf(text + strlen(text), "%s%d", c ? " " : "", job.chunks.first_unit[c]);
    arena_close(&arena);
}

/* Validation runs a forward job on the weights of the training job: it needs the same split. */
static void all_ranks_split_alike(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const SplitCase *c = &cases[i];
        ModelConfig config;
        JobSettings set = settings_of(c, &config);
        char first[256], text[256];
        split_of(&set, first);
        for (int k = 0; k < 2 * c->tp * c->pp; k++) {
            set.parallel.rank = k / 2;
            set.kind = k % 2 ? JOB_LOSS : JOB_STEP;
            split_of(&set, text);
            if (strcmp(text, first) != 0)
                fail_msg("case %zu, %s of rank %d: %s; the step of rank 0: %s", i,
                         k % 2 ? "loss" : "step", k / 2, text, first);
        }
    }
}

/* A head that costs more than all layers gets a stage of its own; recomputation counts. */
static void the_split_follows_the_cost(void **state)
{
    const SplitCase heavy = {"llama", 4, 4000, 1, 2, RECOMPUTE_NONE, RECOMPUTE_NONE};
    ModelConfig config;
    JobSettings set = settings_of(&heavy, &config);
    char text[256];
    (void)state;
    split_of(&set, text);
    assert_string_equal(text, "0 5 6");
    config.vocab = 40;
    split_of(&set, text);
    assert_string_equal(text, "0 3 6");
}

static void numbers_are_those_of_one_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ModelConfig config;
        TrialSettings t = {.job = settings_of(&cases[i], &config),
                           .device = &device_ref,
                           .global = 3,
                           .steps = 2,
                           .lr = 1e-3,
                           .seed = 9,
                           .poison = true};
        Trial one, many;
        Arena arena;
        DO(arena_open(&arena, "split", ARENA_PLENTY));
        DO(trial_run(&t, &arena, &many));
        t.job.parallel = (ParallelSettings){0};
        t.job.n_stage_rules = 0;
        DO(trial_run(&t, &arena, &one));
        const TrialGap gap = trial_gap(&one, &many, t.steps);
        if (!(gap.loss < 1e-10 && gap.gradient < 1e-10 && gap.weight < 1e-10))
            fail_msg("case %zu: loss %.1e, gradients %.1e, weights %.1e", i, gap.loss, gap.gradient,
                     gap.weight);
        assert_true(many.sent_bytes == many.predicted_bytes && many.copies == 0);
        arena_close(&arena);
    }
}

/* The layouts of `sheaf verify` include splits by cost, with tensor parallelism and without. */
static void verify_covers_it(void **state)
{
    ParallelSettings *layout;
    Arena arena;
    int n, by_cost = 0, with_tp = 0;
    (void)state;
    DO(arena_open(&arena, "layouts", ARENA_PLENTY));
    DO(layouts_covering(&(LayoutLimits){6, 4, 4, 2, 2, 0, 4, 0}, &arena, &layout, &n));
    for (int i = 0; i < n; i++) {
        if (!layout[i].split || strcmp(layout[i].split, "cost") != 0) continue;
        assert_true(layout[i].mesh.pp > 1);
        by_cost++;
        with_tp += layout[i].mesh.tp > 1;
    }
    assert_true(by_cost > with_tp && with_tp > 0);
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_split_alike), cmocka_unit_test(the_split_follows_the_cost),
        cmocka_unit_test(numbers_are_those_of_one_rank), cmocka_unit_test(verify_covers_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
