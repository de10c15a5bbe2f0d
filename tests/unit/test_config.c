/* test_config.c -- defaults, a run file and arguments become a Config; anything invalid is refused
 * with its place. */
#define _POSIX_C_SOURCE 200809L
#include "support/config_fixture.h"

#include <stdio.h>
#include <string.h>
#include "cli/args.h"
#include "cli/config/print.h"
#include "cli/config/keys.h"

static void defaults_are_the_table(void **state)
{
    Fixture *f = *state;
    Config c;
    assert_int_equal(load_arg(f, "run.threads=3", &c), OK);
    assert_string_equal(c.model_name, "gpt2-tiny");
    assert_true(c.optim_lr == 3e-4 && c.optim_beta2 == 0.95 && c.optim_clip == 1.0);
    assert_int_equal(c.optim_kind, RULE_ADAMW);
    assert_int_equal(c.optim_schedule, LR_COSINE);
    assert_string_equal(c.parallel_schedule, "1f1b");
    assert_int_equal(c.precision_compute, COMPUTE_F32);
    assert_int_equal(c.run_device, DEVICE_AUTO);
    assert_int_equal(c.numerics_block, 65536);
    assert_int_equal(c.mesh_dp, 1); /* -1, settled */
    assert_int_equal(c.run_ranks, 1);
    assert_int_equal(c.run_threads, 3);
    assert_int_equal(c.data_train.n, 0);
    assert_int_equal(c.parallel_recompute.n, 1);
    assert_string_equal(c.parallel_recompute.at[0], "none");
    assert_string_equal(c.origin[KEY_optim_lr], "default");
    assert_string_equal(c.origin[KEY_run_threads], "command line");
}

/* Every default is within the limits of its row and supported; every CHOICE has options. */
static void every_row_is_consistent(void **state)
{
    Fixture *f = *state;
    for (int i = 0; i < N_KEYS; i++) {
        const Key *key = key_at((KeyId)i);
        Config c;
        char argument[256];
        assert_int_equal(key_find(key->section, key->name), i);
        assert_true(section_find(key->section) >= 0);
        assert_true(strlen(key->meaning) > 3);
        assert_int_equal(key->works == NULL, key->why == NULL);
        snprintf(argument, sizeof argument, "%s=%s", key->path, key->fallback);
        if (strcmp(key->path, "model.name") != 0 && *key->fallback)
            assert_int_equal(load_arg(f, argument, &c), OK);
    }
}

static void file_then_arguments(void **state)
{
    static const char yaml[] = "# a run\n"
                               "model:\n"
                               "  name: llama-tiny\n"
                               "  num_hidden_layers: 3\n"
                               "  rope_scaling.rope_type: linear\n"
                               "  rope_scaling.factor: 2.5\n"
                               "optim: {kind: sgd, lr: 1e-3, schedule: wsd}\n"
                               "batch:\n"
                               "  global: 7\n"
                               "  micro: 2\n"
                               "mesh:\n"
                               "parallel:\n"
                               "  recompute: [\"*.mlp.*\", layer.1.attn.in]\n";
    Fixture *f = *state;
    Config c;
    ModelConfig m;
    assert_int_equal(load_bytes(f, yaml, sizeof yaml - 1, &c), OK);
    const char *set[] = {"optim.lr=2e-3", "model.num_hidden_layers=5", "parallel.schedule=gpipe"};
    assert_int_equal(config_load(f->path, set, 3, &f->arena, &c), OK);
    assert_true(c.optim_lr == 2e-3);
    assert_int_equal(c.optim_kind, RULE_SGD);
    assert_int_equal(c.optim_schedule, LR_WSD);
    assert_string_equal(c.parallel_schedule, "gpipe");
    assert_int_equal(config_micros(&c), 4); /* 2 2 2 1 */
    assert_int_equal(c.parallel_recompute.n, 2);
    assert_string_equal(c.parallel_recompute.at[1], "layer.1.attn.in");
    assert_string_equal(c.origin[KEY_optim_lr], "command line");
    assert_non_null(strstr(c.origin[KEY_batch_micro], ":10"));
    assert_int_equal(config_model(&c, &f->arena, &m), OK);
    assert_int_equal(m.n_layers, 5);
    assert_int_equal(m.rope.scaling, ROPE_LINEAR);
    assert_true(m.rope.factor == 2.5);
}

