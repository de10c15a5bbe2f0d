/* The saver writes the state at the time it began, with a snapshot or without; it reports failures
 * and leaves the previous generation unchanged. */
#define _DEFAULT_SOURCE
#include "support/states.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
#include "state/rank_file.h"

typedef struct {
    StateWorld world;
    StateWhole whole;
    char folder[64];
} GraphTest;

static void graph_test_open(GraphTest *b, const StateSpec *spec)
{
    state_world_open_as(&b->world, spec);
    state_whole_open(&b->whole, &b->world);
    state_folder(b->folder);
}

static void graph_test_close(GraphTest *b)
{
    state_folder_remove(b->folder);
    state_whole_close(&b->whole);
    state_world_close(&b->world);
}

/* Checks that the checkpoint of that step contains the whole state. */
typedef struct {
    GraphTest *test;
    int64_t step;
} OnDisk;

static Err compare_disk(StateRank *r, void *work)
{
    const OnDisk *d = work;
    LoadResult result;
    TRY(state_load_from(r, d->test->folder, d->step, &result));
    return state_collect(r, &d->test->whole);
}

/* ---- a gate in the writer: it waits at a point until it is released ---- */

typedef struct {
    GraphTest *test;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    int seen[64], n; /* points of rank 0, in order */
} Gate;

