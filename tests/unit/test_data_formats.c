/* test_data_formats.c -- token files of every format, written here byte by byte as their programs
 * write them, read by src/data; and files of our own writer read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "data/writer.h"
#include "support/token_files.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s", err_text());                                              \
    } while (0)

static Arena arena;

static int setup(void **state)
{
    (void)state;
    return arena_open(&arena, "test", ARENA_PLENTY) != OK;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    arena_close(&arena);
    return 0;
}

static void assert_tokens(const Tokens *t, const int64_t *id, int n)
{
    assert_int_equal(t->n_tokens, n);
    for (int i = 0; i < n; i++) assert_int_equal(tokens_at(t, i), id[i]);
}

/* The borders past the first token, found one after another. */
static void assert_borders(const Tokens *t, const int *border, int n)
{
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        at = tokens_next_start(t, at, t->n_tokens);
        assert_int_equal(at, border[i]);
    }
    assert_int_equal(tokens_next_start(t, at, t->n_tokens), t->n_tokens);
}

static void opens(const char *path, TokenFormat ask, TokenFormat want, Tokens *t)
{
    DO(tokens_open(path, ask, &arena, t));
    assert_int_equal(t->format, want);
}

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

static void plain_arrays_when_asked(void **state)
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

/* Every type of token; documents of several sequences, one of none, one without tokens. */
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
        assert_borders(&t, border, 2); /* 3, twice more 3, 7, and 9 is the end */
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

/* Some writers leave out the closing entry. */
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
    opens(scratch_text("a.jsonl", "{\"text\": \"hi\", \"n\": 1}\n\n  \r\n"
                                  "{\"text\": \"\xC3\xA4\\u0000\\\"\"}\r\n{\"text\": \"\"}\n"
                                  "{\"id\": [1], \"text\": \"x\"}"),
          FORMAT_AUTO, FORMAT_JSONL, &t);
    assert_tokens(&t, id, 7);
    assert_int_equal(t.n_starts, 4);
    assert_borders(&t, border, 2);
    tokens_close(&t);
}

static Bytes text_bytes_of(const char *text)
{
    return (Bytes){(const unsigned char *)text, strlen(text)};
}

static void write_two(const char *path, TokenFormat format)
{
    Writer w;
    DO(writer_open(&w, path, format));
    DO(writer_document(&w, text_bytes_of("hello \xFF")));
    DO(writer_document(&w, text_bytes_of("you")));
    DO(writer_finish(&w));
    writer_close(&w);
}

static const int64_t two_texts[] = {'h', 'e', 'l', 'l', 'o', ' ', 0xFF, 'y', 'o', 'u'};

/* Read back, and the same bytes as the format spelled out here. */
static void our_files_are_theirs(void **state)
{
    (void)state;
    const int size[] = {7, 3}, document[] = {0, 1, 2}, border[] = {7};
    Buffer llmc = llmc_file(20240520, 1, two_texts, 10, 2), bin = array_file(two_texts, 10, 2),
           idx = megatron_index(8, 2, size, 2, document, 3);
    Tokens t;
    for (int again = 0; again < 2; again++) { /* a token file may be written over */
        write_two(scratch("w.bin"), FORMAT_TOKENS);
        opens(scratch("w.bin"), FORMAT_AUTO, FORMAT_TOKENS, &t);
        assert_tokens(&t, two_texts, 10);
        assert_borders(&t, NULL, 0);
        assert_int_equal(t.map[0].bytes, llmc.bytes);
        assert_memory_equal(t.map[0].at, llmc.at, llmc.bytes);
        tokens_close(&t);

        write_two(scratch("v.bin"), FORMAT_MEGATRON);
        opens(scratch("v.bin"), FORMAT_AUTO, FORMAT_MEGATRON, &t);
        scratch("v.idx");
        assert_tokens(&t, two_texts, 10);
        assert_borders(&t, border, 1);
        assert_int_equal(t.map[1].bytes, idx.bytes);
        assert_memory_equal(t.map[0].at, bin.at, bin.bytes);
        assert_memory_equal(t.map[1].at, idx.at, idx.bytes);
        tokens_close(&t);
    }
    buffer_free(&llmc);
    buffer_free(&bin);
    buffer_free(&idx);
}