static void sequences_fit_the_positions(void **state)
{
    Fixture *f = *state;
    Config c;
    ModelConfig m;
    assert_int_equal(load_arg(f, "data.seq_len=1024", &c), OK);
    assert_int_equal(config_model(&c, &f->arena, &m), OK);
    assert_int_equal(load_arg(f, "data.seq_len=1025", &c), OK);
    assert_int_equal(config_model(&c, &f->arena, &m), ERR_CONFIG);
    assert_message("more than the 1024 positions of gpt2-tiny; set data.seq_len=1024 or "
                   "model.max_position_embeddings=1025");
}

typedef struct {
    const char *set[4];
    int64_t ranks, dp, replicate, shard, micros; /* ranks 0: refused with the message below */
    const char *message;
} MeshCase;

static const MeshCase mesh_cases[] = {
    {{"run.ranks=6"}, 6, 6, 1, 6, 2, NULL},
    {{"run.ranks=6", "mesh.tp=2"}, 6, 3, 1, 3, 3, NULL},
    {{"mesh.tp=2", "mesh.dp=5"}, 10, 5, 1, 5, 2, NULL},
    {{"mesh.dp_replicate=2", "mesh.dp_shard=3"}, 6, 6, 2, 3, 2, NULL},
    {{"mesh.dp_shard=3", "mesh.dp=3"}, 3, 3, 1, 3, 3, NULL},
    {{"numerics.fold=3"}, 1, 1, 1, 1, 9, NULL},
    {{"run.ranks=5", "mesh.tp=2"},
     0,
     0,
     0,
     0,
     0,
     "run.ranks=5 is no multiple of the other axes, "
     "tp x cp x pp = 2 x 1 x 1 = 2; set run.ranks=6"},
    {{"run.ranks=4", "mesh.tp=2", "mesh.dp=3"},
     0,
     0,
     0,
     0,
     0,
     "run.ranks=4, but the mesh dp x tp x cp x pp = 3 x 2 x 1 x 1 has 6 ranks; set run.ranks=6"},
    {{"mesh.dp=4", "mesh.dp_shard=3"},
     0,
     0,
     0,
     0,
     0,
     "mesh.dp=4, but mesh.dp_replicate x mesh.dp_shard is 1 x 3 = 3"},
    {{"run.ranks=4", "mesh.dp_replicate=2"},
     0,
     0,
     0,
     0,
     0,
     "2 x 1 x 1 x 1 has 2 ranks; set run.ranks=2, or mesh.dp_shard=2"},
    {{"mesh.cp=3", "mesh.cp_heads=2"},
     0,
     0,
     0,
     0,
     0,
     "mesh.cp_heads=2: does not divide mesh.cp=3; set mesh.cp_heads=1 or 3, or leave it out"},
    {{"mesh.cp=12", "mesh.cp_heads=5"}, 0, 0, 0, 0, 0, "set mesh.cp_heads=4 or 6, or leave it out"},
    {{"mesh.cp=6", "mesh.cp_heads=8"}, 0, 0, 0, 0, 0, "set mesh.cp_heads=6, or leave it out"},
    {{"numerics.fold=2", "mesh.dp=2"}, 0, 0, 0, 0, 0, "numerics.fold=2: one rank imitates"},
    {{"numerics.fold=2", "mesh.cp=2"}, 0, 0, 0, 0, 0, "mesh.cp is 2; set one of them to 1"},
    {{"numerics.fold=2", "mesh.pp=2"}, 0, 0, 0, 0, 0, "mesh.pp is 2; set one of them to 1"},
};

