/* test_data_writer.c -- written files follow the formats and can be read back. */
#define _POSIX_C_SOURCE 200809L
#include <sys/stat.h>
#include <unistd.h>
#include "support/data_test.h"
#include "data/writer.h"

static Bytes text_bytes_of(const char *text)
{
    return (Bytes){(const unsigned char *)text, strlen(text)};
}

static void document(Writer *w, Bytes text)
{
    const size_t half = text.bytes / 2;
    DO(writer_text(w, (Bytes){text.at, half}));
    DO(writer_text(w, (Bytes){text.at + half, text.bytes - half}));
    DO(writer_end(w));
}

static void write_two(const char *path, TokenFormat format)
{
    Writer w;
    DO(writer_open(&w, path, format));
    document(&w, text_bytes_of("hello \xFF"));
    document(&w, text_bytes_of("you"));
    DO(writer_finish(&w));
    writer_close(&w);
}

static const int64_t two_texts[] = {'h', 'e', 'l', 'l', 'o', ' ', 0xFF, 'y', 'o', 'u'};

/* The files are read back, and equal the bytes of the format written out here. */
static void our_files_are_theirs(void **state)
{
    (void)state;
    const int size[] = {7, 3}, document[] = {0, 1, 2}, border[] = {7};
    Buffer llmc = llmc_file(20240520, 1, two_texts, 10, 2), bin = array_file(two_texts, 10, 2),
           idx = megatron_index(8, 2, size, 2, document, 3);
    Tokens t;
    for (int again = 0; again < 2; again++) { /* a token file may be overwritten */
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

/* More sizes than the writer's first block, documents longer than its buffer. */
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
    for (int d = 0; d < N; d++) document(&w, (Bytes){text, d == 5 ? LONG : (size_t)(d % 3) + 1});
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
    document(&w, text_bytes_of("hello"));
    writer_close(&w);
    assert_int_equal(tokens_open(scratch("half.bin"), FORMAT_AUTO, &arena, &t), ERR_IO);
    assert_int_equal(tokens_open(scratch("half.bin.part"), FORMAT_AUTO, &arena, &t), ERR_IO);
    assert_int_equal(tokens_open(scratch("half.idx.part"), FORMAT_AUTO, &arena, &t), ERR_IO);
}

/* Refused, and the file keeps its kind, length and content. */
static void expect_unchanged(const char *path, TokenFormat format, const char *kept,
                             const char *says)
{
    struct stat before, after;
    Writer w;
    assert_int_equal(lstat(kept, &before), 0);
    refused(writer_open(&w, path, format), ERR_CONFIG, says);
    assert_int_equal(lstat(kept, &after), 0);
    assert_true(before.st_mode == after.st_mode && before.st_ino == after.st_ino);
    assert_true(S_ISDIR(before.st_mode) || before.st_size == after.st_size);
}

static void special_files_are_kept(void **state)
{
    (void)state;
    const char *fifo = scratch("fifo.bin"), *folder = scratch("folder.bin"),
               *link = scratch("link.bin"), *nothing = scratch("nothing.bin"),
               *idx = scratch("taken.idx");
    assert_int_equal(mkfifo(fifo, 0600) | mkdir(folder, 0700) | mkdir(idx, 0700), 0);
    assert_int_equal(symlink(fifo, link) | symlink(scratch("absent"), nothing), 0);
    expect_unchanged(fifo, FORMAT_TOKENS, fifo,
                     "fifo.bin: already exists and is a FIFO; choose another");
    expect_unchanged(folder, FORMAT_TOKENS, folder, "folder.bin: already exists and is a folder");
    expect_unchanged(link, FORMAT_TOKENS, link, "link.bin: already exists and is a link to a FIFO");
    expect_unchanged(nothing, FORMAT_MEGATRON, nothing, "and is a link to nothing");
    remove(link); /* a link, so that the test cannot harm the device */
    assert_int_equal(symlink("/dev/null", link), 0);
    expect_unchanged(link, FORMAT_TOKENS, link,
                     "link.bin: already exists and is a link to a device");
    expect_unchanged(scratch("taken.bin"), FORMAT_MEGATRON, idx,
                     "taken.idx: already exists and is a fold");
    assert_int_equal(rmdir(folder) | rmdir(idx), 0);
}

static void files_of_another_kind_stay(void **state)
{
    (void)state;
    static const int64_t id[] = {70000, 2, 3};
    Buffer wide = llmc_file(20240801, 7, id, 3, 4);
    const char *llmc = scratch("llmc.bin"), *bin = scratch("pair.bin"), *idx = scratch("pair.idx"),
               *uint32 = scratch_write("wide.bin", &wide);
    buffer_free(&wide);
    write_two(llmc, FORMAT_TOKENS);
    write_two(bin, FORMAT_MEGATRON);
    expect_unchanged(
        llmc, FORMAT_MEGATRON, llmc,
        "already exists as a token file of llm.c, uint16, but a Megatron pair, uint16 would be "
        "written");
    expect_unchanged(bin, FORMAT_TOKENS, bin,
                     "already exists as a Megatron pair, uint16, but a token file of llm.c");
    expect_unchanged(uint32, FORMAT_TOKENS, uint32,
                     "already exists as a token file of llm.c, uint32, but");
    expect_unchanged(idx, FORMAT_TOKENS, idx, "pair.idx: is the name of an index");
    expect_unchanged(idx, FORMAT_MEGATRON, idx, "pair.idx: is the name of an index");
    remove(bin);
    expect_unchanged(bin, FORMAT_MEGATRON, idx, "pair.idx: already exists and is not a token file");
    const char *part = scratch_text("new.bin.part", "mine");
    expect_unchanged(scratch("new.bin"), FORMAT_TOKENS, part,
                     "new.bin.part: already exists: another build");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_files_are_theirs),
        cmocka_unit_test(many_documents_come_back),
        cmocka_unit_test(what_is_not_finished_is_not_there),
        cmocka_unit_test(special_files_are_kept),
        cmocka_unit_test(files_of_another_kind_stay),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
