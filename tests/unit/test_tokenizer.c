/* Ids and texts equal those of the official tokenizers library: tests/golden/tokenizer. */
#include <jansson.h>
#include "data/tokenizer.h"
#include "support/data_test.h"

static json_t *rows[400];
static int n_rows;

static void read_rows(void)
{
    static char line[1 << 16];
    FILE *f = fopen("tests/golden/tokenizer/texts.jsonl", "rb");
    assert_non_null(f);
    while (n_rows < 400 && fgets(line, sizeof line, f)) {
        rows[n_rows] = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(rows[n_rows++]);
    }
    fclose(f);
}

static int setup_rows(void **state)
{
    if (setup(state) != 0) return 1;
    read_rows();
    return 0;
}

static int teardown_rows(void **state)
{
    while (n_rows > 0) json_decref(rows[--n_rows]);
    return teardown(state);
}

static Tokenizer *load(const char *kind)
{
    static char path[64];
    Tokenizer *t;
    snprintf(path, sizeof path, "tests/golden/tokenizer/%s.json", kind);
    DO(tokenizer_load(path, &arena, &t));
    return t;
}

static Bytes text_of(const json_t *value)
{
    return (Bytes){(const unsigned char *)json_string_value(value), json_string_length(value)};
}

static void assert_ids(const Encoder *e, const json_t *want, int row)
{
    for (size_t i = 0; i < json_array_size(want); i++) {
        const int64_t id = json_integer_value(json_array_get(want, i));
        if ((int64_t)i >= e->n || e->id[i] != id)
            fail_msg("row %d, id %zu: %lld, and %lld is wanted, in: %s", row, i,
                     (int64_t)i < e->n ? (long long)e->id[i] : -1LL, (long long)id,
                     json_string_value(json_object_get(rows[row], "text")));
    }
    assert_int_equal(e->n, json_array_size(want));
}

static void agrees(const char *kind)
{
    Tokenizer *t = load(kind);
    Encoder e;
    char decoded[40];
    snprintf(decoded, sizeof decoded, "%s_decoded", kind);
    DO(encoder_open(&e, t));
    assert_true(n_rows > 150);
    for (int i = 0; i < n_rows; i++) {
        const Bytes text = text_of(json_object_get(rows[i], "text"));
        Bytes back, repaired;
        int64_t bad = 0;
        encoder_clear(&e);
        DO(encoder_add(&e, text, false));
        assert_ids(&e, json_object_get(rows[i], kind), i);
        const json_t *other = json_object_get(rows[i], decoded);
        const Bytes want = other ? text_of(other) : text;
        DO(tokenizer_decode(t, e.id, e.n, &arena, &back));
        DO(utf8_repair(back, &arena, &repaired, &bad));
        assert_int_equal(repaired.bytes, want.bytes);
        if (want.bytes) assert_memory_equal(repaired.at, want.at, want.bytes);
    }
    assert_int_equal(e.replaced, 0);
    encoder_close(&e);
    tokenizer_close(t);
}

static void gpt2_agrees(void **state)
{
    (void)state;
    agrees("gpt2");
}

static void llama3_agrees(void **state)
{
    (void)state;
    agrees("llama3");
}

/* `special` adds the template's tokens before and after a text. */
static void the_template_is_put_around(void **state)
{
    (void)state;
    Tokenizer *t = load("llama3");
    Encoder e;
    DO(encoder_open(&e, t));
    for (int i = 0; i < n_rows; i++) {
        const json_t *want = json_object_get(rows[i], "llama3_special");
        encoder_clear(&e);
        DO(encoder_add(&e, text_of(json_object_get(rows[i], "text")), true));
        if (e.n > (int64_t)json_array_size(want)) e.n = (int64_t)json_array_size(want);
        assert_ids(&e, want, i);
        assert_int_equal(e.id[0], tokenizer_id(t, "<|begin_of_text|>"));
    }
    encoder_close(&e);
    tokenizer_close(t);
}

/* Texts that are split where tokenizer_cuts allows, or encoded repeatedly by one encoder, have the
 * same ids: no state remains between texts. */
static void encoders_remember_nothing(void **state)
{
    (void)state;
    Tokenizer *t = load("gpt2");
    Encoder all, one;
    DO(encoder_open(&all, t));
    for (int i = 0; i < n_rows; i++) {
        const Bytes text = text_of(json_object_get(rows[n_rows - 1 - i], "text"));
        const int64_t before = all.n;
        DO(encoder_open(&one, t));
        DO(encoder_add(&all, text, true));
        DO(encoder_add(&one, text, true));
        assert_int_equal(all.n - before, one.n);
        if (one.n) assert_memory_equal(all.id + before, one.id, (size_t)one.n * sizeof *one.id);
        encoder_close(&one);
    }
    encoder_close(&all);
    tokenizer_close(t);
}

/* Invalid UTF-8 becomes U+FFFD, once for each sequence that begins a character and does not
 * end it. */
static void wrong_utf8_is_replaced_and_counted(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
        int bad;
    } row[] = {
        {"ab\xFFz", "ab\uFFFDz", 1},
        {"\xE2\x82", "\uFFFD", 1},
        {"\xE2\x82\xAC", "\u20AC", 0},
        {"\xF0\x9F\x98x", "\uFFFDx", 1},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD", 3}, /* a surrogate */
        {"\xC0\xAF", "\uFFFD\uFFFD", 2},           /* an overlong encoding */
        {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD", 4},
        {"12345678\x80", "12345678\uFFFD", 1},
        {"\xE0\x80g\xC3", "\uFFFD\uFFFDg\uFFFD", 3},
    };
    Tokenizer *t = load("gpt2");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Encoder a, b;
        DO(encoder_open(&a, t));
        DO(encoder_open(&b, t));
        DO(encoder_add(&a, (Bytes){(const unsigned char *)row[i].in, strlen(row[i].in)}, false));
        DO(encoder_add(&b, (Bytes){(const unsigned char *)row[i].out, strlen(row[i].out)}, false));
        assert_int_equal(a.replaced, row[i].bad);
        assert_int_equal(b.replaced, 0);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.id, b.id, (size_t)a.n * sizeof *a.id);
        encoder_close(&a);
        encoder_close(&b);
    }
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_agrees),
        cmocka_unit_test(llama3_agrees),
        cmocka_unit_test(the_template_is_put_around),
        cmocka_unit_test(encoders_remember_nothing),
        cmocka_unit_test(wrong_utf8_is_replaced_and_counted),
    };
    return cmocka_run_group_tests(tests, setup_rows, teardown_rows);
}