/* 8 sequences in micro-batches of one; with a fold of 3 there are 3 x ceil(8 / 3). */
static void mesh_and_ranks_agree(void **state)
{
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof mesh_cases / sizeof *mesh_cases; i++) {
        const MeshCase *m = &mesh_cases[i];
        const char *set[5] = {"model.name=gpt2-tiny"};
        Config c;
        int n = 1;
        for (int k = 0; k < 4 && m->set[k]; k++) set[n++] = m->set[k];
        const Err err = config_load(NULL, set, n, &f->arena, &c);
        if (m->ranks == 0) {
            assert_int_equal(err, ERR_CONFIG);
            assert_message(m->message);
            continue;
        }
        if (err != OK) fail_msg("%s", err_text());
        assert_int_equal(c.run_ranks, m->ranks);
        assert_int_equal(c.mesh_dp, m->dp);
        assert_int_equal(c.mesh_dp_replicate, m->replicate);
        assert_int_equal(c.mesh_dp_shard, m->shard);
        assert_int_equal(config_micros(&c), m->micros);
    }
}

/* A printed configuration is settled: loading it gives the same configuration. */
static void printed_configuration_reloads(void **state)
{
    static const char *const argument[] = {"mesh.tp=2", "parallel.zero=1", "parallel.zero=2",
                                           "parallel.zero=3", "parallel.schedule=zbv"};
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof argument / sizeof *argument; i++) {
        Config c, reloaded;
        const char *text, *second;
        static char first[1 << 16];
        assert_int_equal(load_arg(f, argument[i], &c), OK);
        Text t = text_in(&f->arena);
        config_print(&c, &t);
        assert_int_equal(text_done(&t, &text), OK);
        assert_true(strlen(text) < sizeof first);
        strcpy(first, text); /* the arena is reused */
        if (load_bytes(f, first, strlen(first), &reloaded) != OK)
            fail_msg("%s: %s", argument[i], err_text());
        t = text_in(&f->arena);
        config_print(&reloaded, &t);
        assert_int_equal(text_done(&t, &second), OK);
        assert_string_equal(first, second);
    }
}

/* A number that auto stands for now is not stored: later arguments change what it stands for. */
static void auto_is_stored_as_auto(void **state)
{
    static const char *const way[] = {"auto", "gather", "ulysses", "ring"};
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
        char context[64];
        snprintf(context, sizeof context, "parallel.context=%s", way[i]);
        const char *set[] = {"model.name=gpt2-tiny", "mesh.cp=4", context}, *text;
        Config c;
        assert_int_equal(config_load(NULL, set, 3, &f->arena, &c), OK);
        Text t = text_in(&f->arena);
        config_print(&c, &t);
        assert_int_equal(text_done(&t, &text), OK);
        assert_non_null(strstr(text, "\n  cp_heads: auto\n"));
    }
}

