/* The folder of checkpoints: committed step by step, killed at every step, and on a full disk; all
 * listed checkpoints are always complete. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/state_test.h"
#include "state/disk.h"
#include "state/folder.h"

static char root[64];

static int make_root(void **state)
{
    strcpy(root, "/tmp/sheaf_folder_XXXXXX");
    return !mkdtemp(root) || setup(state);
}

static int remove_root(void **state)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command) != 0 || teardown(state);
}

static const char *in_root(const char *format, long long step)
{
    static char path[4][128];
    static int next;
    char *out = path[next++ % 4];
    int n = snprintf(out, sizeof *path, "%s/", root);
    snprintf(out + n, sizeof *path - (size_t)n, format, step);
    return out;
}

static bool there(const char *path)
{
    struct stat s;
    return lstat(path, &s) == 0;
}

static const StateTensors *tensors(void)
{
    static StateTensors t;
    t = example_tensors();
    return &t;
}

/* Writes the files of both ranks. */
static void write_ranks(int64_t step)
{
    char folder[DISK_PATH_BYTES], path[DISK_PATH_BYTES], name[RANK_FILE_NAME_BYTES];
    for (int rank = 0; rank < EXAMPLE_RANKS; rank++) {
        RankFile f = example_rank(tensors(), rank);
        f.step = step;
        DO(folder_begin(root, step, folder, sizeof folder));
        rank_file_name(rank, name);
        DO(disk_path(folder, name, path));
        DO(rank_file_layout(tensors(), &f, &arena));
        example_write(tensors(), &f, path);
    }
}

static const char *const lines[] = {"metrics", "absent", "samples", NULL};

static Err commit_with(int64_t step, const SaveHook *hook)
{
    StateScalars s = example_scalars;
    s.step = step;
    /* three ranks, the last of which owns nothing */
    const CommitSettings c = {.checkpoints = root,
                              .ranks = EXAMPLE_RANKS + 1,
                              .keep = 3,
                              .tensors = tensors(),
                              .scalars = &s,
                              .hook = hook,
                              .run_dir = root,
                              .run_logs = lines};
    return folder_commit(&c, &arena);
}

static void save(int64_t step)
{
    write_ranks(step);
    DO(commit_with(step, NULL));
}

/* Returns the listed steps as text, newest first; all must be complete. */
static const char *steps_there(void)
{
    static char out[256];
    Generation *g;
    int n;
    size_t at = 0;
    DO(folder_list(root, &arena, &g, &n));
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        Manifest m;
        DO(manifest_read(in_root("step-%08lld", g[i].step), &arena, &m));
        DO(manifest_check_files(&m, &arena));
        assert_int_equal(m.scalars.step, g[i].step);
        at += (size_t)snprintf(out + at, sizeof out - at, "%lld ", (long long)g[i].step);
    }
    return out;
}

static void latest_is(int64_t step)
{
    Generation g;
    Manifest m;
    uint64_t hash;
    bool found;
    DO(folder_latest(root, &g, &hash, &found));
    assert_true(found);
    assert_int_equal(g.step, step);
    DO(manifest_read(in_root("step-%08lld", step), &arena, &m));
    assert_int_equal(m.hash, hash);
}

static void generations(void **state)
{
    Generation *g, last;
    uint64_t hash;
    bool found;
    int n;
    (void)state;
    DO(folder_list(in_root("none", 0), &arena, &g, &n));
    assert_int_equal(n, 0);
    DO(folder_latest(root, &last, &hash, &found));
    assert_false(found);
    for (int64_t step = 10; step <= 50; step += 10) {
        save(step);
        latest_is(step);
    }
    assert_string_equal(steps_there(), "50 40 30 ");
    save(100000000); /* nine digits */
    assert_string_equal(steps_there(), "100000000 50 40 ");
    assert_false(there(in_root("step-00000030.tmp", 0)));
    /* other names are not listed, and stay */
    assert_int_equal(mkdir(in_root("step-7", 0), 0777), 0);
    assert_int_equal(mkdir(in_root("step-000000051", 0), 0777), 0);
    assert_int_equal(mkdir(in_root("other.tmp", 0), 0777), 0);
    close(open(in_root("step-00000060", 0), O_CREAT | O_WRONLY, 0666)); /* not a folder */
    DO(folder_tidy(root));
    assert_string_equal(steps_there(), "100000000 50 40 ");
    assert_true(there(in_root("other.tmp", 0)) && there(in_root("step-7", 0)));
}

/* Refuses to overwrite a checkpoint, and to commit a missing file or one of another step. */
static void refused(void **state)
{
    (void)state;
    save(10);
    write_ranks(10);
    expect_error("again", commit_with(10, NULL), ERR_IO, "already exists");
    DO(folder_abandon(root, 10));
    assert_false(there(in_root("step-00000010.tmp", 0)));
    write_ranks(20);
    assert_int_equal(unlink(in_root("step-00000020.tmp/rank-00001.safetensors", 0)), 0);
    expect_error("missing", commit_with(20, NULL), ERR_CHECK, "in no part");
    assert_false(there(in_root("step-00000020.tmp/manifest.json", 0)));
    write_ranks(30);
    assert_int_equal(rename(in_root("step-00000030.tmp/rank-00001.safetensors", 0),
                            in_root("step-00000020.tmp/rank-00001.safetensors", 0)),
                     0);
    expect_error("of another step", commit_with(20, NULL), ERR_CHECK, "contains step 30, rank 1");
    assert_string_equal(steps_there(), "10 ");
    latest_is(10);
}

