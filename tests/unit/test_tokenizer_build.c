/* `sheaf data build` with a tokenizer: the same file with any number of threads, documents with
 * their borders, and the printed summary. */
#include "cli/verbs.h"
#include "data/map.h"
#include "data/tokenize.h"
#include "support/data_test.h"

#define LLAMA3 "tests/golden/tokenizer/llama3.json"
#define GPT2 "tests/golden/tokenizer/gpt2.json"

/* Words, spaces and newlines; some marks and some bytes that are not UTF-8. */
static Bytes some_text(size_t bytes)
{
    static const char *const word[] = {" the",  " of", "\n\n",  " caf\u00e9", " e\u0301", "  ",
                                       " 2024", "'s",  " a b ", "\xFF",       " word",    "<|x|>",
                                       ".\n",   " it", "\t",    " x"};
    unsigned char *text;
    size_t used = 0;
    uint32_t state = 1;
    DO(ARENA_NEW(&arena, bytes + 16, &text));
    while (used < bytes) {
        state = state * 1664525 + 1013904223;
        const char *w = word[state >> 28];
        memcpy(text + used, w, strlen(w));
        used += strlen(w);
    }
    return (Bytes){text, used};
}

/* A tokenizer without tokens that strip: text may be split. */
static Tokenizer *cutting(void)
{
    Tokenizer *t;
    DO(tokenizer_load(LLAMA3, &arena, &t));
    assert_false(tokenizer_cuts(t)); /* <rest> strips the white space after it */
    for (int i = 0; i < t->n_added; i++) {
        if (!t->added[i].rstrip && !memchr(t->added[i].content.at, ' ', t->added[i].content.bytes))
            continue;
        t->added[i].rstrip = false;
        t->added[i].content = t->added[0].content;
    }
    assert_true(tokenizer_cuts(t));
    return t;
}

static Bytes build(const Tokenizer *t, Bytes text, int threads, size_t part_bytes, bool jsonl)
{
    Writer w;
    BulkTokenizer z;
    Bytes file;
    const char *out = scratch("built.bin");
    DO(writer_open_ids(&w, out, FORMAT_MEGATRON, t->n_ids));
    DO(tokenize_open(&z, &(TokenizeSettings){.of = t,
                                             .writer = &w,
                                             .threads = threads,
                                             .first = 7,
                                             .last = -1,
                                             .part_bytes = part_bytes}));
    DO(jsonl ? tokenize_jsonl(&z, "lines", text) : tokenize_text(&z, text));
    tokenize_close(&z);
    DO(writer_finish(&w));
    writer_close(&w);
    scratch("built.idx");
    DO(map_file(out, &file));
    return file;
}

/* Splits and threads change neither the ids nor their positions. */
static void any_threads_write_the_same(void **state)
{
    (void)state;
    Tokenizer *t = cutting();
    const Bytes text = some_text(90000);
    Bytes want = build(t, text, 1, 1 << 20, false);
    static const struct {
        int threads;
        size_t part;
    } row[] = {{1, 64}, {2, 1000}, {5, 333}, {3, 40000}};
    assert_true(want.bytes > 20000);
    for (int i = 0; i < 4; i++) {
        Bytes got = build(t, text, row[i].threads, row[i].part, false);
        assert_int_equal(got.bytes, want.bytes);
        assert_memory_equal(got.at, want.at, want.bytes);
        unmap(&got);
    }
    unmap(&want);
    tokenizer_close(t);
}

static void lines_keep_their_order(void **state)
{
    (void)state;
    enum { LINES = 700 };
    Tokenizer *t;
    Encoder e;
    Tokens file;
    char *lines;
    size_t used = 0;
    int64_t at = 0;
    DO(tokenizer_load(LLAMA3, &arena, &t));
    DO(ARENA_NEW(&arena, 64 * LINES, &lines));
    for (int i = 0; i < LINES; i++)
        used += (size_t)sprintf(lines + used, "{\"text\": \"line %d of %d\"}\n%s", i, i * i,
                                i % 5 ? "" : "\n");
    Bytes map = build(t, (Bytes){(unsigned char *)lines, used}, 3, 100, true);
    unmap(&map);
    DO(tokens_open(scratch("built.bin"), FORMAT_AUTO, &arena, &file));
    DO(encoder_open(&e, t));
    for (int i = 0; i < LINES; i++) {
        char text[64];
        const int n = sprintf(text, "line %d of %d", i, i * i);
        encoder_clear(&e);
        DO(encoder_add_id(&e, 7));
        DO(encoder_add(&e, (Bytes){(unsigned char *)text, (size_t)n}, true));
        for (int64_t k = 0; k < e.n; k++) assert_int_equal(tokens_at(&file, at + k), e.id[k]);
        at += e.n;
        assert_int_equal(tokens_next_start(&file, at - 1, file.n_tokens), at);
    }
    assert_int_equal(at, file.n_tokens);
    tokens_close(&file);
    encoder_close(&e);
    tokenizer_close(t);
}

