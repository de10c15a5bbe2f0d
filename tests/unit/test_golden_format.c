/* test_golden_format.c -- the golden files are complete, and our formula gives the weights that
 * they were made with.
 *
 * The content of a file is compared with the implications of its configuration (the shape of
 * the embedding, the masks), so that readers can trust its sizes. Files broken on purpose must
 * be refused. */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "support/golden.h"

static int open_arena(void **state)
{
    static Arena arena;
    *state = &arena;
    return arena_open(&arena, "golden", (size_t)1 << 26) == OK ? 0 : -1;
}

static int close_arena(void **state)
{
    arena_close(*state);
    return 0;
}

static Golden load(const char *name, Arena *arena)
{
    Golden g;
    if (golden_load(name, arena, &g) != OK) fail_msg("%s", err_text());
    return g;
}

static void test_every_file_is_listed(void **state)
{
    (void)state;
    int n_listed = 0, n_files = 0;
    while (golden_names[n_listed]) n_listed++;
    DIR *dir = opendir(GOLDEN_DIR);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        const char *dot = strrchr(e->d_name, '.');
        n_files += dot && strcmp(dot, ".json") == 0;
    }
    closedir(dir);
    assert_int_equal(n_files, n_listed); /* each file of the list is loaded below */
    assert_true(n_listed >= 8);
}

static void check_sizes(const Golden *g)
{
    int64_t live = 0;
    assert_true(isfinite(g->loss) && g->loss > 0);
    assert_true(g->n_params > 20 && g->n_logits >= 32 && g->n_spots == 5);
    for (int64_t n = 0; n < g->n_tokens; n++) {
        const int64_t t = n % g->T;
        assert_true(g->key_lo[n] <= t && g->positions[n] <= t);
        assert_true(g->weights[n] >= 0 && g->weights[n] <= 1);
        live += g->weights[n] != 0;
    }
    assert_true(live > 0 && live < g->n_tokens); /* some targets are ignored, not all */
    /* Near the loss of random guessing: a sum over tokens, not a mean. */
    assert_true(g->loss > (double)live * log((double)g->vocab) / 4);
    assert_int_equal(g->param[0].dim[0], g->vocab);
}

static void check_param(const GoldenParam *p)
{
    double squares = 0;
    assert_int_equal(p->n_entries, p->n_elements < 64 ? p->n_elements : 64);
    assert_int_equal(p->index[0], 0);
    assert_int_equal(p->index[p->n_entries - 1], p->n_elements - 1);
    for (int64_t i = 0; i < p->n_entries; i++) squares += p->value[i] * p->value[i];
    if (p->n_entries == p->n_elements)
        assert_true(fabs(sqrt(squares) - p->norm) <= 1e-14 * p->norm); /* no entry is missing */
    else
        assert_true(sqrt(squares) <= p->norm);
    const bool idle = strstr(p->name, ".experts.") != NULL; /* an expert may have no tokens */
    assert_true((p->max > 0 || idle) && p->max <= p->norm);
}

static void test_sizes_agree(void **state)
{
    for (int i = 0; golden_names[i]; i++) {
        const Golden g = load(golden_names[i], *state);
        assert_string_equal(g.name, golden_names[i]);
        check_sizes(&g);
        for (int64_t j = 0; j < g.n_params; j++) check_param(&g.param[j]);
    }
}

static void test_weights_are_the_formula(void **state)
{
    for (int i = 0; golden_names[i]; i++) {
        const Golden g = load(golden_names[i], *state);
        int n_norms = 0;
        for (int64_t j = 0; j < g.n_spots; j++) {
            const GoldenSpot *s = &g.spot[j];
            const double w = golden_weight(s->param, s->index);
            assert_true(w == s->value);         /* bit for bit */
            assert_true((double)(float)w == w); /* float32 runs start from the same weights */
            n_norms += w > 0.5;
        }
        assert_true(n_norms > 0 && n_norms < g.n_spots); /* both kinds are among the spots */
    }
}

