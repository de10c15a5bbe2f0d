/* test_data_truncated.c -- a data file that is truncated while it is mapped gives an error that
 * names it, and no crash. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "data/dataset.h"
#include "data/map.h"
#include "support/expect.h"

enum { FILE_BYTES = 1 << 20, SEQ = 64 };

static char path[64];
static Arena arena;

static int make_file(void **state)
{
    static char text[FILE_BYTES];
    (void)state;
    memset(text, 'a', sizeof text);
    strcpy(path, "/tmp/sheaf_truncated_XXXXXX");
    const int fd = mkstemp(path);
    if (fd < 0 || write(fd, text, sizeof text) != (ssize_t)sizeof text) return 1;
    return close(fd) != 0 || arena_open(&arena, "test", ARENA_PLENTY) != OK;
}

static int remove_file(void **state)
{
    (void)state;
    arena_close(&arena);
    return unlink(path);
}

static void a_sample_past_the_end(void **state)
{
    static int32_t tokens[SEQ], targets[SEQ], positions[SEQ], ranges[4 * SEQ];
    static float weights[SEQ];
    const InputRows rows = {tokens, targets, positions, ranges, weights, F32, NULL};
    const char *const paths[] = {path};
    const DatasetSettings set = {.path = paths,
                                 .n_paths = 1,
                                 .format = FORMAT_TEXT,
                                 .seq_len = SEQ,
                                 .vocab = BYTE_VOCAB,
                                 .seed = 1};
    Dataset d;
    (void)state;
    DO(dataset_open(&set, &arena, &d));
    assert_int_equal(truncate(path, 4096), 0);
    DO(dataset_fill(&d, 0, 0, &rows, 0)); /* still there */
    expect_error("sample", dataset_fill(&d, d.n_samples - 1, 0, &rows, 0), ERR_IO, path);
    expect_error("again", dataset_fill(&d, d.n_samples / 2, 0, &rows, 0), ERR_IO, "truncated");
    dataset_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_sample_past_the_end, make_file, remove_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
