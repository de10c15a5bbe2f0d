/* test_config_malformed.c -- a thousand mutations of valid run files and config.json: truncated,
 * with changed bytes, NULs, long runs and deep nesting. Each gives an error with a message or a
 * configuration. Most useful under the address sanitizer. */
#include "support/data_test.h"
#include "base/philox.h"
#include "cli/config/config.h"

enum { MUTANTS = 1000 };

static const char run_file[] = "model:\n  name: llama-tiny\n  num_hidden_layers: 3\n"
                               "data:\n  seq_len: 64  # tokens\nbatch: {global: 8, micro: 2}\n"
                               "optim:\n  lr: 3e-3\n  schedule: \"cosine\"\n"
                               "parallel:\n  recompute: [\"*.mlp.*\", attn.out]\n";
static const char model_file[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 176, "
    "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-05, \"vocab_size\": 256, "
    "\"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"architectures\": [\"A\"]}";

typedef struct {
    Random random;
    uint64_t next;
} Dice;

static uint64_t roll(Dice *d, uint64_t n) { return random_bits(&d->random, d->next++) % n; }

static void insert(Buffer *b, size_t at, const char *text, size_t bytes)
{
    Buffer out = {0};
    buffer_raw(&out, b->at, at);
    buffer_raw(&out, text, bytes);
    buffer_raw(&out, b->at + at, b->bytes - at);
    buffer_free(b);
    *b = out;
}

static void mutate(Buffer *b, Dice *dice)
{
    static const char *const word[] = {"999999999999999999999999",
                                       "-1",
                                       "&a ",
                                       "*a",
                                       "!!int ",
                                       "%YAML 9.9\n---\n",
                                       "\xFF\xFE",
                                       "\t",
                                       "{",
                                       "[",
                                       "\"",
                                       ": ",
                                       "null",
                                       "1e999",
                                       "\xC3",
                                       "\n...\n---\n",
                                       "nan"};
    static char deep[20000];
    const size_t at = b->bytes ? (size_t)roll(dice, b->bytes) : 0;
    switch (b->bytes ? roll(dice, 7) : 6) {
    case 0:
        b->bytes = at;
        break;
    case 1:
        b->at[at] ^= (unsigned char)(1 << roll(dice, 8));
        break;
    case 2:
        insert(b, at, "\0", 1);
        break;
    case 3:
        memset(deep, "[{-?"[roll(dice, 4)], sizeof deep);
        insert(b, at, deep, (size_t)roll(dice, sizeof deep));
        break;
    default: {
        const char *w = word[roll(dice, sizeof word / sizeof *word)];
        insert(b, at, w, strlen(w));
    }
    }
}

static Err load(bool model, const char *path)
{
    Config c;
    ModelConfig m;
    return model ? model_config_load(path, NULL, 0, &arena, &m)
                 : config_load(path, NULL, 0, &arena, &c);
}

static void mutants_are_refused_or_read(void **state)
{
    (void)state;
    int read = 0;
    for (int m = 0; m < MUTANTS; m++) {
        Dice dice = {random_named((uint64_t)m, "configurations"), 0};
        const bool model = m % 2;
        const char *name = model ? "mutant.json" : "mutant.yaml";
        const size_t mark = arena_mark(&arena);
        Buffer b = {0};
        buffer_text(&b, model ? model_file : run_file);
        DO(load(model, scratch_write(name, &b))); /* valid before the mutation */
        for (uint64_t n = 1 + roll(&dice, 3); n > 0; n--) mutate(&b, &dice);
        const Err err = load(model, scratch_write(name, &b));
        assert_true(err == OK || err == ERR_CONFIG);
        if (err != OK) assert_true(strlen(err_text()) > 20);
        read += err == OK;
        buffer_free(&b);
        arena_rewind(&arena, mark);
    }
    assert_in_range(read, MUTANTS / 50, MUTANTS / 2); /* some accepted, most refused */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mutants_are_refused_or_read)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
