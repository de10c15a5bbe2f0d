/* quota.c -- the cgroup quota of processor time.
 *
 *     /proc/self/cgroup            file                                  content
 *     version 2   "0::/a/b"        AT/a/b/cpu.max                        "200000 100000": 2 cores;
 *                                                                        "max 100000": no limit
 *     version 1   "4:cpu,x:/a/b"   AT/cpu/a/b/cpu.cfs_quota_us           200000; -1: no limit
 *                                  AT/cpu/a/b/cpu.cfs_period_us          100000
 *
 * The limit of a group holds for the groups within it, so all parents are read, and the smallest
 * limit counts. A container often sees its own group as the root; missing files mean no limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"

enum { LINE_BYTES = 4096, PATH_BYTES = 8192 };

/* Reads the first line of a small file. */
static bool read_line(const char *path, char *line)
{
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const bool read = fgets(line, LINE_BYTES, f) != NULL;
    fclose(f);
    return read;
}

static int lesser(int a, double quota, double period)
{
    if (quota <= 0 || period <= 0) return a;
    const double whole = (quota + period - 1) / period;
    const int n = whole > MAX_CORES ? MAX_CORES : (int)whole;
    return a == 0 || n < a ? n : a;
}

static int folder_quota(const char *folder, int least)
{
    char path[PATH_BYTES + 32], line[LINE_BYTES], *end;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_line(path, line)) {
        const double quota = strtod(line, &end); /* 0 for "max" */
        return end == line ? least : lesser(least, quota, strtod(end, NULL));
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_line(path, line)) return least;
    const double quota = strtod(line, NULL);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_line(path, line) ? lesser(least, quota, strtod(line, NULL)) : least;
}

/* The smallest limit of the group at root/path and of all groups above it. */
static int group_quota(const char *root, const char *path, int least)
{
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s%s", root, path);
    for (;;) {
        least = folder_quota(folder, least);
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + strlen(root)) return least;
        *slash = '\0';
    }
}

/* True if a comma-separated list contains `cpu`. */
static bool names_cpu(const char *list, const char *end)
{
    for (const char *at = list; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        if (stop - at == 3 && memcmp(at, "cpu", 3) == 0) return true;
        at = stop + 1;
    }
    return false;
}

int cores_quota(const char *of, const char *at)
{
    char line[LINE_BYTES], root[LINE_BYTES];
    int least = 0;
    FILE *f = fopen(of, "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        const char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        const bool second = path == names + 1; /* no controller names: version 2 */
        if (!second && !names_cpu(names + 1, path)) continue;
        snprintf(root, sizeof root, "%.2000s%s", at, second ? "" : "/cpu");
        least = group_quota(root, path + 1, least);
    }
    fclose(f);
    return least;
}