/* A malformed line is named by its number, in any thread. */
static void a_wrong_line_is_named(void **state)
{
    (void)state;
    Tokenizer *t;
    Writer w;
    BulkTokenizer z;
    char lines[4000] = "";
    for (int i = 1; i <= 90; i++)
        strcat(lines, i == 77 ? "{\"txt\": 1}\n" : "{\"text\": \"a good line\"}\n");
    DO(tokenizer_load(LLAMA3, &arena, &t));
    DO(writer_open_ids(&w, scratch("wrong.bin"), FORMAT_MEGATRON, t->n_ids));
    DO(tokenize_open(&z, &(TokenizeSettings){
                             .of = t, .writer = &w, .threads = 2, .last = -1, .part_bytes = 90}));
    refused(tokenize_jsonl(&z, "lines.jsonl", (Bytes){(unsigned char *)lines, strlen(lines)}),
            ERR_CHECK, "lines.jsonl:77: there is no \"text\" in the object (it has: txt)");
    tokenize_close(&z);
    writer_close(&w);
    tokenizer_close(t);
}

/* The header names the token that starts documents, so any vocabulary has borders. */
static void borders_are_in_the_header(void **state)
{
    (void)state;
    Writer w;
    Tokens file;
    const int32_t id[] = {9, 1, 2, 9, 3, 9};
    const int border[] = {3, 5};
    for (int wide = 0; wide < 2; wide++) {
        const char *path = scratch(wide ? "wide.bin" : "narrow.bin");
        DO(writer_open_ids(&w, path, FORMAT_TOKENS, wide ? 65537 : 65536));
        w.start = 9 + 1;
        DO(writer_ids(&w, id, 6));
        DO(writer_finish(&w));
        writer_close(&w);
        opens(path, FORMAT_AUTO, FORMAT_TOKENS, &file);
        assert_int_equal(file.width, wide ? 4 : 2);
        assert_borders(&file, border, 2);
        assert_tokens(&file, (const int64_t[]){9, 1, 2, 9, 3, 9}, 6);
        tokens_close(&file);
    }
    DO(writer_open_ids(&w, scratch("none.bin"), FORMAT_TOKENS, 60000));
    w.start = -1;
    DO(writer_ids(&w, (const int32_t[]){1, 50256, 2}, 3));
    DO(writer_finish(&w));
    writer_close(&w);
    opens(scratch("none.bin"), FORMAT_AUTO, FORMAT_TOKENS, &file);
    assert_borders(&file, NULL, 0);
    tokens_close(&file);
}

static int sheaf(const char *const *words)
{
    char *argv[16] = {"sheaf"};
    int argc = 1;
    for (; words[argc - 1]; argc++) argv[argc] = (char *)words[argc - 1];
    return cli_run(argc, argv);
}
#define SHEAF(...) sheaf((const char *const[]){__VA_ARGS__, NULL})

/* Ids between documents: before each or after each; by default as the tokenizer has them. */
static void documents_are_parted(void **state)
{
    (void)state;
    const char *lines = scratch_text("d.jsonl", "{\"text\": \"the\"}\n{\"text\": \"of\"}\n");
    const char *out = scratch("d.bin"), *pair = scratch("p.bin");
    Tokenizer *gpt2, *llama3;
    Tokens file;
    scratch("p.idx");
    DO(tokenizer_load(GPT2, &arena, &gpt2));
    DO(tokenizer_load(LLAMA3, &arena, &llama3));
    const int64_t eot = tokenizer_id(gpt2, "<|endoftext|>"), the = tokenizer_id(gpt2, "the"),
                  bos = tokenizer_id(llama3, "<|begin_of_text|>");
    assert_true(eot >= 0 && the >= 0 && bos >= 0);
    assert_int_equal(SHEAF("data", "build", lines, "-o", out, "--tokenizer", GPT2), 0);
    opens(out, FORMAT_AUTO, FORMAT_TOKENS, &file);
    assert_int_equal(tokens_at(&file, 0), eot);
    assert_int_equal(tokens_at(&file, 1), the);
    assert_int_equal(tokens_at(&file, tokens_next_start(&file, 0, file.n_tokens)), eot);
    tokens_close(&file);
    assert_int_equal(SHEAF("data", "build", lines, "-o", pair, "--tokenizer", GPT2, "--format",
                           "megatron", "--threads", "3"),
                     0);
    opens(pair, FORMAT_AUTO, FORMAT_MEGATRON, &file);
    assert_int_equal(tokens_at(&file, 0), the);
    assert_int_equal(tokens_at(&file, tokens_next_start(&file, 0, file.n_tokens) - 1), eot);
    assert_int_equal(tokens_at(&file, file.n_tokens - 1), eot);
    tokens_close(&file);
    assert_int_equal(SHEAF("data", "build", "data.tokenizer=" LLAMA3, lines, "-o", out), 0);
    opens(out, FORMAT_AUTO, FORMAT_TOKENS, &file);
    assert_int_equal(tokens_at(&file, 0), bos);
    assert_int_equal(file.start_token, bos);
    tokens_close(&file);
    assert_int_equal(SHEAF("data", "show", "--tokenizer", LLAMA3, out), 0);
    assert_int_equal(SHEAF("data", "build", lines, "-o", out, "--tokenizer", GPT2, "--eot", "<e>"),
                     2);
    assert_int_equal(SHEAF("data", "build", lines, "-o", out, "--eot", "<e>"), 2);
    assert_int_equal(
        SHEAF("data", "build", lines, "-o", out, "--tokenizer", GPT2, "--threads", "0"), 2);
    tokenizer_close(gpt2);
    tokenizer_close(llama3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_threads_write_the_same), cmocka_unit_test(lines_keep_their_order),
        cmocka_unit_test(a_wrong_line_is_named),      cmocka_unit_test(borders_are_in_the_header),
        cmocka_unit_test(documents_are_parted),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
