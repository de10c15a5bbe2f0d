/* Files that must not change: one written by the official safetensors library, which we read; and a
 * small checkpoint of ours, which is reproduced byte for byte.
 *
 *     build/release/tests/test_state_golden write      rewrites tests/golden/checkpoint, if the
 *                                                      format changes */
#define _POSIX_C_SOURCE 200809L
#include <sys/stat.h>
#include <unistd.h>
#include "support/state_test.h"
#include "base/text.h"
#include "state/chunk_read.h"
#include "state/disk.h"
#include "state/folder.h"

static const char golden[] = "tests/golden/checkpoint";

static const void *bytes_of(const StFile *f, const char *name, size_t bytes)
{
    const StTensor *t = st_find(f, name);
    void *out;
    int fd;
    assert_non_null(t);
    assert_int_equal(t->bytes, bytes);
    DO(arena_push(&arena, bytes + 1, &out));
    DO(disk_open(f->path, &fd));
    DO(disk_read(fd, f->path, f->data_at + t->at, out, bytes));
    disk_close(fd);
    return out;
}

static void official(void **state)
{
    StFile f;
    (void)state;
    DO(st_read("tests/golden/safetensors/official.safetensors", &arena, &f));
    assert_int_equal(f.n, 9);
    assert_string_equal(st_meta(&f, "who"), "the official library");
    const float *f32 = bytes_of(&f, "f32", 60);
    for (int i = 0; i < 15; i++) assert_true(f32[i] == (float)i / 4);
    const StTensor *t = st_find(&f, "f32");
    assert_true(t->type == ST_F32 && t->ndim == 2 && t->n[0] == 3 && t->n[1] == 5);
    const double *f64 = bytes_of(&f, "f64", 16);
    assert_true(f64[0] == 1.5 && f64[1] == -2.25);
    const int64_t *i64 = bytes_of(&f, "i64", 24);
    assert_true(i64[0] == (int64_t)1 << 62 && i64[1] == -1 && i64[2] == 7);
    assert_memory_equal(bytes_of(&f, "u8", 3), "\0\1\2", 3);
    assert_memory_equal(bytes_of(&f, "bool", 3), "\1\0\1", 3);
    assert_int_equal(st_find(&f, "f16")->type, ST_F16);
    assert_true(*(const float *)bytes_of(&f, "scalar", 4) == 0.5f);
    assert_int_equal(st_find(&f, "scalar")->ndim, 0);
    assert_int_equal(st_find(&f, "empty")->bytes, 0);
    assert_int_equal(st_find(&f, "na\xc3\xafve \"name\"\\")->ndim, 4);
}

/* Saves the example at its step with two ranks. */
static void save_example(const char *folder)
{
    const StateTensors t = example_tensors();
    char tmp[DISK_PATH_BYTES], path[DISK_PATH_BYTES], name[RANK_FILE_NAME_BYTES];
    for (int rank = 0; rank < EXAMPLE_RANKS; rank++) {
        const RankFile f = example_rank(&t, rank);
        DO(folder_begin(folder, f.step, tmp, sizeof tmp));
        rank_file_name(rank, name);
        DO(disk_path(tmp, name, path));
        example_write(&t, &f, path);
    }
    const CommitSettings c = {.checkpoints = folder,
                              .ranks = EXAMPLE_RANKS,
                              .keep = 2,
                              .tensors = &t,
                              .scalars = &example_scalars};
    DO(folder_commit(&c, &arena));
}

static void ours(void **state)
{
    static const char *const name[] = {"latest", "step-00000020/manifest.json",
                                       "step-00000020/rank-00000.safetensors",
                                       "step-00000020/rank-00001.safetensors"};
    char folder[] = "/tmp/sheaf_golden_XXXXXX", path[DISK_PATH_BYTES];
    (void)state;
    assert_non_null(mkdtemp(folder));
    save_example(folder);
    for (int i = 0; i < 4; i++) {
        const char *want, *got;
        size_t want_bytes, got_bytes;
        DO(disk_path(golden, name[i], path));
        DO(text_read_file(path, 1 << 20, &arena, &want, &want_bytes));
        DO(disk_path(folder, name[i], path));
        DO(text_read_file(path, 1 << 20, &arena, &got, &got_bytes));
        if (got_bytes != want_bytes || memcmp(got, want, got_bytes) != 0)
            fail_msg("%s is no longer %s/%s: a reader that others wrote would fail", path, golden,
                     name[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/step-00000020", folder);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* Every chunk has the hash of the manifest and the data that was written. */
static void read_ours(void **state)
{
    Manifest m;
    (void)state;
    DO(manifest_read("tests/golden/checkpoint/step-00000020", &arena, &m));
    DO(manifest_check_files(&m, &arena));
    ChunkReader r = chunk_reader(&m);
    for (int64_t i = 0; i < m.n_parts; i++) {
        Buffer want = {0};
        void *got;
        example_data(&m.tensors, &m.part[i], &want);
        DO(arena_push(&arena, want.bytes, &got));
        DO(chunk_read(&r, &m.part[i], 0, got));
        assert_memory_equal(got, want.at, want.bytes);
        buffer_free(&want);
    }
    chunk_reader_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(official, setup, teardown),
        cmocka_unit_test_setup_teardown(ours, setup, teardown),
        cmocka_unit_test_setup_teardown(read_ours, setup, teardown),
    };
    if (argc > 1 && strcmp(argv[1], "write") == 0) {
        const int bad = setup(NULL) || (mkdir(golden, 0777) != 0 && access(golden, W_OK) != 0);
        if (!bad) save_example(golden);
        return bad;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
