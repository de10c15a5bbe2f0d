/* test_plan_file.c -- plan files: written and read again; every mistake is refused with its line;
 * the plan wins over the run file, and arguments do not contradict it. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/expect.h"
#include "cli/config/job.h"
#include "cli/config/plan_file.h"

static Arena arena;
static char dir[64];

static int open_all(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/sheaf-plan-XXXXXX");
    return !mkdtemp(dir) || arena_open(&arena, "plan file", ARENA_PLENTY) != OK;
}

static int close_all(void **state)
{
    char command[128];
    (void)state;
    arena_close(&arena);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static const char *file(const char *name, const char *text)
{
    char path[128];
    const char *kept;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    DO(arena_string(&arena, path, &kept));
    return kept;
}

static const char *const run_text = "model:\n  name: llama-tiny\n  num_hidden_layers: 5\n"
                                    "data:\n  seq_len: 64\nbatch:\n  global: 12\n  micro: 4\n"
                                    "mesh:\n  tp: 4\nparallel:\n  zero: 3\n  live: 3\n";

/* The text of a plan for the run file: dp=3 tp=2, micro-batches of 2, ZeRO 1, with predictions. */
static const char *make_plan(const char *run)
{
    static const char *const set[] = {"mesh.tp=2",
                                      "mesh.dp=3",
                                      "batch.micro=2",
                                      "parallel.zero=1",
                                      "parallel.live=2",
                                      "parallel.recompute=selective",
                                      "parallel.sequence=true"};
    Config c;
    ModelConfig model;
    const char *text;
    const PlanPrediction p = {"a \"cluster\"", 12.5, 11.25, 123456789};
    DO(config_load(run, set, 7, &arena, &c));
    DO(config_model(&c, &arena, &model));
    Arena temp;
    DO(arena_open(&temp, "temp", ARENA_PLENTY));
    Text t = text_in(&arena);
    DO(plan_file_text(&c, &model, &(PlanPrediction){"small", p.step_ms, p.bound_ms, p.memory_bytes},
                      &temp, &t));
    DO(text_done(&t, &text));
    arena_close(&temp);
    return text;
}

static Err load(const char *run, const char *plan, const char *argument, Config *c)
{
    ModelConfig model;
    const ConfigSource from = {
        .file = run, .plan = plan, .set = &argument, .n_set = argument ? 1 : 0};
    TRY(config_open(&from, &arena, c));
    return config_model(c, &arena, &model);
}

static void plan_wins_over_the_run_file(void **state)
{
    const char *run = file("run.yaml", run_text);
    const char *plan = file("plan.yaml", make_plan(run));
    Config c;
    (void)state;
    DO(load(run, plan, NULL, &c));
    assert_int_equal(c.mesh_tp, 2);
    assert_int_equal(c.mesh_dp, 3);
    assert_int_equal(c.batch_micro, 2);
    assert_int_equal(c.batch_global, 12); /* not the plan's to decide */
    assert_int_equal(c.parallel_zero, 1);
    assert_int_equal(c.parallel_live, 2);
    assert_true(c.parallel_sequence);
    assert_string_equal(c.parallel_recompute.text, "selective");
    assert_int_equal(c.run_ranks, 6);
    assert_true(c.plan->is_current);
    assert_true(c.plan->predicted.step_ms == 12.5);
    assert_int_equal(c.plan->predicted.memory_bytes, 123456789);
    DO(load(run, plan, "mesh.tp=2", &c)); /* repeats the plan */
    DO(load(run, plan, "optim.lr=2e-3", &c));
    expect_error("another tp", load(run, plan, "mesh.tp=4", &c), ERR_CONFIG,
                 "mesh.tp=4: the plan decides it: mesh.tp=2");
    expect_error("a key that the plan leaves out", load(run, plan, "parallel.evict=true", &c),
                 ERR_CONFIG, "the default, since it is not in the plan");
}

