/* memory_limits.c -- reads limits and use of memory.
 *
 *     version 2   memory.max               memory.current          memory.stat: active_file, ...
 *     version 1   memory.limit_in_bytes    memory.usage_in_bytes   memory.stat: total_active_file
 *
 * "max", and numbers above the machine's memory, mean no limit. */
#define _DEFAULT_SOURCE
#include "base/memory_limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_number(const char *folder, const char *file, int64_t *out)
{
    char line[CGROUP_LINE_BYTES], *end;
    if (!cgroup_line(folder, file, line)) return false;
    *out = strtoll(line, &end, 10);
    return end != line && *out >= 0;
}

/* Adds up the lines of a file that begin with one of two words; -1 if the file is not there. */
static int64_t sum_lines(const char *path, const char *first, const char *second, int64_t unit)
{
    char line[256], word[64];
    int64_t sum = 0, value;
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %" SCNd64, word, &value) == 2 &&
            (strcmp(word, first) == 0 || strcmp(word, second) == 0))
            sum += value * unit;
    fclose(f);
    return sum;
}

static int64_t cached_bytes(const char *folder, bool second)
{
    char path[CGROUP_LINE_BYTES];
    snprintf(path, sizeof path, "%.4000s/memory.stat", folder);
    const int64_t bytes = second ? sum_lines(path, "active_file", "inactive_file", 1)
                                 : sum_lines(path, "total_active_file", "total_inactive_file", 1);
    return bytes > 0 ? bytes : 0;
}

static void take_group(void *context, const char *folder)
{
    MemoryLimits *m = context;
    int64_t limit, used;
    const bool second = read_number(folder, "memory.max", &limit);
    if (!second && !read_number(folder, "memory.limit_in_bytes", &limit)) return;
    if (limit < m->limit.bytes) {
        m->limit.bytes = limit;
        snprintf(m->limit.text, sizeof m->limit.text, "of the memory that cgroup %.250s allows",
                 folder);
    }
    if (!read_number(folder, second ? "memory.current" : "memory.usage_in_bytes", &used)) return;
    used -= cached_bytes(folder, second);
    const int64_t left = used < 0 ? limit : used < limit ? limit - used : 0;
    if (left >= m->free.bytes) return;
    m->free.bytes = left;
    snprintf(m->free.text, sizeof m->free.text, "left in cgroup %.250s", folder);
}

void memory_limits_at(const MemoryPlace *place, MemoryLimits *out)
{
    const int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    const int64_t available = sum_lines(place->meminfo, "MemAvailable:", "MemAvailable:", 1024);
    *out = (MemoryLimits){{all, "of this machine's memory"}, {all, "free on this machine"}};
    if (available > 0) {
        out->free.bytes = available;
        snprintf(out->free.text, sizeof out->free.text, "free on this machine (MemAvailable)");
    }
    cgroup_visit(&place->groups, "memory", take_group, out);
    if (out->free.bytes > out->limit.bytes) out->free = out->limit;
}

void memory_limits(MemoryLimits *out)
{
    const MemoryPlace place = {{"/proc/self/cgroup", "/sys/fs/cgroup"}, "/proc/meminfo"};
    memory_limits_at(&place, out);
}