static void at_point(void *context, SavePoint point, int rank, int64_t step)
{
    Gate *g = context;
    (void)step;
    pthread_mutex_lock(&g->lock);
    if (rank == 0 && g->n < 64) g->seen[g->n++] = (int)point;
    while (point == SAVE_FOLDER && !g->open) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static SaverState wait_while(const Saver *s, SaverState state)
{
    while (saver_poll(s) == state) usleep(200);
    return saver_poll(s);
}

static Err end_save(StateRank *r, Saver *s)
{
    SaverState got = wait_while(s, SAVER_WRITING);
    if (got != SAVER_WRITTEN) return err_fail(ERR_IO, "state %d: %s", (int)got, saver_error(s));
    TRY(world_agree(r->world, OK));
    if (r->world->rank == 0) {
        saver_commit(s);
        got = wait_while(s, SAVER_COMMITTING);
        if (got != SAVER_COMMITTED)
            return err_fail(ERR_IO, "state %d: %s", (int)got, saver_error(s));
    }
    TRY(world_agree(r->world, OK));
    return saver_end(s, false);
}

static Err change_after_begin(StateRank *r, void *work)
{
    Gate *g = work;
    Saver *saver;
    const SaverSettings set = {.rank = &r->rank,
                               .checkpoints = g->test->folder,
                               .ranks = r->world->ranks,
                               .keep = 2,
                               .memory = SAVE_MEMORY_SNAPSHOT,
                               .hook = {at_point, g}};
    StateScalars scalars = state_scalars(4);
    char config[32] = "seed: 1\n";
    scalars.config = config;
    state_fill(r, 3);
    TRY(state_collect(r, &g->test->whole));
    TRY(saver_open(&set, r->world->arena, &saver));
    Err err = saver_begin(saver, &scalars);
    if (err == OK && saver_poll(saver) != SAVER_WRITING) err = err_fail(ERR_CHECK, "not writing");
    state_fill(r, 77); /* the next step */
    memset(config, 'x', sizeof config - 1);
    err = world_agree(r->world, err);
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (err == OK) err = end_save(r, saver);
    if (err == OK && saver_written(saver) == 0) err = err_fail(ERR_CHECK, "nothing is written");
    saver_close(saver);
    return err;
}

static void later_changes_do_not_show(void **state)
{
    (void)state;
    static const int points[] = {SAVE_SNAPSHOT, SAVE_FOLDER, SAVE_HALF, SAVE_DATA, SAVE_SYNCED};
    GraphTest test;
    Gate gate = {.test = &test};
    Manifest manifest;
    char dir[128];
    graph_test_open(&test, &(StateSpec){.words = "dp=2 tp=3 zero=1"});
    pthread_mutex_init(&gate.lock, NULL);
    pthread_cond_init(&gate.changed, NULL);
    DO(state_world_run(&test.world, change_after_begin, &gate));
    DO(state_world_run(&test.world, compare_disk, &(OnDisk){&test, 4}));
    snprintf(dir, sizeof dir, "%s/step-%08d", test.folder, 4);
    DO(manifest_read(dir, &test.world.arena, &manifest));
    assert_string_equal(manifest.scalars.config, "seed: 1\n");
    assert_int_equal(manifest.scalars.cursor, 4 * STATE_SEQUENCES);
    assert_true(gate.n > 5);
    assert_memory_equal(gate.seen, points, sizeof points);
    pthread_cond_destroy(&gate.changed);
    pthread_mutex_destroy(&gate.lock);
    graph_test_close(&test);
}

/* ---- with and without a snapshot ---- */

static Err save_twice(StateRank *r, void *work)
{
    GraphTest *b = work;
    state_fill(r, 5);
    TRY(state_collect(r, &b->whole));
    TRY(state_save(r, b->folder, 7, true));
    return state_save(r, b->folder, 8, false);
}

static void without_a_snapshot(void **state)
{
    (void)state;
    static const char *const layouts[] = {"tp=3", "dp=2 zero=3", "pp=2"};
    for (int i = 0; i < 3; i++) {
        GraphTest test;
        graph_test_open(&test, &(StateSpec){.words = layouts[i]});
        DO(state_world_run(&test.world, save_twice, &test));
        DO(state_world_run(&test.world, compare_disk, &(OnDisk){&test, 7}));
        DO(state_world_run(&test.world, compare_disk, &(OnDisk){&test, 8}));
        graph_test_close(&test);
    }
}

/* The data is longer than the buffer that chunks are packed into. */
static void longer_than_the_buffer(void **state)
{
    (void)state;
    GraphTest test;
    graph_test_open(&test, &(StateSpec){.words = "tp=2", .vocab = 200003});
    DO(state_world_run(&test.world, save_twice, &test));
    DO(state_world_run(&test.world, compare_disk, &(OnDisk){&test, 7}));
    DO(state_world_run(&test.world, compare_disk, &(OnDisk){&test, 8}));
    graph_test_close(&test);
}

static void bytes_are_predicted(void **state)
{
    (void)state;
    GraphTest test;
    int64_t sum = 0, all = 0;
    graph_test_open(&test, &(StateSpec){.words = "dp=2 tp=3 zero=1", .dtype = BF16});
    for (int r = 0; r < test.world.ranks; r++) {
        int64_t bytes;
        DO(saver_bytes(&test.world.job[r].linked, r, SAVE_MEMORY_SNAPSHOT, &test.world.arena,
                       &bytes));
        sum += bytes;
    }
    for (int i = 0; i < test.whole.tensors.n; i++)
        all += 4 * shape_count(&test.whole.tensors.tensor[i].shape);
    assert_int_equal(sum, all);
    graph_test_close(&test);
}

/* The saver's memory is the predicted one plus its lists, for which LISTS is a bound. */
static Err open_and_measure(StateRank *r, void *work)
{
    enum { LISTS = 1 << 17 };
    GraphTest *b = work;
    Arena arena;
    TRY(arena_open(&arena, "saver", ARENA_PLENTY));
    for (SaveMemory memory = SAVE_MEMORY_BUFFER; memory <= SAVE_MEMORY_SNAPSHOT; memory++) {
        Saver *s;
        int64_t bytes;
        const SaverSettings set = {
            .rank = &r->rank, .checkpoints = b->folder, .ranks = 2, .keep = 2, .memory = memory};
        TRY(saver_bytes(r->rank.settings.program, r->rank.settings.program->rank, memory, &arena,
                        &bytes));
        const size_t before = arena_mark(&arena);
        TRY(saver_open(&set, &arena, &s));
        const int64_t took = (int64_t)(arena_mark(&arena) - before);
        saver_close(s);
        if (took < bytes || took > bytes + LISTS)
            return err_fail(ERR_CHECK, "save memory %d: %lld bytes, and %lld were predicted",
                            (int)memory, (long long)took, (long long)bytes);
    }
    arena_close(&arena);
    return OK;
}

static void memory_is_predicted(void **state)
{
    (void)state;
    GraphTest test;
    graph_test_open(&test, &(StateSpec){.words = "dp=2 zero=1"});
    DO(state_world_run(&test.world, open_and_measure, &test));
    graph_test_close(&test);
}

/* ---- full disk ---- */

static Err limit_files(rlim_t bytes)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_FSIZE, &l) != 0) return err_fail(ERR_IO, "no limit can be read");
    l.rlim_cur = bytes;
    return setrlimit(RLIMIT_FSIZE, &l) == 0 ? OK : err_fail(ERR_IO, "no limit can be set");
}