/* Replaces `from` by `to` in the plan, and expects an error that says `want`. */
static void refuse(const char *from, const char *to, const char *want)
{
    const char *run = file("run.yaml", run_text), *text = make_plan(run);
    const char *at = strstr(text, from);
    Config c;
    assert_non_null(at);
    Text t = text_in(&arena);
    text_add(&t, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    DO(text_done(&t, &text));
    expect_error(to, load(run, file("plan.yaml", text), NULL, &c), ERR_CONFIG, want);
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    refuse("  batch: 12", "  batch: 13", "made for batch.global=13, and the run has 12");
    refuse("  seq_len: 64", "  seq_len: 32", "made for data.seq_len=32");
    refuse("  ranks: 6", "  ranks: 8", "made for run.ranks=8, and the run has 6");
    refuse("  dp: 3", "  dp: 2", "made for run.ranks=6, and the run has 4");
    refuse("  precision: f32", "  precision: bf16", "made for precision.compute=bf16");
    refuse("  model: ", "  model: 0123456789abcdef #", "made for another model");
    refuse("  version: 1", "  version: 2", "plan.version is 2");
    refuse("  version: 1\n", "", "the section plan has no version");
    refuse("  0-4:", "  0-3:", "layers end at 3, and the model's layers are 0 to 4");
    refuse("  0-4:", "  0-5:", "remove the others");
    refuse("  0-4:", "  1-4:", "layer 0 is missing");
    refuse("  0-4: ", "  0-2: [zero 1]\n  2-4: ", "layer 2 is there twice");
    refuse("  0-4:", "  0..4:", "is no range");
    refuse("[zero 1", "[zro 1", "unknown word");
    refuse("[zero 1", "[zero 1, zero 2", "zero is given again");
    refuse("[zero 1", "[zero 7", "too large");
    refuse("[zero 1", "[zero", "zero has no value");
    refuse("[zero 1, recompute selective]", "[zero 1, recompute full@0]", "no @ here");
    refuse("  0-4:", "  0-1: [zero 1]\n  3-4:", "layers 3-4: layer 2 is missing");
    refuse("  0-4:", "  0-1: [zero 1]\n  2-3: [zero 9]\n  4-4:", "plan.yaml:21: parallel.zero");
    refuse(
        "  0-4:", "  head: [zero 1]\n  head: [zero 0]\n  0-4:", "layers head: it is there twice");
    refuse("  0-4:", "  tail: [zero 1]\n  0-4:", "is no range");
    refuse("  tp: 2", "  tp: 2\n  tq: 2", "mesh.tq");
    refuse("  tp: 2", "  tp: 2\n  tp: 3", "given again");
    refuse("  micro: 2", "  micro: 2\n  global: 12", "no plan decides it");
    refuse("  sequence: true", "  sequence: true\n  zero: 1", "a plan gives it to layers");
    refuse("parallel:", "paralel:", "did you mean parallel?");
    refuse("  step_ms: 12.5", "  step_ms: fast", "is not a number");
    refuse("  step_ms: 12.5\n", "", "the section predicted has no step_ms");
}

/* A choice that was edited makes the predictions stale; a comment or a default written out does
 * not. */
static void edited_plans_have_no_predictions(void **state)
{
    const char *run = file("run.yaml", run_text), *text = make_plan(run), *edited;
    char *copy;
    Config c;
    (void)state;
    DO(ARENA_NEW(&arena, strlen(text) + 1, &copy));
    memcpy(copy, text, strlen(text) + 1);
    char *at = strstr(copy, "selective");
    assert_non_null(at);
    memcpy(at, "full     ", 9);
    DO(load(run, file("plan.yaml", copy), NULL, &c));
    assert_string_equal(c.parallel_recompute.text, "full");
    assert_false(c.plan->is_current);
    assert_true(c.plan->predicted.step_ms == 0 && !c.plan->predicted.cluster);
    Text t = text_in(&arena);
    const char *mesh = strstr(text, "mesh:\n") + 6;
    text_add(&t, "%.*s  cp: 1 # as before\n", (int)(mesh - text), text);
    const char *cp = strstr(mesh, "  cp: 1\n");
    assert_non_null(cp);
    text_add(&t, "%.*s%s", (int)(cp - mesh), mesh, cp + 8);
    DO(text_done(&t, &edited));
    DO(load(run, file("plan.yaml", edited), NULL, &c));
    assert_true(c.plan->is_current);
}

static const UnitOptions *load_units(const char *run, const char *plan, Config *c)
{
    static ModelConfig model;
    static JobSettings job;
    DO(load(run, file("plan.yaml", plan), NULL, c));
    DO(config_model(c, &arena, &model));
    DO(config_job(c, &model, &job));
    assert_non_null(job.parallel.units);
    return job.parallel.units;
}

/* The plan with its layers replaced. */
static const char *with_layers(const char *text, const char *layers)
{
    const char *at = strstr(text, "layers:\n"), *rest, *out;
    assert_non_null(at);
    rest = strstr(at, "predicted:");
    assert_non_null(rest);
    Text t = text_in(&arena);
    text_add(&t, "%.*slayers:\n%s%s", (int)(at - text), text, layers, rest);
    DO(text_done(&t, &out));
    return out;
}

/* Ranges of layers become options of units; the written plan reads the same again. */
static void layers_may_differ(void **state)
{
    static const int zero[] = {0, 3, 3, 1, 1, 1, 2};
    static const Recompute kept[] = {RECOMPUTE_NONE,     RECOMPUTE_FULL,  RECOMPUTE_FULL,
                                     RECOMPUTE_FULL,     RECOMPUTE_NAMED, RECOMPUTE_NONE,
                                     RECOMPUTE_SELECTIVE};
    const char *run = file("run.yaml", run_text), *again;
    const char *text = with_layers(
        make_plan(run), "  embed: [zero 0]\n  0-1: [zero 3, recompute full]\n"
                        "  2-2: [zero 1, recompute full]\n"
                        "  3-3: [zero 1, recompute mlp.* attn.o]\n"
                        "  4-4: [zero 1, zero_weights mlp.*=3 self_attn.*=0, offload attn.in]\n"
                        "  head: [zero 2, recompute selective]\n");
    Config c, d;
    ModelConfig model;
    (void)state;
    for (int round = 0; round < 2; round++) {
        const UnitOptions *u = load_units(run, text, round ? &d : &c);
        for (int i = 0; i < 7; i++) {
            assert_int_equal(u[i].zero, zero[i]);
            assert_int_equal(u[i].recompute, kept[i]);
            assert_int_equal(u[i].offload_names != NULL, i == 5);
            assert_int_equal(u[i].zero_weights != NULL, i == 5);
        }
        assert_string_equal(u[5].zero_weights, "mlp.*=3,self_attn.*=0");
        assert_string_equal(u[4].recompute_names, "mlp.*,attn.o");
        assert_string_equal(u[5].offload_names, "attn.in");
        DO(config_model(round ? &d : &c, &arena, &model));
        Text t = text_in(&arena);
        Arena temp;
        DO(arena_open(&temp, "temp", ARENA_PLENTY));
        DO(plan_file_text(round ? &d : &c, &model, NULL, &temp, &t));
        arena_close(&temp);
        text_add(&t, "predicted:\n  choices: 0123456789abcdef\n  cluster: x\n  step_ms: 1\n"
                     "  bound_ms: 1\n  memory_bytes: 1\n");
        DO(text_done(&t, &again));
        if (round) assert_string_equal(again, text);
        text = again;
    }
    expect_error("an argument for all", load(run, file("plan.yaml", text), "parallel.zero=1", &c),
                 ERR_CONFIG, "the plan decides it");
    DO(load(run, file("plan.yaml", text), "parallel.zero=3@layers:0-1,1@layers:2-4,2@head,0", &c));
}

/* A range that is split in two with the same words is the same plan: predictions stay. */
static void equal_ranges_are_one(void **state)
{
    const char *run = file("run.yaml", run_text), *text = make_plan(run);
    Config c;
    (void)state;
    text = with_layers(text, "  0-1: [zero 1, recompute selective]\n"
                             "  2-4: [recompute selective, zero 1]\n"
                             "  embed: [zero 1, recompute selective]\n");
    DO(load(run, file("plan.yaml", text), NULL, &c));
    assert_true(c.plan->is_current);
    assert_int_equal(c.n_layer_rules, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_wins_over_the_run_file), cmocka_unit_test(mistakes_are_refused),
        cmocka_unit_test(layers_may_differ), cmocka_unit_test(equal_ranges_are_one),
        cmocka_unit_test(edited_plans_have_no_predictions)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
