/* cores.c -- the list of cores, from the affinity mask and hwloc. */
#define _GNU_SOURCE
#include "base/cores.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#ifdef SHEAF_HWLOC
#include <hwloc.h>
#endif

/* Counts every hardware thread of the mask as a core. */
static void find_plain(const cpu_set_t *may, Cores *c)
{
    c->n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && c->n < MAX_CORES; cpu++)
        if (CPU_ISSET((size_t)cpu, may)) c->cpu[c->n++] = cpu;
    c->bound = c->n < sysconf(_SC_NPROCESSORS_ONLN);
}

#ifdef SHEAF_HWLOC
/* Loads cores only, as the kernel reports them: without other objects and without probing each
 * core, this takes 2 ms instead of 30. */
static bool load(hwloc_topology_t *t)
{
    if (hwloc_topology_init(t) != 0) return false;
    (void)hwloc_topology_set_all_types_filter(*t, HWLOC_TYPE_FILTER_KEEP_NONE);
    (void)hwloc_topology_set_type_filter(*t, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
#if HWLOC_API_VERSION >= 0x20800
    (void)hwloc_topology_set_components(*t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    (void)hwloc_topology_set_flags(*t, HWLOC_TOPOLOGY_FLAG_NO_DISTANCES |
                                           HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |
                                           HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS);
#endif
    if (hwloc_topology_load(*t) == 0) return true;
    hwloc_topology_destroy(*t);
    return false;
}

/* The first hardware thread of the core in the mask; -1: none. */
static int first_of(hwloc_obj_t core, const cpu_set_t *may)
{
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0 && cpu < CPU_SETSIZE;
         cpu = hwloc_bitmap_next(core->cpuset, cpu))
        if (CPU_ISSET((size_t)cpu, may)) return cpu;
    return -1;
}

static int count_outside(hwloc_topology_t t, const cpu_set_t *may)
{
    const hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(t);
    int n = 0;
    for (int cpu = hwloc_bitmap_first(allowed); cpu >= 0 && cpu < CPU_SETSIZE;
         cpu = hwloc_bitmap_next(allowed, cpu))
        n += !CPU_ISSET((size_t)cpu, may);
    return n;
}

static void find_known(const cpu_set_t *may, Cores *c)
{
    hwloc_topology_t t;
    if (!load(&t)) return;
    hwloc_obj_t core = NULL;
    Cores found = {.known = true, .bound = count_outside(t, may) > 0};
    while (found.n < MAX_CORES &&
           (core = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_CORE, core)) != NULL) {
        const int cpu = first_of(core, may);
        if (cpu >= 0) found.cpu[found.n++] = cpu;
    }
    if (found.n > 0) *c = found; /* else the guess of find_plain stays */
    hwloc_topology_destroy(t);
}
#endif

void cores_find(Cores *out)
{
    cpu_set_t may;
    *out = (Cores){.n = 1, .quota = 1};
    if (sched_getaffinity(0, sizeof may, &may) != 0) return;
    find_plain(&may, out);
#ifdef SHEAF_HWLOC
    find_known(&may, out);
#endif
    const int quota = cores_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    out->quota = quota > 0 && quota < out->n ? quota : out->n;
}

int cores_usable(void)
{
    Cores c;
    cores_find(&c);
    return c.quota;
}

bool cores_of_rank(const Cores *c, int ranks, int rank, int threads, int *cpu)
{
    const int each = c->n / ranks;
    if (threads < 1 || threads > each) return false;
    memcpy(cpu, c->cpu + rank * each, sizeof *cpu * (size_t)threads);
    return true;
}