static void quarantined(void **state)
{
    char name[64];
    (void)state;
    for (int i = 1; i <= 3; i++) {
        const Generation g = generation_of(10);
        save(10);
        DO(folder_quarantine(root, &g, name));
        assert_string_equal(name, i == 1   ? "step-00000010.damaged"
                                  : i == 2 ? "step-00000010.damaged-2"
                                           : "step-00000010.damaged-3");
        assert_true(there(in_root(name, 0)));
        assert_string_equal(steps_there(), "");
    }
}

/* ---- every bit of latest, and every bit of a rank's header ---- */

static void flip(const char *path, int64_t bit)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, (long)(bit / 8), SEEK_SET);
    const int c = fgetc(f);
    fseek(f, (long)(bit / 8), SEEK_SET);
    fputc(c ^ 1 << bit % 8, f);
    fclose(f);
}

/* Sets the limit of open files and returns the old one. */
static rlim_t limit_files(rlim_t n)
{
    struct rlimit l;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &l), 0);
    const rlim_t was = l.rlim_cur;
    l.rlim_cur = n;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &l), 0);
    return was;
}

static void flipped(void **state)
{
    Generation g;
    Manifest m;
    uint64_t hash;
    bool found;
    struct stat s;
    (void)state;
    save(20);
    const char *latest = in_root("latest", 0);
    assert_int_equal(stat(latest, &s), 0);
    assert_int_equal(s.st_size, 48);
    for (int64_t i = 0; i < 8 * 48; i++) {
        flip(latest, i);
        expect_error("latest", folder_latest(root, &g, &hash, &found), ERR_CHECK, "damaged");
        assert_false(found);
        flip(latest, i);
    }
    latest_is(20);
    for (int64_t n = 47; n >= 0; n--) {
        assert_int_equal(truncate(latest, n), 0);
        expect_error("cut", folder_latest(root, &g, &hash, &found), ERR_CHECK, "damaged");
    }
    const char *rank = in_root("step-00000020/rank-00001.safetensors", 0);
    DO(manifest_read(in_root("step-00000020", 0), &arena, &m));
    for (int64_t i = 0; i < 8 * example_rank(tensors(), 1).data_at; i += 5) {
        flip(rank, i);
        expect_error("header", manifest_check_files(&m, &arena), ERR_CHECK,
                     "rank-00001.safetensors: damaged");
        flip(rank, i);
    }
    assert_int_equal(truncate(rank, 900), 0);
    expect_error("cut", manifest_check_files(&m, &arena), ERR_CHECK, "900 bytes, the manifest has");
    assert_int_equal(unlink(rank), 0);
    expect_error("gone", manifest_check_files(&m, &arena), ERR_CHECK, "does not exist");
}

/* A file that cannot be opened is not damaged; a file under another step's name is. */
static void not_what_it_should_be(void **state)
{
    Manifest m;
    Generation g;
    uint64_t hash;
    bool found;
    (void)state;
    save(20);
    char step[96], manifest[128];
    snprintf(step, sizeof step, "%s/step-00000020", root);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", step);
    DO(manifest_read(step, &arena, &m));
    const rlim_t was = limit_files(3);
    expect_error("too many", manifest_read(step, &arena, &m), ERR_IO, "Too many open files");
    expect_error("too many", manifest_check_files(&m, &arena), ERR_IO, "Too many open files");
    limit_files(was);
    assert_int_equal(rename(step, in_root("step-00000030", 0)), 0);
    expect_error("name", manifest_read(in_root("step-00000030", 0), &arena, &m), ERR_CHECK,
                 "is for step 20, not for step-00000030");
    assert_int_equal(rename(in_root("step-00000030", 0), in_root("best", 0)), 0);
    DO(manifest_read(in_root("best", 0), &arena, &m));
    assert_int_equal(rename(in_root("best", 0), step), 0);
    assert_int_equal(unlink(manifest), 0);
    expect_error("gone", manifest_read(step, &arena, &m), ERR_CHECK, "does not exist");
    assert_int_equal(mkfifo(manifest, 0600), 0); /* opening it would wait for a writer */
    expect_error("pipe", manifest_read(step, &arena, &m), ERR_CHECK, "not a plain file");
    assert_int_equal(unlink(in_root("latest", 0)), 0);
    assert_int_equal(mkdir(in_root("latest", 0), 0700), 0);
    expect_error("folder", folder_latest(root, &g, &hash, &found), ERR_CHECK, "not a plain file");
}

/* ---- the order of writes to disk ---- */

static char order[2048]; /* of all syncs and renames */

static void note(const char *what, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t n = strlen(order);
    snprintf(order + n, sizeof order - n, "%s %s\n", what, slash ? slash + 1 : path);
}

