/* test_cores.c -- cores of a process, cores of its threads, and quotas of cgroups. */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cores.h"

/* On any machine the cores are distinct, within the affinity mask, and counted. */
static void cores_are_within_the_mask(void **state)
{
    cpu_set_t may, all;
    Cores c;
    (void)state;
    sched_getaffinity(0, sizeof all, &all);
    cores_find(&c);
    assert_in_range(c.n, 1, CPU_COUNT(&all));
    assert_in_range(c.quota, 1, c.n);
    assert_int_equal(cores_usable(), c.quota);
    may = all;
    for (int i = 0; i < c.n; i++) {
        assert_true(CPU_ISSET((size_t)c.cpu[i], &may));
        CPU_CLR((size_t)c.cpu[i], &may);
    }
    const int last = c.cpu[c.n - 1];
    if (c.n == 1) skip(); /* a mask cannot be narrower */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)last, &one);
    sched_setaffinity(0, sizeof one, &one);
    cores_find(&c);
    sched_setaffinity(0, sizeof all, &all);
    assert_int_equal(c.n, 1);
    assert_int_equal(c.cpu[0], last);
    assert_true(c.bound);
}

static Cores ten(void)
{
    Cores c = {.n = 10, .quota = 10};
    for (int i = 0; i < 10; i++) c.cpu[i] = 2 * i + 1; /* every other hardware thread */
    return c;
}

static void ranks_share_no_core(void **state)
{
    static const struct {
        int ranks, threads, first[3];
    } rows[] = {
        {1, 10, {1}}, {2, 5, {1, 11}}, {2, 3, {1, 11}}, {3, 3, {1, 7, 13}}, {3, 1, {1, 7, 13}}};
    const Cores c = ten();
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        bool taken[32] = {false};
        for (int rank = 0; rank < rows[r].ranks; rank++) {
            int cpu[10];
            assert_true(cores_of_rank(&c, rows[r].ranks, rank, rows[r].threads, cpu));
            assert_int_equal(cpu[0], rows[r].first[rank]);
            for (int i = 0; i < rows[r].threads; i++) {
                assert_false(taken[cpu[i]]);
                taken[cpu[i]] = true;
                assert_int_equal(cpu[i], cpu[0] + 2 * i);
            }
        }
    }
}

static void too_few_cores_are_reported(void **state)
{
    const Cores c = ten();
    int cpu[16] = {-7};
    (void)state;
    assert_false(cores_of_rank(&c, 1, 0, 11, cpu));
    assert_false(cores_of_rank(&c, 3, 0, 4, cpu));
    assert_false(cores_of_rank(&c, 11, 10, 1, cpu));
    assert_int_equal(cpu[0], -7);
}

typedef struct {
    char at[64];
} Folder;

static void put(const Folder *f, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", f->at, name);
    for (char *slash = path + strlen(f->at) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int quota_of(const Folder *f, const char *groups)
{
    char of[256];
    put(f, "cgroup", groups);
    snprintf(of, sizeof of, "%s/cgroup", f->at);
    return cores_quota(of, f->at);
}

static void quotas_of_nested_cgroups(void **state)
{
    Folder f = {"/tmp/sheaf-cores-XXXXXX"};
    char command[128];
    (void)state;
    assert_non_null(mkdtemp(f.at));
    put(&f, "a/b/cpu.max", "250000 100000\n");
    put(&f, "a/cpu.max", "max 100000\n");
    put(&f, "tight/b/cpu.max", "800000 100000\n");
    put(&f, "tight/cpu.max", "300000 100000\n");
    put(&f, "none/cpu.max", "max 100000\n");
    put(&f, "cpu/old/cpu.cfs_quota_us", "150000\n");
    put(&f, "cpu/old/cpu.cfs_period_us", "50000\n");
    put(&f, "cpu/free/cpu.cfs_quota_us", "-1\n");
    put(&f, "cpu/free/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota_of(&f, "0::/a/b\n"), 3); /* two and a half, rounded up */
    assert_int_equal(quota_of(&f, "0::/tight/b\n"), 3);
    assert_int_equal(quota_of(&f, "0::/none\n"), 0);
    assert_int_equal(quota_of(&f, "0::/not/there\n"), 0);
    assert_int_equal(quota_of(&f, "4:cpuset,memory:/old\n3:cpuacct,cpu:/old\n0::/\n"), 3);
    assert_int_equal(quota_of(&f, "4:cpuset:/old\n"), 0);
    assert_int_equal(quota_of(&f, "1:cpu:/free\n"), 0);
    assert_int_equal(quota_of(&f, "nothing of the kind\n:\n"), 0);
    assert_int_equal(cores_quota("/nowhere/at/all", f.at), 0);
    put(&f, "cpu.max", "100000 100000\n"); /* of the root: a container's own quota */
    assert_int_equal(quota_of(&f, "0::/not/there\n"), 1);
    snprintf(command, sizeof command, "rm -r %s", f.at);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_within_the_mask),
        cmocka_unit_test(ranks_share_no_core),
        cmocka_unit_test(too_few_cores_are_reported),
        cmocka_unit_test(quotas_of_nested_cgroups),
    };
    return cmocka_run_group_tests_name("cores", tests, NULL, NULL);
}
