/* A reshaped checkpoint equals the one that the target layout would have saved, byte for byte;
 * memory for data is the buffer. */
#define _DEFAULT_SOURCE
#include "support/states.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "state/rank_file.h"
#include "state/reshape.h"

enum { STEP = 3 };

typedef struct {
    StateWorld world;
    char folder[64];
} Saved;

static Err fill_and_save(StateRank *r, void *work)
{
    const Saved *s = work;
    state_fill(r, 3);
    return state_save(r, s->folder, STEP, true);
}

static void saved_open(Saved *s, const StateSpec *spec)
{
    state_world_open_as(&s->world, spec);
    state_folder(s->folder);
    DO(state_world_run(&s->world, fill_and_save, s));
}

static void saved_close(Saved *s)
{
    state_folder_remove(s->folder);
    state_world_close(&s->world);
}

/* Reads a whole file; NULL: it does not exist. */
static char *slurp(const char *folder, const char *name, long *bytes)
{
    char path[160];
    snprintf(path, sizeof path, "%s/step-%08d/%s", folder, STEP, name);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *bytes = ftell(f);
    rewind(f);
    char *data = malloc((size_t)*bytes + 1);
    assert_int_equal(fread(data, 1, (size_t)*bytes, f), *bytes);
    fclose(f);
    return data;
}

static void same_file(const char *where, const char *one, const char *other, const char *name)
{
    long n, m;
    char *a = slurp(one, name, &n), *b = slurp(other, name, &m);
    if (!a != !b) fail_msg("%s: %s is in one of them", where, name);
    if (a && (n != m || memcmp(a, b, (size_t)n) != 0))
        fail_msg("%s: %s differs (%ld and %ld bytes)", where, name, n, m);
    free(a);
    free(b);
}

static Err reshape(const Saved *from, const StateWorld *to, const char *folder, int64_t buffer,
                   ReshapeResult *out)
{
    Manifest m;
    char dir[128];
    Arena temp;
    TRY(arena_open(&temp, "reshape", ARENA_PLENTY));
    snprintf(dir, sizeof dir, "%s/step-%08d", from->folder, STEP);
    Err err = manifest_read(dir, &temp, &m);
    const ReshapeSettings set = {.from = &m,
                                 .to = &to->job[to->ranks - 1].linked,
                                 .checkpoints = folder,
                                 .scalars = &m.scalars,
                                 .buffer_bytes = buffer,
                                 .temp = &temp};
    if (err == OK) err = state_reshape(&set, out);
    arena_close(&temp);
    return err;
}

static void check_pair(const Saved *from, const Saved *to, int64_t buffer, bool once)
{
    char folder[64], where[160], name[RANK_FILE_NAME_BYTES];
    ReshapeResult r;
    snprintf(where, sizeof where, "%s -> %s", from->world.words, to->world.words);
    state_folder(folder);
    if (reshape(from, &to->world, folder, buffer, &r) != OK) fail_msg("%s: %s", where, err_text());
    for (int k = 0; k < to->world.ranks; k++) {
        rank_file_name(k, name);
        same_file(where, folder, to->folder, name);
    }
    same_file(where, folder, to->folder, "manifest.json");
    if (r.read_bytes < r.bytes || (once && r.read_bytes > r.bytes))
        fail_msg("%s: %lld bytes read of %lld", where, (long long)r.read_bytes, (long long)r.bytes);
    state_folder_remove(folder);
}

static void all_pairs(void **state)
{
    (void)state;
    static Saved saved[MAX_STATE_LAYOUTS];
    int n = 0;
    for (; state_layouts[n]; n++) saved_open(&saved[n], &(StateSpec){.words = state_layouts[n]});
    assert_true(n >= 12);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) check_pair(&saved[a], &saved[b], RESHAPE_BUFFER, false);
    for (int i = 0; i < n; i++) saved_close(&saved[i]);
}

/* Tables of several chunks: read once with the default buffer, correct with the smallest. */
static void large_tables(void **state)
{
    (void)state;
    static const char *const words[] = {"dp=3 zero=1", "tp=3", "pp=2 tp=2"};
    Saved saved[3];
    for (int i = 0; i < 3; i++)
        saved_open(&saved[i], &(StateSpec){.words = words[i], .vocab = 200003});
    for (int i = 0; i < 3; i++) {
        check_pair(&saved[i], &saved[(i + 1) % 3], RESHAPE_BUFFER, true);
        check_pair(&saved[i], &saved[(i + 1) % 3], MIN_RESHAPE_BUFFER, false);
    }
    for (int i = 0; i < 3; i++) saved_close(&saved[i]);
}

static void what_is_refused(void **state)
{
    (void)state;
    Saved from;
    StateWorld other;
    ReshapeResult r;
    char folder[64], path[160];
    saved_open(&from, &(StateSpec){.words = "dp=2 zero=1"});
    state_folder(folder);
    expect_error("buffer", reshape(&from, &from.world, folder, CHUNK_BYTES, &r), ERR_CONFIG,
                 "two chunks");
    state_world_open_as(&other, &(StateSpec){.words = "tp=2", .vocab = 29});
    expect_error("model", reshape(&from, &other, folder, RESHAPE_BUFFER, &r), ERR_CONFIG,
                 "embed_tokens");
    snprintf(path, sizeof path, "%s/step-%08d/rank-00001.safetensors", from.folder, STEP);
    FILE *f = fopen(path, "r+b");
    fseek(f, -1, SEEK_END);
    const int last = fgetc(f);
    fseek(f, -1, SEEK_END);
    fputc(last ^ 4, f);
    fclose(f);
    expect_error("damaged", reshape(&from, &from.world, folder, RESHAPE_BUFFER, &r), ERR_CHECK,
                 "rank-00001.safetensors");
    snprintf(path, sizeof path, "%s/step-%08d.tmp", folder, STEP);
    assert_int_not_equal(access(path, F_OK), 0); /* nothing remains */
    state_folder_remove(folder);
    state_world_close(&other);
    saved_close(&from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_pairs), cmocka_unit_test(large_tables),
                                       cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
