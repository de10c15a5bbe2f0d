/* test_layer_rules.c -- values for some layers: parsed from a file or arguments, printed and read
 * again, applied to the units of a job; anything ambiguous or without effect is refused with its
 * place. */
#define _POSIX_C_SOURCE 200809L
#include "support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/config/job.h"
#include "cli/config/layer_rules.h"
#include "cli/config/print.h"

static Arena arena;
static char path[] = "/tmp/sheaf-rules-XXXXXX";

static int open_all(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0 || arena_open(&arena, "rules", ARENA_PLENTY) != OK;
}

static int close_all(void **state)
{
    (void)state;
    arena_close(&arena);
    return unlink(path);
}

/* Loads the lines below `parallel:`; the first of them is line 8 of the file. */
static Err load(const char *lines, Config *c)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "model:\n  name: llama-tiny\n  num_hidden_layers: 6\n"
            "run:\n  device: cpu\nmesh: {dp: 2, tp: 2}\nparallel:\n%s",
            lines);
    assert_int_equal(fclose(f), 0);
    return config_load(path, NULL, 0, &arena, c);
}

static Err settings_of(const char *lines, Config *c, JobSettings *out)
{
    static ModelConfig model;
    TRY(load(lines, c));
    TRY(config_model(c, &arena, &model));
    return config_job(c, &model, out);
}

static const char example[] =
    "  zero: [3@layers:0-2, 1, 0@head]\n"
    "  recompute: [full@layers:0, mlp.act+mid@layers:2-4, selective]\n"
    "  offload: [attn.in@layers:5]\n"
    "  sequence: [true@layers:1-3]\n"
    "  regather: [false@layers:3]\n"
    "  zero_weights: [mlp.*=3+self_attn.*=2@layers:1, mlp.down_proj.*=0]\n";

static void check_example(const JobSettings *s)
{
    static const int zero[] = {1, 3, 3, 3, 1, 1, 1, 0};
    const UnitOptions *u = s->parallel.units;
    assert_non_null(u);
    for (int i = 0; i < 8; i++) {
        const bool named = i >= 3 && i <= 5;
        assert_int_equal(u[i].zero, zero[i]);
        assert_false(u[i].reduce_each);
        assert_int_equal(u[i].recompute, i == 1  ? RECOMPUTE_FULL
                                         : named ? RECOMPUTE_NAMED
                                                 : RECOMPUTE_SELECTIVE);
        if (named) assert_string_equal(u[i].recompute_names, "mlp.act,mid");
        assert_int_equal(u[i].offload_names != NULL, i == 6);
        assert_int_equal(u[i].sequence, i >= 2 && i <= 4);
        assert_int_equal(u[i].keep_gathered, i == 4);
        assert_string_equal(u[i].zero_weights,
                            i == 2 ? "mlp.*=3,self_attn.*=2" : "mlp.down_proj.*=0");
    }
}

static void rules_reach_the_units(void **state)
{
    static Config c;
    JobSettings s;
    (void)state;
    DO(settings_of(example, &c, &s));
    assert_int_equal(c.parallel_zero, 1);
    assert_int_equal(c.parallel_reduce, REDUCE_LAST);
    check_example(&s);
    DO(settings_of("  zero: 1\n", &c, &s));
    assert_null(s.parallel.units);
}

/* The configuration that a run folder stores gives the same units. */
static void printed_rules_load_again(void **state)
{
    static Config c, again;
    static ModelConfig model;
    JobSettings s;
    const char *yaml;
    FILE *f;
    (void)state;
    DO(load(example, &c));
    Text t = text_in(&arena);
    config_print(&c, &t);
    DO(text_done(&t, &yaml));
    f = fopen(path, "w");
    assert_true(f && fputs(yaml, f) >= 0 && fclose(f) == 0);
    DO(config_load(path, NULL, 0, &arena, &again));
    DO(config_model(&again, &arena, &model));
    DO(config_job(&again, &model, &s));
    check_example(&s);
}

/* An argument replaces the rules of the file, for its own key. */
static void arguments_replace_rules(void **state)
{
    static Config c;
    static ModelConfig model;
    const char *set[] = {"parallel.zero=2@layers:5", "parallel.recompute=none"};
    JobSettings s;
    (void)state;
    DO(load(example, &c));
    DO(config_load(path, set, 2, &arena, &c));
    DO(config_model(&c, &arena, &model));
    DO(config_job(&c, &model, &s));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(s.parallel.units[i].zero, i == 6 ? 2 : 0);
        assert_int_equal(s.parallel.units[i].recompute, RECOMPUTE_NONE);
        assert_int_equal(s.parallel.units[i].sequence, i >= 2 && i <= 4);
    }
}