static void bad_arguments_have_reasons(void **state)
{
    static const struct {
        const char *argument, *message;
    } bad[] = {
        {"mesh.cp_heads=2", "mesh.cp_heads=2: does not divide mesh.cp=1; set mesh.cp_heads=1"},
        {"parallel.context=ulysses", "command line: parallel.context=ulysses: has no effect at "
                                     "mesh.cp=1; set mesh.cp=2 or more, "
                                     "or parallel.context=auto"},
        {"parallel.tokens=striped", "command line: parallel.tokens=striped: has no effect at "
                                    "mesh.cp=1; set mesh.cp=2 or more, "
                                    "or parallel.tokens=auto"},
        {"mesh.dp=0", "mesh.dp=0: at least 1, or -1"},
        {"parallel.schedule=gpip", "there is none of that name: did you mean gpipe?"},
        {"parallel.schedule=none", "a file has a dot or a slash in its name"},
        {"optim.schedule=mine.txt", "must be one of cosine"},
        {"parallel.zero=4", "too large; the most is 3"}, /* invalid, not unsupported */
        {"run.log_samples=maybe", "true or false"},
        {"precision.compute=fp4", "f32, bf16, fp8, f64"},
        {"precision.fp8=mlp.*", "no effect with precision.compute=f32"},
        {"precision.scaling=block", "set precision.compute=fp8"},
        {"precision.weights=fp8", "precision.weights has no effect with precision.compute=f32"},
        {"precision.fp8=none@head", "embedding and head have no GEMMs in FP8"},
        {"run.device=gpu", "run.device=gpu: NVIDIA cards are called cuda; it is one of auto, cuda"},
        {"parallel.context=usp", "USP is ring with mesh.cp_heads=N; it is one of auto, gather"},
        {"run.device=cpuu", "did you mean cpu? It is one of auto, cuda, cpu, ref"},
        {"precision.compute=float32",
         "32-bit floats are called f32; it is one of f32, bf16, fp8, f64"},
        {"run.save_every=-5", "too small; the least is 0"},
        {"optim.skip=-3", "too small; the least is 0"},
        {"run.pin=no", "auto, true, false"},
        {"optim.lr=abc", "command line: optim.lr=abc: must be a number"},
        {"optim.lr=nan", "must be a number"},
        {"optim.lr=0x10", "must be a number"},
        {"optim.lr=-1", "too small; the least is 0"},
        {"optim.beta1=1", "too large"},
        {"optim.min_lr=1", "is above optim.lr=0.0003"},
        {"run.steps=1e3", "must be a whole number"},
        {"run.steps= 5", "must be a whole number"},
        {"run.steps=0", "the least is 1"},
        {"run.steps=99999999999999999999", "too large"},
        {"run.steps=", "no value"},
        {"run.threads=auto4", "or auto"},
        {"optm.lr=1", "did you mean optim?"},
        {"optim.rl=1", "did you mean optim.lr?"},
        {"run.lr=1", "did you mean optim.lr?"},
        {"run.zzzzz=1", "`sheaf help run`"},
        {"zzzzz.lr=1", "the sections are model"},
        {"model.num_hiden_layers=2", "did you mean model.num_hidden_layers?"},
        {"model.name=gpt2", "given again"},
        {"parallel.recompute=full,a.b", "stands alone"},
        {"parallel.recompute=a,,b", "an empty item"},
        {"parallel.arrange=true", "parallel.arrange: now parallel.prepack; write"},
        {"parallel.recompute=mlp.*,attn.q.turned", "now parallel.recompute=mlp.*,attn.q.rope"},
        {"parallel.offload=*.turned", "now parallel.offload=*.rope"},
        {"data.train=a\xff.txt", "data.train: byte 0xFF is not UTF-8"},
        {"run.dir=\xed\xa0\x80", "run.dir: byte 0xED is not UTF-8"},
        {"data.train=a\\\\,", "an empty item"}, /* the backslash is escaped, the comma is not */
        {"lr=3", "must be section.key=value"},
        {"optim.=3", "must be section.key=value"},
    };
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Config c;
        if (load_arg(f, bad[i].argument, &c) != ERR_CONFIG) fail_msg("taken: %s", bad[i].argument);
        assert_message(bad[i].message);
        assert_message("command line: ");
    }
}

/* File names may have commas: with a backslash in an argument or a plain value, as they are in a
 * YAML list. */
static void a_comma_in_a_file_name(void **state)
{
    static const char yaml[] = "model:\n  name: gpt2-tiny\ndata:\n"
                               "  train: [\"a,b.txt\", 'c\\', 'd\\,e']\n  valid: x\\,y,z\n";
    Fixture *f = *state;
    Config c;
    const char *text;
    static char first[1 << 16];
    assert_int_equal(load_arg(f, "data.train=a\\,b.txt,c\\\\,d\\e", &c), OK);
    assert_int_equal(c.data_train.n, 3);
    assert_string_equal(c.data_train.at[0], "a,b.txt");
    assert_string_equal(c.data_train.at[1], "c\\");
    assert_string_equal(c.data_train.at[2], "d\\e");
    for (int again = 0; again < 2; again++) { /* as written, and as printed */
        const char *from = again ? first : yaml;
        if (load_bytes(f, from, strlen(from), &c) != OK) fail_msg("%s", err_text());
        assert_int_equal(c.data_train.n, 3);
        assert_string_equal(c.data_train.at[0], "a,b.txt");
        assert_string_equal(c.data_train.at[1], "c\\");
        assert_string_equal(c.data_train.at[2], "d\\,e");
        assert_int_equal(c.data_valid.n, 2);
        assert_string_equal(c.data_valid.at[0], "x,y");
        assert_string_equal(c.data_valid.at[1], "z");
        Text t = text_in(&f->arena);
        config_print(&c, &t);
        assert_int_equal(text_done(&t, &text), OK);
        snprintf(first, sizeof first, "%s", text);
    }
}