/* On one rank: a save, one that fails, one more. */
static Err fill_the_disk(StateRank *r, void *work)
{
    GraphTest *b = work;
    Saver *saver;
    const SaverSettings set = {.rank = &r->rank,
                               .checkpoints = b->folder,
                               .ranks = 1,
                               .keep = 2,
                               .memory = SAVE_MEMORY_SNAPSHOT};
    const StateScalars scalars[3] = {state_scalars(1), state_scalars(2), state_scalars(3)};
    SaverState got[3];
    char text[256] = "";
    struct rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    state_fill(r, 9);
    TRY(state_collect(r, &b->whole));
    TRY(saver_open(&set, r->world->arena, &saver));
    Err err = OK;
    for (int i = 0; i < 3 && err == OK; i++) {
        err = limit_files(i == 1 ? 20000 : before.rlim_cur);
        if (err == OK) err = saver_begin(saver, &scalars[i]);
        if (err != OK) break;
        got[i] = wait_while(saver, SAVER_WRITING);
        if (i == 1) snprintf(text, sizeof text, "%s", saver_error(saver));
        if (got[i] == SAVER_WRITTEN) saver_commit(saver), wait_while(saver, SAVER_COMMITTING);
        err = saver_end(saver, got[i] == SAVER_FAILED);
    }
    limit_files(before.rlim_cur);
    saver_close(saver);
    TRY(err);
    if (got[0] != SAVER_WRITTEN || got[1] != SAVER_FAILED || got[2] != SAVER_WRITTEN)
        return err_fail(ERR_CHECK, "states %d %d %d", (int)got[0], (int)got[1], (int)got[2]);
    if (!strstr(text, "rank-00000.safetensors") || !strstr(text, "too large"))
        return err_fail(ERR_CHECK, "the message is \"%s\"", text);
    return OK;
}

static void a_full_disk(void **state)
{
    (void)state;
    GraphTest test;
    Generation *g;
    int n;
    char path[128];
    graph_test_open(&test, &(StateSpec){.words = ""});
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    DO(state_world_run(&test.world, fill_the_disk, &test));
    signal(SIGXFSZ, before);
    DO(folder_list(test.folder, &test.world.arena, &g, &n));
    assert_int_equal(n, 2);
    assert_int_equal(g[0].step, 3);
    assert_int_equal(g[1].step, 1);
    snprintf(path, sizeof path, "%s/step-%08d.tmp", test.folder, 2);
    assert_int_not_equal(access(path, F_OK), 0);
    DO(state_world_run(&test.world, compare_disk, &(OnDisk){&test, 1}));
    DO(state_world_run(&test.world, compare_disk, &(OnDisk){&test, 3}));
    graph_test_close(&test);
}

/* Closed during a save: the writer ends, and no generation is added. */
static Err close_early(StateRank *r, void *work)
{
    GraphTest *b = work;
    Saver *saver;
    const SaverSettings set = {.rank = &r->rank,
                               .checkpoints = b->folder,
                               .ranks = 2,
                               .keep = 2,
                               .memory = SAVE_MEMORY_SNAPSHOT};
    const StateScalars scalars = state_scalars(6);
    state_fill(r, 9);
    TRY(saver_open(&set, r->world->arena, &saver));
    const Err err = saver_begin(saver, &scalars);
    saver_close(saver);
    return err;
}

static void closed_before_its_end(void **state)
{
    (void)state;
    GraphTest test;
    Generation *g;
    int n;
    graph_test_open(&test, &(StateSpec){.words = "dp=2"});
    DO(state_world_run(&test.world, close_early, &test));
    DO(folder_list(test.folder, &test.world.arena, &g, &n));
    assert_int_equal(n, 0);
    graph_test_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(later_changes_do_not_show), cmocka_unit_test(without_a_snapshot),
        cmocka_unit_test(longer_than_the_buffer),    cmocka_unit_test(bytes_are_predicted),
        cmocka_unit_test(memory_is_predicted),       cmocka_unit_test(a_full_disk),
        cmocka_unit_test(closed_before_its_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