static const struct {
    const char *lines, *message;
} refused[] = {
    {"  zero: [3@layers:0-3, 1@layers:3-5]\n",
     ":8: parallel.zero: both 3@layers:0-3 and 1@layers:3-5 name layer 3"},
    {"  prepack: true\n  zero: [3@layers:2, 3@layers:2]\n",
     ":9: parallel.zero: both 3@layers:2 and 3@layers:2 name layer 2"},
    {"  zero: [1@embed, 2@embed]\n", "name the embedding"},
    {"  zero: [1@head, 2@head]\n", "name the head"},
    {"  zero: [3@layers:6]\n", ":8: parallel.zero=3@layers:6: llama-tiny has layers 0 to 5"},
    {"  zero: [3@layers:4-9]\n", "has layers 0 to 5"},
    {"  zero: [3@layers:4-2]\n", ":8: parallel.zero=3@layers:4-2: the part after @ must be"},
    {"  zero: [\"3@layers:\"]\n", "the part after @ must be"},
    {"  zero: [3@layers:-1]\n", "the part after @ must be"},
    {"  zero: [3@layers:1-2-3]\n", "the part after @ must be"},
    {"  zero: [4@layers:1]\n", ":8: parallel.zero=4: too large; the most is 3"},
    {"  zero: [x@layers:1]\n", "must be a whole number"},
    {"  zero: [1, 2, 3@layers:1]\n", "several values without layers"},
    {"  zero: [1, 2]\n", "a list, and the key takes one value"},
    {"  live: [1@layers:1]\n", "a list, and the key takes one value"},
    {"  sequence: [yes@layers:1]\n", "must be true or false"},
    {"  context: [ring@layers:1]\n", ":8: parallel.context=ring@layers:1: has no effect"},
    {"  recompute: [+mlp.act@layers:1]\n", "a rule without a value"},
    {"  recompute: [full@0, none@layers:1]\n", "rules for pipeline stages"},
    {"  prepack: true\n  zero: 3\n", "no prepacked weight can be reused"},
};

static void bad_rules_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        static Config c;
        JobSettings s;
        const Err err = settings_of(refused[i].lines, &c, &s);
        if (err != ERR_CONFIG || !strstr(err_text(), refused[i].message))
            fail_msg("%s gives %d: %s", refused[i].lines, (int)err, err_text());
    }
}

/* A pattern of a rule must change a program of one of its layers. */
static void names_must_have_an_effect(void **state)
{
    static Config c;
    static Job job;
    JobSettings s;
    (void)state;
    DO(settings_of("  recompute: [mlp.act@layers:0-1, mlp.atc@layers:2]\n", &c, &s));
    expect_error("name", job_compile(&s, &arena, &job), ERR_CONFIG,
                 ":8: parallel.recompute=mlp.atc: matches no value of any unit; did you "
                 "mean mlp.act?");
    DO(settings_of("  zero_weights: [mlp.*=3@layers:0-1, mlp.*=2@head]\n", &c, &s));
    expect_error("weights", job_compile(&s, &arena, &job), ERR_CONFIG,
                 ":8: parallel.zero_weights=mlp.*: matches no weight of the units");
    DO(settings_of("  recompute: [mlp.act@layers:0-1, head.in@layers:2]\n", &c, &s));
    expect_error("effect", job_compile(&s, &arena, &job), ERR_CONFIG, "head.in");
    DO(settings_of("  zero_weights: [mlp.*=3@layers:0-1]\n", &c, &s));
    DO(job_compile(&s, &arena, &job));
    s.parallel.fold = 2;
    s.parallel.mesh.dp_shard = 1;
    expect_error("fold", job_compile(&s, &arena, &job), ERR_CONFIG,
                 "numerics.fold=2 with parallel.zero_weights=mlp.*=3: gradients");
}

/* Weights below level 2 are reduced once a step, whether a rule for all layers says so or one for
 * some; the others after each micro-batch in any case. */
static void lower_weights_are_reduced_once(void **state)
{
    static const char *const lines[] = {"  zero: 3\n  zero_weights: [mlp.*=1]\n",
                                        "  zero: 3\n  zero_weights: [mlp.*=1@layers:0-1]\n"};
    static Config c;
    JobSettings s;
    (void)state;
    for (int i = 0; i < 2; i++) {
        DO(settings_of(lines[i], &c, &s));
        assert_false(s.parallel.reduce_each);
        DO(settings_of("  zero: 3\n", &c, &s));
        assert_true(s.parallel.reduce_each);
    }
    DO(settings_of("  zero: 3\n  zero_weights: [mlp.*=0]\n  prepack: true\n", &c, &s));
    assert_non_null(s.compile.prepack);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rules_reach_the_units),
                                       cmocka_unit_test(printed_rules_load_again),
                                       cmocka_unit_test(arguments_replace_rules),
                                       cmocka_unit_test(bad_rules_are_refused),
                                       cmocka_unit_test(names_must_have_an_effect),
                                       cmocka_unit_test(lower_weights_are_reduced_once)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