/* The config.yaml of a run folder is read with the names of its time; an argument is not. */
static void saved_configurations_keep_old_names(void **state)
{
    Fixture *f = *state;
    static const char path[] = "tests/golden/old_run/run/config.yaml";
    const char *set[] = {"parallel.arrange=false"};
    Config c;
    assert_int_equal(config_load(path, NULL, 0, &f->arena, &c), OK);
    assert_true(c.parallel_prepack);
    assert_string_equal(c.parallel_recompute.text, "attn.q.rope,*.k.rope,mlp.*");
    assert_int_equal(config_load(path, set, 1, &f->arena, &c), ERR_CONFIG);
    assert_message("command line: parallel.arrange: now parallel.prepack");
    assert_int_equal(load_bytes(f, "parallel:\n  arrange: true\n", 26, &c), ERR_CONFIG);
    assert_message(":2: parallel.arrange: now parallel.prepack; write parallel.prepack=true");
}

static void arguments_are_classified(void **state)
{
    Fixture *f = *state;
    const char *ranks = NULL, *layouts = NULL;
    bool json = false, full = false, on_device = false;
    Args args;
    const Flag flags[] = {{"--ranks", &ranks, NULL},         {"--layouts", &layouts, NULL},
                          {"--plan", &args.plan, NULL},      {"--full", NULL, &full},
                          {"--on-device", NULL, &on_device}, {"--json", NULL, &json}};
    enum { N = sizeof flags / sizeof *flags };
    char *good[] = {"verify", "a/run.yaml", "mesh.tp=2", "--ranks", "3", "--json", "optim.lr=x=y"};
    assert_int_equal(args_split(7, good, flags, N, &f->arena, &args), OK);
    assert_string_equal(args.file, "a/run.yaml");
    assert_int_equal(args.n_set, 2);
    assert_string_equal(args.set[1], "optim.lr=x=y");
    assert_string_equal(ranks, "3");
    assert_false(full || layouts);
    assert_true(json);
    char *equals[] = {"verify", "--ranks=5"};
    assert_int_equal(args_split(2, equals, flags, N, &f->arena, &args), OK);
    assert_string_equal(ranks, "5");
    assert_null(args.file);
    assert_null(args.plan);
    char *plan[] = {"verify", "--plan", "p.yaml"};
    assert_int_equal(args_split(3, plan, flags, N, &f->arena, &args), OK);
    assert_string_equal(args.plan, "p.yaml");
    char *bad[][3] = {{"verify", "a.yaml", "b.yaml"},
                      {"verify", "a.yaml", "--ranks"},
                      {"verify", "a.yaml", "--jsn"},
                      {"verify", "a.yaml", "--json=1"}};
    static const char *const message[] = {"a second file", "needs a value", "did you mean --json?",
                                          "takes no value"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(args_split(3, bad[i], flags, N, &f->arena, &args), ERR_CONFIG);
        assert_message(message[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(defaults_are_the_table, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(every_row_is_consistent, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(file_then_arguments, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(sequences_fit_the_positions, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(mesh_and_ranks_agree, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(printed_configuration_reloads, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(auto_is_stored_as_auto, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(bad_arguments_have_reasons, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(a_comma_in_a_file_name, open_fixture, close_fixture),
        cmocka_unit_test_setup_teardown(saved_configurations_keep_old_names, open_fixture,
                                        close_fixture),
        cmocka_unit_test_setup_teardown(arguments_are_classified, open_fixture, close_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
