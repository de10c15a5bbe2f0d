/* quota.c -- what cgroups let a process have of processors' time.
 *
 *     version 2    /proc/self/cgroup "0::/a/b"         AT/a/b/cpu.max  "200000 100000": two, or "max 100000"
 *     version 1                      "4:cpu,cpuacct:/a/b"   AT/cpu/a/b/cpu.cfs_quota_us  200000, or -1
 *                                                           AT/cpu/a/b/cpu.cfs_period_us 100000
 *
 * A group's limit holds for the groups within it, so all parents are asked, and the least counts. A
 * container often sees its own group as the root: what is not there says nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"

enum { LINE_BYTES = 4096, PATH_BYTES = 8192 };

/* The first words of a small file. */
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

/* The group at root/path, and those it is in. */
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

/* Whether a list of names with commas between them has `cpu`. */
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
        const bool second = path == names + 1; /* no names: version 2 */
        if (!second && !names_cpu(names + 1, path)) continue;
        snprintf(root, sizeof root, "%.2000s%s", at, second ? "" : "/cpu");
        least = group_quota(root, path + 1, least);
    }
    fclose(f);
    return least;
}
