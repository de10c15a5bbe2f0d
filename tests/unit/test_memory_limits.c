/* test_memory_limits.c -- limits of nested cgroups of both versions, and the free memory. */
#define _DEFAULT_SOURCE
#include "support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory_limits.h"

static char top[64];

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", top, name);
    for (char *slash = path + strlen(top) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int make_files(void **state)
{
    (void)state;
    snprintf(top, sizeof top, "/tmp/sheaf-memory-XXXXXX");
    assert_non_null(mkdtemp(top));
    put("meminfo", "MemTotal:       99999999 kB\nMemAvailable:      70000 kB\n");
    put("a/memory.max", "50000000\n"); /* a job; its step, inside it, has no limit */
    put("a/memory.current", "45000000\n");
    put("a/memory.stat", "anon 5000000\nactive_file 10000000\ninactive_file 30000000\n");
    put("a/step/memory.max", "max\n");
    put("a/step/task/memory.max", "60000000\n");
    put("full/memory.max", "90000000\n");
    put("full/memory.current", "80000000\n");
    put("full/memory.stat", "anon 80000000\n");
    put("memory/old/memory.limit_in_bytes", "40000000\n");
    put("memory/old/memory.usage_in_bytes", "30000000\n");
    put("memory/old/memory.stat", "total_active_file 1000000\ntotal_inactive_file 4000000\n");
    put("memory/free/memory.limit_in_bytes", "9223372036854771712\n");
    return 0;
}

static int remove_files(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", top);
    return system(command);
}

static MemoryLimits limits_in(const char *groups)
{
    char list[128], meminfo[128];
    MemoryLimits m;
    put("groups", groups);
    snprintf(list, sizeof list, "%s/groups", top);
    snprintf(meminfo, sizeof meminfo, "%s/meminfo", top);
    memory_limits_at(&(MemoryPlace){{list, top}, meminfo}, &m);
    return m;
}

static void the_least_limit_counts(void **state)
{
    (void)state;
    MemoryLimits m = limits_in("0::/a/step/task\n");
    assert_int_equal(m.limit.bytes, 50000000);
    assert_non_null(strstr(m.limit.text, "of the memory that cgroup /tmp/sheaf-memory-"));
    assert_string_equal(m.limit.text + strlen(m.limit.text) - 9, "/a allows");
    assert_int_equal(m.free.bytes, 45000000); /* 50 MB less 5 MB: files are cached, not used */
    assert_non_null(strstr(m.free.text, "left in cgroup"));
    m = limits_in("9:cpuset:/a\n4:hugetlb,memory:/old/inside\n0::/\n");
    assert_int_equal(m.limit.bytes, 40000000);
    assert_non_null(strstr(m.limit.text, "/memory/old allows"));
    assert_int_equal(m.free.bytes, 15000000);
}

static void no_limit_is_the_machine(void **state)
{
    (void)state;
    MemoryLimits here;
    memory_limits(&here);
    const char *const row[] = {"0::/not/there\n", "4:memory:/free\n", "4:cpuset:/old\n", ""};
    for (int i = 0; i < 4; i++) {
        const MemoryLimits m = limits_in(row[i]);
        assert_true(m.limit.bytes >= here.limit.bytes && here.free.bytes > 0);
        assert_string_equal(m.limit.text, "of this machine's memory");
        assert_int_equal(m.free.bytes, 70000 * 1024); /* MemAvailable is in KiB */
        assert_string_equal(m.free.text, "free on this machine (MemAvailable)");
    }
}

static void a_full_group_has_little_left(void **state)
{
    (void)state;
    const MemoryLimits m = limits_in("0::/full\n");
    assert_int_equal(m.limit.bytes, 90000000);
    assert_int_equal(m.free.bytes, 10000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_limit_counts),
        cmocka_unit_test(no_limit_is_the_machine),
        cmocka_unit_test(a_full_group_has_little_left),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
