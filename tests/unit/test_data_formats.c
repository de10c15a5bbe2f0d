/* test_data_formats.c -- token files of every format, written here byte by byte as the other
 * programs do, and read by src/data. */
#include "data/tokens.h"
#include "support/data_test.h"

static void llmc_uint16_by_its_magic(void **state)
{
    (void)state;
    const int64_t id[] = {50256, 11, 65535, 300, 50256, 7, 50256};
    const int border[] = {4, 6};
    Buffer b = llmc_file(20240520, 1, id, 7, 2);
    Tokens t;
    opens(scratch_write("a.bin", &b), FORMAT_AUTO, FORMAT_TOKENS, &t);
    assert_int_equal(t.width, 2);
    assert_tokens(&t, id, 7);
    assert_borders(&t, border, 2);
    assert_int_equal(tokens_next_start(&t, 4, 6), 6); /* an end before the next border */
    tokens_close(&t);
    buffer_free(&b);
}

static void llmc_uint32_by_its_magic(void **state)
{
    (void)state;
    const int64_t id[] = {128000, 11, 128255, 128000, 4294967295};
    const int border[] = {3};
    Buffer b = llmc_file(20240801, 7, id, 5, 4);
    Tokens t;
    opens(scratch_write("b.bin", &b), FORMAT_AUTO, FORMAT_TOKENS, &t);
    assert_int_equal(t.width, 4);
    assert_tokens(&t, id, 5);
    assert_borders(&t, border, 1);
    tokens_close(&t);
    buffer_free(&b);
}

static void plain_arrays_by_format(void **state)
{
    (void)state;
    const int64_t id[] = {0, 50256, 65535, 256};
    Buffer two = array_file(id, 4, 2), four = array_file(id, 4, 4);
    Tokens t;
    opens(scratch_write("p16", &two), FORMAT_UINT16, FORMAT_UINT16, &t);
    assert_tokens(&t, id, 4);
    assert_borders(&t, NULL, 0);
    tokens_close(&t);
    opens(scratch_write("p32", &four), FORMAT_UINT32, FORMAT_UINT32, &t);
    assert_tokens(&t, id, 4);
    tokens_close(&t);
    buffer_free(&two);
    buffer_free(&four);
}

/* Every token type; documents with several sequences, with none, and without tokens. */
static void megatron_pairs_of_all_types(void **state)
{
    (void)state;
    static const struct {
        int code, width;
        int64_t odd; /* an id that shows the type */
    } type[] = {{1, 1, 255}, {3, 2, -2}, {4, 4, -70000}, {5, 8, (int64_t)1 << 40}, {8, 2, 65535}};
    const int size[] = {2, 1, 0, 4, 2}, document[] = {0, 2, 3, 3, 4, 5}, border[] = {3, 7};
    for (int k = 0; k < 5; k++) {
        const int64_t id[] = {5, 6, 7, 8, type[k].odd, 10, 11, 12, 13};
        Buffer bin = array_file(id, 9, type[k].width);
        Buffer idx = megatron_index(type[k].code, type[k].width, size, 5, document, 6);
        Tokens t;
        scratch_write("m.idx", &idx);
        opens(scratch_write("m.bin", &bin), FORMAT_AUTO, FORMAT_MEGATRON, &t);
        assert_int_equal(t.width, type[k].width);
        assert_tokens(&t, id, 9);
        assert_int_equal(t.n_starts, 5);
        assert_borders(&t, border, 2); /* borders 3 (three times), 7, and 9, the end */
        assert_int_equal(tokens_next_start(&t, 4, 6), 6);
        tokens_close(&t);
        opens(scratch("m"), FORMAT_AUTO, FORMAT_MEGATRON, &t); /* by its stem */
        tokens_close(&t);
        opens(scratch("m.idx"), FORMAT_MEGATRON, FORMAT_MEGATRON, &t); /* by its index */
        assert_tokens(&t, id, 9);
        tokens_close(&t);
        buffer_free(&bin);
        buffer_free(&idx);
    }
}

