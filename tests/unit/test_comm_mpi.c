/* test_comm_mpi.c -- detection of launchers, and messages when sheaf-mpi.so cannot be opened;
 * needs no MPI. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi.h"

static const char *names[4], *values[4];

static char *get(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (names[i] && strcmp(names[i], name) == 0) return (char *)(uintptr_t)values[i];
    return NULL;
}

static void set(int i, const char *name, const char *value)
{
    names[i] = name;
    values[i] = value;
}

static void launchers_are_detected(void **state)
{
    (void)state;
    MpiLaunch l = {.rank = -1};
    static const struct {
        const char *rank, *rank_is, *ranks, *ranks_is, *by;
    } row[] = {
        {"OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_SIZE", "5", "mpirun"},
        {"PMI_RANK", "2", "PMI_SIZE", "5", "mpirun"},
        {"SLURM_PROCID", "2", "SLURM_STEP_NUM_TASKS", "5", "srun"},
        {"SLURM_PROCID", "0", "SLURM_NTASKS", "5", NULL}, /* a batch script */
        {"PMI_RANK", "5", "PMI_SIZE", "5", NULL},
        {"PMI_RANK", "2x", "PMI_SIZE", "5", NULL},
        {"PMI_RANK", "", "PMI_SIZE", "5", NULL},
        {"PMI_RANK", "-1", "PMI_SIZE", "5", NULL},
        {"PMI_RANK", "2", "PMI_SIZE", "99999999999", NULL},
    };
    assert_false(mpi_launched(get, &l));
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        set(0, row[i].rank, row[i].rank_is);
        set(1, row[i].ranks, row[i].ranks_is);
        l = (MpiLaunch){.rank = -1};
        assert_int_equal(mpi_launched(get, &l), row[i].by != NULL);
        assert_int_equal(l.rank, row[i].by ? 2 : -1);
        if (!row[i].by) continue;
        assert_int_equal(l.ranks, 5);
        assert_string_equal(l.by, row[i].by);
    }
}

static void fails(const char *path, const char *words)
{
    CommWorld *w = NULL;
    assert_int_equal(mpi_start(path, NULL, &w), ERR_CONFIG);
    assert_null(w);
    if (!strstr(err_text(), words)) fail_msg("'%s' is not in '%s'", words, err_text());
}

static void missing_files_are_named(void **state)
{
    (void)state;
    char path[] = "/tmp/sheaf_open_XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0 && write(file, "no object", 9) == 9);
    close(file);
    assert_false(mpi_is_there("/nowhere/sheaf-mpi.so"));
    fails("/nowhere/sheaf-mpi.so", "/nowhere/sheaf-mpi.so is not there");
    fails("/nowhere/sheaf-mpi.so", "run.ranks=N");
    assert_false(mpi_is_there(NULL)); /* there is none next to this test */
    fails(NULL, "/tests/sheaf-mpi.so is not there");
    assert_true(mpi_is_there(path));
    fails(path, "does not open");
    fails("libm.so.6", "is not there"); /* a path, not a name to search for */
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_are_detected),
        cmocka_unit_test(missing_files_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