/* Replaces the library's function: the same, and recorded. */
int fsync(int fd)
{
    char link[64], path[256] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0) note("sync", path);
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    note("name", to);
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static void synced(void **state)
{
    char wanted[512];
    (void)state;
    fclose(fopen(in_root("metrics", 0), "w"));
    fclose(fopen(in_root("samples", 0), "w"));
    write_ranks(20);
    order[0] = '\0';
    DO(commit_with(20, NULL));
    snprintf(wanted, sizeof wanted,
             "sync metrics\nsync samples\nsync %s\n"
             "sync manifest.json\nsync step-00000020.tmp\nname step-00000020\nsync %s\n"
             "sync latest.tmp\nname latest\nsync %s\n",
             strrchr(root, '/') + 1, strrchr(root, '/') + 1, strrchr(root, '/') + 1);
    assert_string_equal(order, wanted);
}

/* ---- killed ---- */

static void die(void *context, SavePoint point, int rank, int64_t step)
{
    (void)rank, (void)step;
    if (point == *(SavePoint *)context) kill(getpid(), SIGKILL);
}

/* A child saves and is killed at the point; true if it was killed. */
static bool killed_at(SavePoint point, int64_t step)
{
    const pid_t pid = fork();
    int status;
    if (pid == 0) {
        const SaveHook hook = {die, &point};
        write_ranks(step);
        _exit(commit_with(step, &hook) == OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status);
}

static void killed(void **state)
{
    (void)state;
    for (int point = SAVE_MANIFEST_HALF; point < N_SAVE_POINTS; point++) {
        const bool committed = point >= SAVE_RENAMED, named = point >= SAVE_LATEST,
                   removed = point >= SAVE_REMOVING;
        save(10), save(20), save(30);
        assert_true(killed_at((SavePoint)point, 40));
        assert_string_equal(steps_there(), removed     ? "40 30 20 "
                                           : committed ? "40 30 20 10 "
                                                       : "30 20 10 ");
        latest_is(named ? 40 : 30);
        assert_int_equal(there(in_root("step-00000010.tmp", 0)), point == SAVE_REMOVING);
        DO(folder_tidy(root));
        assert_false(there(in_root("step-00000040.tmp", 0)) || there(in_root("latest.tmp", 0)) ||
                     there(in_root("step-00000010.tmp", 0)));
        save(50); /* the next save is not affected */
        assert_string_equal(steps_there(), committed ? "50 40 30 " : "50 30 20 ");
        latest_is(50);
        remove_root(NULL);
        make_root(NULL);
    }
}

/* ---- full disk ---- */

/* /dev/full in place of the file: the write fails as on a full disk. */
static void full(void **state)
{
    (void)state;
    save(10);
    write_ranks(20);
    assert_int_equal(symlink("/dev/full", in_root("step-00000020.tmp/manifest.json", 0)), 0);
    expect_error("manifest", commit_with(20, NULL), ERR_IO,
                 "step-00000020.tmp/manifest.json: cannot write: No space left on device");
    assert_string_equal(steps_there(), "10 ");
    latest_is(10);
    DO(folder_abandon(root, 20));
    write_ranks(20);
    assert_int_equal(symlink("/dev/full", in_root("latest.tmp", 0)), 0);
    expect_error("latest", commit_with(20, NULL), ERR_IO,
                 "latest.tmp: cannot write: No space left on device");
    assert_string_equal(steps_there(), "20 10 ");
    latest_is(10);
}

/* A limit on the file's length: the write fails in its middle. */
static void short_write(void **state)
{
    struct rlimit was, limit;
    (void)state;
    save(10);
    write_ranks(20);
    getrlimit(RLIMIT_FSIZE, &was);
    limit = was;
    limit.rlim_cur = 700;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    const Err err = commit_with(20, NULL);
    setrlimit(RLIMIT_FSIZE, &was);
    expect_error("too long", err, ERR_IO, "manifest.json: cannot write: File too large");
    assert_string_equal(steps_there(), "10 ");
    DO(folder_abandon(root, 20));
    save(20);
    assert_string_equal(steps_there(), "20 10 ");
}

static void names(void **state)
{
    (void)state;
    for (int i = 0; i < N_SAVE_POINTS; i++)
        assert_int_equal(save_point_of(save_point_name((SavePoint)i)), i);
    assert_int_equal(save_point_of("manifest_half"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(generations, make_root, remove_root),
        cmocka_unit_test_setup_teardown(refused, make_root, remove_root),
        cmocka_unit_test_setup_teardown(quarantined, make_root, remove_root),
        cmocka_unit_test_setup_teardown(flipped, make_root, remove_root),
        cmocka_unit_test_setup_teardown(not_what_it_should_be, make_root, remove_root),
        cmocka_unit_test_setup_teardown(synced, make_root, remove_root),
        cmocka_unit_test_setup_teardown(killed, make_root, remove_root),
        cmocka_unit_test_setup_teardown(full, make_root, remove_root),
        cmocka_unit_test_setup_teardown(short_write, make_root, remove_root),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
