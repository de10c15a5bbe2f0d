/* Damaged checkpoints: the first byte, the last, any byte of a rank's data, and short or
 * missing files are detected and named on all ranks without a hang. A checkpoint of another
 * model is refused. */
#define _DEFAULT_SOURCE
#include "support/states.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/philox.h"

enum { STEP = 5 };

typedef struct {
    StateWorld from, to;
    StateWhole whole;
    char folder[64], dir[96];
    Manifest manifest;
    LoadResult result; /* of rank 0 */
} GraphTest;

static Err fill_and_save(StateRank *r, void *work)
{
    GraphTest *b = work;
    state_fill(r, 3);
    TRY(state_collect(r, &b->whole));
    return state_save(r, b->folder, STEP, true);
}

static Err load_all(StateRank *r, void *work)
{
    GraphTest *b = work;
    LoadResult result;
    const Err err = state_load_from(r, b->folder, STEP, &result);
    if (err != OK) return err; /* agreed on */
    return state_collect(r, &b->whole);
}

static void graph_test_open(GraphTest *b, const char *from, const char *to)
{
    *b = (GraphTest){0};
    state_world_open(&b->from, from);
    state_world_open(&b->to, to);
    state_whole_open(&b->whole, &b->from);
    state_folder(b->folder);
    DO(state_world_run(&b->from, fill_and_save, b));
    snprintf(b->dir, sizeof b->dir, "%s/step-%08d", b->folder, STEP);
    DO(manifest_read(b->dir, &b->from.arena, &b->manifest));
    DO(state_world_run(&b->to, load_all, b));
}

static void graph_test_close(GraphTest *b)
{
    state_folder_remove(b->folder);
    state_whole_close(&b->whole);
    state_world_close(&b->to);
    state_world_close(&b->from);
}

static int open_file(const GraphTest *b, int file, char path[160])
{
    snprintf(path, 160, "%s/%s", b->dir, b->manifest.file[file].name);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

/* Returns the part that contains the byte. */
static const ManifestPart *part_at(const GraphTest *b, int file, int64_t at)
{
    const ManifestPart *found = NULL;
    for (int64_t i = 0; i < b->manifest.n_parts; i++) {
        const ManifestPart *p = &b->manifest.part[i];
        if (p->file == file && p->at <= at && (!found || p->at > found->at)) found = p;
    }
    assert_non_null(found);
    return found;
}

static void flip(const GraphTest *b, int file, int64_t at, unsigned char bits)
{
    char path[160];
    unsigned char byte;
    const int fd = open_file(b, file, path);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void flip_is_found(GraphTest *b, int file, int64_t at, unsigned char bits)
{
    const ManifestPart *part = part_at(b, file, at);
    flip(b, file, at, bits);
    const Err err = state_world_run(&b->to, load_all, b);
    expect_error(b->manifest.file[file].name, err, ERR_CHECK, b->manifest.file[file].name);
    expect_error("its tensor", err, ERR_CHECK, b->manifest.tensors.tensor[part->tensor].name);
    expect_error("what it is", err, ERR_CHECK, "damaged");
    flip(b, file, at, bits);
}

static int64_t data_begin(const GraphTest *b, int file)
{
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < b->manifest.n_parts; i++)
        if (b->manifest.part[i].file == file && b->manifest.part[i].at < least)
            least = b->manifest.part[i].at;
    return least;
}

static void a_flipped_byte(void **state)
{
    (void)state;
    GraphTest b;
    const Random random = random_named(1, "flips");
    uint64_t drawn = 0;
    graph_test_open(&b, "dp=2 tp=3 zero=1", "pp=2 tp=2");
    assert_true(b.manifest.n_files >= 5);
    for (int f = 0; f < b.manifest.n_files; f++) {
        const int64_t begin = data_begin(&b, f), end = b.manifest.file[f].bytes;
        flip_is_found(&b, f, begin, 1);
        flip_is_found(&b, f, end - 1, 0x80);
        for (int i = 0; i < 4; i++) {
            const uint64_t bits = random_bits(&random, drawn++);
            flip_is_found(&b, f, begin + (int64_t)(bits % (uint64_t)(end - begin)),
                          (unsigned char)(1u << (bits >> 61)));
        }
    }
    DO(state_world_run(&b.to, load_all, &b)); /* undamaged again */
    graph_test_close(&b);
}

static void a_short_file(void **state)
{
    (void)state;
    GraphTest b;
    char path[160];
    graph_test_open(&b, "dp=2 zero=1", "tp=3");
    for (int f = 0; f < b.manifest.n_files; f++) {
        const int64_t bytes = b.manifest.file[f].bytes;
        char *data = malloc((size_t)bytes);
        int fd = open_file(&b, f, path);
        assert_int_equal(pread(fd, data, (size_t)bytes, 0), bytes);
        const int64_t cut[3] = {bytes - 1, bytes / 2, 0};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(ftruncate(fd, (off_t)cut[i]), 0);
            const Err err = state_world_run(&b.to, load_all, &b);
            expect_error(path, err, ERR_CHECK, b.manifest.file[f].name);
            expect_error(path, err, ERR_CHECK, "ends after");
        }
        assert_int_equal(pwrite(fd, data, (size_t)bytes, 0), bytes);
        close(fd);
        free(data);
    }
    graph_test_close(&b);
}

static void a_missing_file(void **state)
{
    (void)state;
    GraphTest b;
    char path[160];
    graph_test_open(&b, "dp=2 zero=1", "tp=2");
    close(open_file(&b, 1, path));
    assert_int_equal(unlink(path), 0);
    expect_error(path, state_world_run(&b.to, load_all, &b), ERR_IO, b.manifest.file[1].name);
    graph_test_close(&b);
}

/* ---- checkpoints of other models ---- */

static void refused(GraphTest *b, const StateSpec *spec, const char *says)
{
    StateWorld other;
    state_world_open_as(&other, spec);
    expect_error(spec->words, state_world_run(&other, load_all, b), ERR_CONFIG, says);
    state_world_close(&other);
}

static void another_model(void **state)
{
    (void)state;
    GraphTest b;
    graph_test_open(&b, "dp=2 zero=1", "");
    refused(&b, &(StateSpec){.words = "tp=2", .vocab = 29},
            "model.embed_tokens.weight is f64 [23,");
    refused(&b, &(StateSpec){.words = "dp=2", .kind = OPTIM_SGD}, "has moment1 of");
    refused(&b, &(StateSpec){.words = "dp=2", .dtype = F32}, "f32 [");
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_byte), cmocka_unit_test(a_short_file),
        cmocka_unit_test(a_missing_file), cmocka_unit_test(another_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