/* More sizes than the writer's first block holds, documents longer than its buffer. */
static void many_documents_come_back(void **state)
{
    (void)state;
    enum { N = 40001, LONG = 20011 };
    static unsigned char text[LONG];
    Writer w;
    Tokens t;
    int64_t at = 0;
    for (int i = 0; i < LONG; i++) text[i] = (unsigned char)(i * 7);
    DO(writer_open(&w, scratch("many.bin"), FORMAT_MEGATRON));
    for (int d = 0; d < N; d++)
        DO(writer_document(&w, (Bytes){text, d == 5 ? LONG : (size_t)(d % 3) + 1}));
    DO(writer_finish(&w));
    writer_close(&w);
    scratch("many.idx");
    DO(tokens_open(scratch("many.bin"), FORMAT_AUTO, &arena, &t));
    for (int d = 0; d < N; d++) {
        const int64_t end = at + (d == 5 ? LONG : d % 3 + 1);
        assert_int_equal(tokens_next_start(&t, at, t.n_tokens), end);
        assert_int_equal(tokens_at(&t, end - 1), text[end - 1 - at]);
        at = end;
    }
    assert_int_equal(at, t.n_tokens);
    tokens_close(&t);
}

static void what_is_not_finished_is_not_there(void **state)
{
    (void)state;
    Writer w;
    Tokens t;
    DO(writer_open(&w, scratch("half.bin"), FORMAT_MEGATRON));
    DO(writer_document(&w, text_bytes_of("hello")));
    writer_close(&w);
    assert_int_equal(tokens_open(scratch("half.bin"), FORMAT_AUTO, &arena, &t), ERR_IO);
    assert_int_equal(tokens_open(scratch("half.bin.part"), FORMAT_AUTO, &arena, &t), ERR_IO);
    assert_int_equal(tokens_open(scratch("half.idx.part"), FORMAT_AUTO, &arena, &t), ERR_IO);
}

static void a_scan_counts(void **state)
{
    (void)state;
    const int64_t id[] = {50256, 11, 40000, 11, 50256, 7, 50256, 50256};
    Buffer b = llmc_file(20240520, 1, id, 8, 2);
    Tokens t;
    opens(scratch_write("s.bin", &b), FORMAT_AUTO, FORMAT_TOKENS, &t);
    for (int step = 1; step <= 8; step++) { /* in pieces of any size */
        TokensSeen seen;
        DO(tokens_seen_init(&seen, &arena));
        for (int at = 0; at < 8; at += step)
            DO(tokens_scan(&t, at, at + step < 8 ? at + step : 8, 50257, &seen));
        assert_int_equal(seen.low, 7);
        assert_int_equal(seen.high, 50256);
        assert_int_equal(seen.n_ids, 4);
        assert_int_equal(seen.n_documents, 4);
    }
    TokensSeen seen;
    DO(tokens_seen_init(&seen, &arena));
    assert_int_equal(tokens_scan(&t, 0, 8, 40000, &seen), ERR_CHECK);
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
        cmocka_unit_test(plain_arrays_when_asked),
        cmocka_unit_test(megatron_pairs_of_all_types),
        cmocka_unit_test(megatron_without_a_last_entry),
        cmocka_unit_test(text_is_its_bytes),
        cmocka_unit_test(jsonl_is_its_texts),
        cmocka_unit_test(our_files_are_theirs),
        cmocka_unit_test(many_documents_come_back),
        cmocka_unit_test(what_is_not_finished_is_not_there),
        cmocka_unit_test(a_scan_counts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