/* Some writers omit the closing entry. */
static void megatron_without_a_last_entry(void **state)
{
    (void)state;
    const int64_t id[] = {1, 2, 3};
    const int size[] = {1, 2}, document[] = {0, 1}, border[] = {1};
    Buffer bin = array_file(id, 3, 2), idx = megatron_index(8, 2, size, 2, document, 2);
    Tokens t;
    DO(tokens_parse("m", FORMAT_MEGATRON, (Bytes){bin.at, bin.bytes}, (Bytes){idx.at, idx.bytes},
                    &arena, &t));
    assert_borders(&t, border, 1);
    buffer_free(&bin);
    buffer_free(&idx);
}

static void text_is_its_bytes(void **state)
{
    (void)state;
    const int64_t id[] = {'a', 0xC3, 0xA4, '\n'};
    Tokens t;
    opens(scratch_text("a.txt", "a\xC3\xA4\n"), FORMAT_AUTO, FORMAT_TEXT, &t);
    assert_tokens(&t, id, 4);
    assert_borders(&t, NULL, 0);
    tokens_close(&t);
    opens(scratch_text("empty.txt", ""), FORMAT_AUTO, FORMAT_TEXT, &t);
    assert_int_equal(t.n_tokens, 0);
    tokens_close(&t);
}

static void jsonl_is_its_texts(void **state)
{
    (void)state;
    const int64_t id[] = {'h', 'i', 0xC3, 0xA4, 0, '"', 'x'};
    const int border[] = {2, 6};
    Tokens t;
    opens(scratch_text("a.jsonl", "\xEF\xBB\xBF{\"text\": \"hi\", \"n\": 1}\n\n  \r\n"
                                  "{\"text\": \"\xC3\xA4\\u0000\\\"\"}\r\n{\"text\": \"\"}\n"
                                  "{\"id\": [1], \"text\": \"x\"}"),
          FORMAT_AUTO, FORMAT_JSONL, &t);
    assert_tokens(&t, id, 7);
    assert_int_equal(t.n_starts, 4);
    assert_borders(&t, border, 2);
    tokens_close(&t);
}

static void a_scan_counts(void **state)
{
    (void)state;
    const int64_t id[] = {50256, 11, 40000, 11, 50256, 7, 50256, 50256};
    Buffer b = llmc_file(20240520, 1, id, 8, 2);
    Tokens t;
    opens(scratch_write("s.bin", &b), FORMAT_AUTO, FORMAT_TOKENS, &t);
    for (int step = 1; step <= 8; step++) { /* in ranges of any size */
        TokenStats stats;
        DO(token_stats_init(&stats, &arena));
        for (int at = 0; at < 8; at += step)
            DO(tokens_scan(&t, at, at + step < 8 ? at + step : 8, 50257, &stats));
        assert_int_equal(stats.low, 7);
        assert_int_equal(stats.high, 50256);
        assert_int_equal(stats.n_ids, 4);
        assert_int_equal(stats.n_documents, 4);
    }
    TokenStats stats;
    DO(token_stats_init(&stats, &arena));
    assert_int_equal(tokens_scan(&t, 0, 8, 40000, &stats), ERR_CHECK);
    assert_non_null(
        strstr(err_text(), "token 0 (byte 1024) is 50256, and the vocabulary has 40000"));
    tokens_close(&t);
    buffer_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llmc_uint16_by_its_magic),
        cmocka_unit_test(llmc_uint32_by_its_magic),
        cmocka_unit_test(plain_arrays_by_format),
        cmocka_unit_test(megatron_pairs_of_all_types),
        cmocka_unit_test(megatron_without_a_last_entry),
        cmocka_unit_test(text_is_its_bytes),
        cmocka_unit_test(jsonl_is_its_texts),
        cmocka_unit_test(a_scan_counts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
