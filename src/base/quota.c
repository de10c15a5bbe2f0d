/* quota.c -- the cgroup quota of processor time.
 *
 *     version 2   cpu.max                  "200000 100000": 2 cores; "max 100000": no limit
 *     version 1   cpu.cfs_quota_us         200000; -1: no limit
 *                 cpu.cfs_period_us        100000
 *
 * The smallest limit of the process's groups counts. Missing files mean no limit. */
#include <stdlib.h>

#include "base/cgroup.h"
#include "base/cores.h"

static int lesser(int a, double quota, double period)
{
    if (quota <= 0 || period <= 0) return a;
    const double whole = (quota + period - 1) / period;
    const int n = whole > MAX_CORES ? MAX_CORES : (int)whole;
    return a == 0 || n < a ? n : a;
}

static void take_quota(void *context, const char *folder)
{
    int *least = context;
    char line[CGROUP_LINE_BYTES], *end;
    if (cgroup_line(folder, "cpu.max", line)) {
        const double quota = strtod(line, &end); /* 0 for "max" */
        if (end != line) *least = lesser(*least, quota, strtod(end, NULL));
        return;
    }
    if (!cgroup_line(folder, "cpu.cfs_quota_us", line)) return;
    const double quota = strtod(line, NULL);
    if (cgroup_line(folder, "cpu.cfs_period_us", line))
        *least = lesser(*least, quota, strtod(line, NULL));
}

int cores_quota(const char *of, const char *at)
{
    int least = 0;
    cgroup_visit(&(CgroupPlace){of, at}, "cpu", take_quota, &least);
    return least;
}