/* A query attends only to its own document and window. */
static void test_ranges(void **state)
{
    const Golden packed = load("gpt2_packed", *state), window = load("mistral", *state);
    int32_t ranges[64 * 4];
    assert_true(packed.n_tokens <= 64 && window.n_tokens <= 64);
    golden_ranges(&packed, ranges);
    const int64_t second = packed.T + 10; /* sequence 1 is documents of 10 and 4 */
    assert_int_equal(ranges[4 * (second - 1)], packed.T);
    assert_int_equal(ranges[4 * second], second);
    assert_int_equal(ranges[4 * second + 1], second + 1);
    assert_int_equal(packed.positions[second], 0);
    golden_ranges(&window, ranges);
    for (int64_t n = 0; n < window.n_tokens; n++) {
        const int64_t t = n % window.T, lo = t < 5 ? n - t : n - 4;
        assert_int_equal(ranges[4 * n], lo);
        assert_int_equal(ranges[4 * n + 1], n + 1);
        assert_int_equal(ranges[4 * n + 2], ranges[4 * n + 3]);
    }
}

static void test_config_is_a_file(void **state)
{
    char path[] = "/tmp/golden_config_XXXXXX";
    const Golden g = load("llama", *state);
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(golden_write_config(&g, path), OK);
    json_t *config = json_load_file(path, 0, NULL);
    unlink(path);
    const json_t *scaling = json_object_get(config, "rope_scaling");
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "llama");
    assert_true(json_real_value(json_object_get(config, "rms_norm_eps")) == 1e-5);
    assert_true(json_real_value(json_object_get(scaling, "factor")) == 8.0);
    json_decref(config);
    assert_int_equal(golden_write_config(&g, "/nowhere/config.json"), ERR_IO);
}

/* Each row breaks one thing of a good file; the message must name it. */
typedef struct {
    const char *key, *text, *says;
} Fault;

static const Fault fault[] = {
    {"format", "\"sheaf golden 0\"", "format"},
    {"T", "12", "T * batch"},
    {"batch", "0", "batch"},
    {"tokens", "[1, 2, 3]", "tokens"},
    {"weights", "1", "weights"},
    {"config", "{}", "vocab_size"},
    {"config", "{\"vocab_size\": 7}", "tokens"},
    {"logits", "[[0, 61, 0.5]]", "logits"},
    {"spots", "[[\"nobody.weight\", 0, 0.5]]", "spots"},
    {"params", "[{\"name\": \"w\"}]", "params"},
    {"params",
     "[{\"name\": \"w\", \"shape\": [2], \"norm\": 1, \"max\": 1, \"entries\": [[2, 0.5]]}]",
     "past the end"},
    {"params",
     "[{\"name\": \"w\", \"shape\": [2], \"norm\": 1, \"max\": 0.25, \"entries\": [[1, -0.5]]}]",
     "max"},
};

static void test_faults_are_refused(void **state)
{
    Golden g;
    char path[] = "/tmp/golden_fault_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof fault / sizeof fault[0]; i++) {
        json_t *root = json_load_file(GOLDEN_DIR "/gpt2.json", 0, NULL);
        json_object_set_new(root, fault[i].key, json_loads(fault[i].text, JSON_DECODE_ANY, NULL));
        assert_int_equal(json_dump_file(root, path, 0), 0);
        json_decref(root);
        assert_int_equal(golden_load_file(path, *state, &g), ERR_CHECK);
        if (!strstr(err_text(), fault[i].says) || !strstr(err_text(), path))
            fail_msg("fault %zu (%s): %s", i, fault[i].key, err_text());
    }
    unlink(path);
    assert_int_equal(golden_load("nothing", *state, &g), ERR_IO);
    assert_non_null(strstr(err_text(), "nothing.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_file_is_listed),    cmocka_unit_test(test_sizes_agree),
        cmocka_unit_test(test_weights_are_the_formula), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_config_is_a_file),        cmocka_unit_test(test_faults_are_refused),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
