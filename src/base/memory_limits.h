/* memory_limits.h -- the memory that a process may have, and the memory that is free now.
 *
 *     limit   the least of the machine's memory and the limits of all its cgroups
 *     free    the least of the machine's MemAvailable and what each cgroup has left: its limit
 *             minus its use, where cached files do not count as used
 *
 * The texts say which of these counts: "of this machine's memory", "of the memory that cgroup
 * /sys/fs/cgroup/a/b allows". */
#ifndef BASE_MEMORY_LIMITS_H
#define BASE_MEMORY_LIMITS_H

#include <stdint.h>
#include "base/cgroup.h"

enum { MEMORY_TEXT_BYTES = 320 };

typedef struct {
    int64_t bytes;
    char text[MEMORY_TEXT_BYTES];
} MemoryAmount;

typedef struct {
    MemoryAmount limit, free;
} MemoryLimits;

typedef struct {
    CgroupPlace groups;
    const char *meminfo; /* /proc/meminfo */
} MemoryPlace;

/* Local. Of this process. */
void memory_limits(MemoryLimits *out);
/* Local. The same from files at other places; for tests. */
void memory_limits_at(const MemoryPlace *place, MemoryLimits *out);

#endif
