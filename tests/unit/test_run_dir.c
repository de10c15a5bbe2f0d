/* test_run_dir.c -- the lock of a run folder, also when a fresh start renames the folder while
 * others wait. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/expect.h"
#include "train/run_dir.h"

static char root[64], dir[96];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/sheaf_rundir_XXXXXX");
    if (!mkdtemp(root)) return 1;
    snprintf(dir, sizeof dir, "%s/above/run", root);
    return 0;
}

static int remove_root(void **state)
{
    char command[96];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command) != 0;
}

static void write_metrics(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "w");
    fputs("{\"step\": 1}\n", f);
    fclose(f);
}

static void lock_is_held(void **state)
{
    RunDir d, other;
    char message[64];
    (void)state;
    DO(run_dir_open(&d, dir, false));
    snprintf(message, sizeof message, "process %ld trains there", (long)getpid());
    expect_error("held", run_dir_open(&other, dir, false), ERR_CONFIG, message);
    run_dir_close(&d);
    write_metrics();
    DO(run_dir_open(&other, dir, true));
    assert_string_equal(strrchr(other.old, '/'), "/run.1");
    run_dir_close(&other);
}

static void files_are_named(void **state)
{
    RunDir d;
    char file[128], below[160], message[192];
    (void)state;
    snprintf(file, sizeof file, "%s/text.txt", root);
    fclose(fopen(file, "w"));
    snprintf(message, sizeof message, "%s is a file; choose another folder", file);
    expect_error("a file", run_dir_open(&d, file, false), ERR_CONFIG, message);
    snprintf(below, sizeof below, "%s/run", file);
    expect_error("below a file", run_dir_open(&d, below, false), ERR_CONFIG, message);
}

/* A fresh start of a linked folder renames the target, and the link leads to the new folder. */
static void fresh_through_a_link(void **state)
{
    RunDir d;
    char disk[96], path[128];
    struct stat st;
    (void)state;
    snprintf(disk, sizeof disk, "%s/disk", root);
    snprintf(path, sizeof path, "%s/above", root);
    assert_int_equal(mkdir(disk, 0777), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(symlink("../disk", dir), 0);
    DO(run_dir_open(&d, dir, false));
    run_dir_close(&d);
    write_metrics();
    DO(run_dir_open(&d, dir, true));
    assert_string_equal(d.path, dir);
    assert_string_equal(strrchr(d.old, '/'), "/disk.1");
    assert_int_equal(lstat(dir, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    snprintf(path, sizeof path, "%s.1/metrics.jsonl", disk);
    assert_int_equal(stat(path, &st), 0);
    snprintf(path, sizeof path, "%s/lock", disk);
    assert_int_equal(stat(path, &st), 0);
    run_dir_close(&d);
}

/* A config.yaml in a folder without a run is the user's. */
static void config_of_the_user(void **state)
{
    RunDir d;
    char path[256];
    struct stat st;
    (void)state;
    snprintf(path, sizeof path, "mkdir -p %s && echo x > %s/config.yaml", dir, dir);
    assert_int_equal(system(path), 0);
    expect_error("config", run_dir_open(&d, dir, false), ERR_CONFIG, "config.yaml: exists already");
    expect_error("fresh", run_dir_open(&d, dir, true), ERR_CONFIG, "choose another run.dir");
    snprintf(path, sizeof path, "%s/lock", dir);
    assert_int_not_equal(stat(path, &st), 0);
    write_metrics(); /* a run */
    DO(run_dir_open(&d, dir, false));
    run_dir_close(&d);
}

/* Another process: waits for the lock, then holds it for a while. Status 0: it held the right
 * lock. */
static pid_t start_waiting(void)
{
    const pid_t pid = fork();
    if (pid) return pid;
    RunDir d;
    char path[128], pid_text[32] = "";
    if (run_dir_open(&d, dir, false) != OK) _exit(2);
    snprintf(path, sizeof path, "%s/lock", dir);
    FILE *f = fopen(path, "r"); /* the lock file in the folder must be the one that it holds */
    const bool mine = f && fgets(pid_text, sizeof pid_text, f) && atol(pid_text) == (long)getpid();
    _exit(mine ? 0 : 1);
}

static void renamed_meanwhile(void **state)
{
    RunDir d;
    char old[128];
    int status;
    (void)state;
    DO(run_dir_open(&d, dir, false));
    write_metrics();
    const pid_t pid = start_waiting();
    usleep(300000); /* it has opened the lock file and waits */
    snprintf(old, sizeof old, "%s.1", dir);
    assert_int_equal(rename(dir, old), 0); /* as a fresh start does while it holds the lock */
    run_dir_close(&d);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lock_is_held, make_root, remove_root),
        cmocka_unit_test_setup_teardown(files_are_named, make_root, remove_root),
        cmocka_unit_test_setup_teardown(fresh_through_a_link, make_root, remove_root),
        cmocka_unit_test_setup_teardown(config_of_the_user, make_root, remove_root),
        cmocka_unit_test_setup_teardown(renamed_meanwhile, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
