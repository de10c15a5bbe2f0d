/* test_data_mistakes.c -- common mistakes with data files, and their messages: the file, the place,
 * the value, the limit and the way out. */
#include "support/data_test.h"
#include "data/dataset.h"
#include "data/writer.h"

static Err opened(const char *path, TokenFormat format)
{
    Tokens t;
    const Err err = tokens_open(path, format, &arena, &t);
    if (err == OK) tokens_close(&t);
    return err;
}

static void mistakes_with_files(void **state)
{
    (void)state;
    static const int64_t id[] = {1, 2, 3};
    Buffer eval = llmc_file(20240522, 1, id, 3, 2), old = llmc_file(20240520, 2, id, 3, 2),
           cut = llmc_file(20240520, 1, id, 3, 2), plain = array_file(id, 3, 2);
    cut.bytes -= 2;
    refused(opened(scratch("nowhere.txt"), FORMAT_AUTO), ERR_IO,
            "nowhere.txt: cannot open: No such");
    refused(opened("/tmp", FORMAT_TEXT), ERR_IO,
            "/tmp: is a folder; give the files in it (/tmp/*)");
    refused(opened("/dev/null", FORMAT_TEXT), ERR_IO, "is no plain file");
    refused(opened(scratch_write("eval.bin", &eval), FORMAT_AUTO), ERR_CHECK,
            "multiple-choice questions; give a file of training tokens (magic 20240520");
    refused(opened(scratch_write("old.bin", &old), FORMAT_AUTO), ERR_CHECK,
            "byte 4: version 2 of llm.c's format, and with magic 20240520 only 1 is known");
    refused(opened(scratch_write("cut.bin", &cut), FORMAT_AUTO), ERR_CHECK,
            "byte 8: 3 tokens are 6 bytes, and 4 follow the header; the file was cut short");
    buffer_set(&cut, 8, 0xFFFFFFFFu, 4);
    refused(opened(scratch_write("cut.bin", &cut), FORMAT_AUTO), ERR_CHECK,
            "byte 8: -1 tokens; the count is negative");
    refused(opened(scratch_write("plain.bin", &plain), FORMAT_AUTO), ERR_CONFIG,
            "is not text (byte 1 is NUL), has no magic of a token file and no .idx next to it; set "
            "data.format to uint16 or uint32");
    refused(opened(scratch("plain.bin"), FORMAT_TOKENS), ERR_CHECK, "has 6 bytes, and the header");
    refused(opened(scratch("plain.bin"), FORMAT_UINT32), ERR_CHECK,
            "has 6 bytes, no multiple of the 4 of a token (data.format=uint32)");
    refused(opened(scratch("plain.bin"), FORMAT_MEGATRON), ERR_IO, "there is no /tmp/");
    refused(opened(scratch_text("lone.idx", "MMIDIDX"), FORMAT_AUTO), ERR_IO,
            "an index without its tokens: there is no /tmp/");
    buffer_free(&eval);
    buffer_free(&old);
    buffer_free(&cut);
    buffer_free(&plain);
}

static void mistakes_with_pairs(void **state)
{
    (void)state;
    static const int64_t id[] = {1, 2, 3};
    static const int size[] = {1, 2}, document[] = {0, 1, 2};
    Buffer bin = array_file(id, 3, 2), index = megatron_index(8, 2, size, 2, document, 3);
    const char *path = scratch_write("pair.bin", &bin);
    scratch_text("pair.idx", "");
    refused(opened(path, FORMAT_AUTO), ERR_CHECK, "its length in bytes is 0, and its header");
    scratch_text("pair.idx", "TNTIDX--------------------------------");
    refused(opened(path, FORMAT_AUTO), ERR_CHECK, "of the older TNTIDX kind");
    buffer_set(&index, 17, 7, 1);
    scratch_write("pair.idx", &index);
    refused(opened(path, FORMAT_AUTO), ERR_CHECK, "byte 17, the type of the tokens, is 7");
    buffer_set(&index, 17, 8, 1);
    buffer_set(&index, 18, (uint64_t)1 << 61, 8);
    scratch_write("pair.idx", &index);
    refused(opened(path, FORMAT_AUTO), ERR_CHECK,
            "the number of sequences, is 2305843009213693952");
    buffer_set(&index, 18, 2, 8);
    scratch_write("pair.idx", &index);
    bin.bytes -= 2;
    refused(opened(scratch_write("pair.bin", &bin), FORMAT_AUTO), ERR_CHECK,
            "sequence 1 has 2 tokens from byte 2 on, and the file has 4 bytes; was it cut short?");
    bin.bytes += 2;
    buffer_put(&bin, 4, 2);
    refused(opened(scratch_write("pair.bin", &bin), FORMAT_AUTO), ERR_CHECK,
            "has 8 bytes, and the .idx next to it describes 6; the two do not belong together");
    buffer_free(&bin);
    buffer_free(&index);
}

/* Counts chosen to overflow: each passes if multiplications are not guarded. */
static void indices_that_overflow(void **state)
{
    (void)state;
    static const int64_t id[] = {1, 2, 3};
    static const int size[] = {1, 2}, document[] = {0, 1, 2}; /* 24 + 24 bytes after the header */
    static const struct {
        size_t at[2];
        uint64_t value[2];
        const char *says;
    } row[] = {
        {{18, 26}, {0x5555555555555556u, 5}, "number of sequences"}, /* times 12 wraps to 8 */
        {{26, 26}, {((uint64_t)1 << 61) + 3, ((uint64_t)1 << 61) + 3}, "number of documents"},
        {{42, 50}, {2, 0}, "sequence 0 starts at byte 2, and the one before ends at 0"},
        {{66, 74}, {2, 1}, "document 2 starts with sequence 1; the index must start with 0"},
        {{58, 66}, {1, 1}, "document 0 starts with sequence 1"},
    };
    Buffer bin = array_file(id, 3, 2);
    for (int i = 0; i < 5; i++) {
        Buffer index = megatron_index(8, 2, size, 2, document, 3);
        Tokens t;
        for (int k = 0; k < 2; k++) buffer_set(&index, row[i].at[k], row[i].value[k], 8);
        refused(tokens_parse("pair", FORMAT_MEGATRON, (Bytes){bin.at, bin.bytes},
                             (Bytes){index.at, index.bytes}, &arena, &t),
                ERR_CHECK, row[i].says);
        buffer_free(&index);
    }
    buffer_free(&bin);
}

static void mistakes_with_jsonl(void **state)
{
    (void)state;
    static const char *const line[][2] = {
        {"{\"text\": \"a\"}\nplain text\n", "x.jsonl:2:"},
        {"\"a\"\n", "x.jsonl:1: not a JSON object; each line of JSONL is one"},
        {"{\"content\": \"a\", \"url\": 1}",
         "x.jsonl:1: there is no \"text\" in the object (it has: "},
        {"{\"text\": 5}", "x.jsonl:1: \"text\" is a number; it must be a string"},
        {"{\"text\": \"a\"}\n{\"text\": [\"a\"]}",
         "x.jsonl:2: \"text\" is a list; it must be a string"},
        {"{\"text\": null}", "x.jsonl:1: \"text\" is null; it must be a string"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "duplicate object key"},
        {"{\"text\": \"\xFF\"}", "not JSON: unable to decode byte 0xff"},
    };
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        refused(opened(scratch_text("x.jsonl", line[i][0]), FORMAT_AUTO), ERR_CHECK, line[i][1]);
}

static void mistakes_with_sets(void **state)
{
    (void)state;
    const char *path = scratch_text("one.txt", "x");
    DatasetSettings s = {&path, 1, FORMAT_AUTO, 4, true, 256, 1, NULL, 0, NULL, NULL};
    TokenFormat format;
    Dataset d;
    refused(dataset_open(&s, &arena, &d), ERR_CONFIG,
            "one.txt: 1 tokens in all, and a sample needs 2");
    s.vocab = 255;
    refused(dataset_open(&s, &arena, &d), ERR_CONFIG,
            "needs a vocabulary of 256, and the model's has 255; set model.vocab_size=256");
    s.n_paths = 0;
    refused(dataset_open(&s, &arena, &d), ERR_CONFIG, "no data files; name some, as data.train=");
    refused(token_format_named("megatorn", &format), ERR_CONFIG, "did you mean megatron?");

    static const int64_t id[] = {1, 50257, 3};
    Buffer b = llmc_file(20240520, 1, id, 3, 2);
    int32_t row[4], ranges[16];
    float weights[4];
    const InputRows in = {row, row, row, ranges, weights, F32, NULL};
    path = scratch_write("big.bin", &b);
    s.n_paths = 1, s.vocab = 50257;
    refused(dataset_open(&s, &arena, &d), ERR_CHECK,
            "big.bin: token 1 (byte 1026) is 50257, and the vocabulary has 50257 ids; use tokens");
    refused(dataset_open(&s, &arena, &d), ERR_CHECK, "`sheaf data check --vocab 50257 /tmp/");
    s.vocab = 50258;
    assert_int_equal(dataset_open(&s, &arena, &d), OK);
    d.settings.vocab = 50257; /* as if the stream were too long to be scanned */
    refused(dataset_fill(&d, 0, 0, &in, 0), ERR_CHECK,
            "token 1 (byte 1026) is 50257, and the vocabulary has 50257 ids; use tokens of the "
            "model's tokenizer or a model with model.vocab_size=50258 or more");
    dataset_close(&d);
    buffer_free(&b);
}

static void mistakes_with_writers(void **state)
{
    (void)state;
    Writer w;
    refused(writer_open(&w, scratch("out.tok"), FORMAT_MEGATRON), ERR_CONFIG,
            "a Megatron pair is NAME.bin and NAME.idx; give the name of the .bin");
    refused(writer_open(&w, scratch("out.bin"), FORMAT_JSONL), ERR_CONFIG,
            "files are written as tokens or megatron, not as jsonl");
    refused(writer_open(&w, "/nonexistent/out.bin", FORMAT_TOKENS), ERR_IO, "cannot create");
    refused(writer_open(&w, scratch_text("mine.txt", "my only copy"), FORMAT_TOKENS), ERR_CONFIG,
            "mine.txt: already exists and is not a token file; remove it or choose another name");
    assert_int_equal(opened(scratch("mine.txt"), FORMAT_TEXT), OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_with_files),   cmocka_unit_test(mistakes_with_pairs),
        cmocka_unit_test(indices_that_overflow), cmocka_unit_test(mistakes_with_jsonl),
        cmocka_unit_test(mistakes_with_sets),    cmocka_unit_test(mistakes_with_writers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
