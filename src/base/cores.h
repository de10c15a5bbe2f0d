/* cores.h -- the cores that this process may use, and the core that each thread is pinned to.
 *
 *     the machine      node 0: 0 1 2 3    node 1: 4 5 6 7      each with 1 hardware thread or more
 *     the process              . 1 2 3            4 5 6 .      its affinity mask
 *     2 ranks of 3       rank 0: 1 2 3      rank 1: 4 5 6      in order of rank, none shared
 *
 * Hardware threads of a core share its FMA units, so a core counts once, by its first hardware
 * thread in the mask. Cores are in the order of the machine: neighbours share caches and memory. A
 * cgroup quota may allow fewer cores at once than the mask.
 *
 * hwloc describes the machine, if the build has it. Else every hardware thread counts as a core,
 * and `known` is false. */
#ifndef BASE_CORES_H
#define BASE_CORES_H

#include <stdbool.h>

enum { MAX_CORES = 1024 };

typedef struct {
    int n;              /* cores of the mask */
    int quota;          /* number of cores that may run at once; n without a cgroup quota */
    bool bound;         /* the mask is smaller than the allowed cores: a launcher set it */
    bool known;         /* from hwloc, not a guess */
    int cpu[MAX_CORES]; /* the system's numbers of the hardware threads */
} Cores;

/* Local. Reads the affinity mask of the calling thread, so call it before that thread is pinned. */
void cores_find(Cores *out);
/* Local. The number of threads that can run at once, at least 1. */
int cores_usable(void);
/* Local. The cores of the threads of one of `ranks` ranks that share the cores equally, in `cpu`
 * [threads]. False if there are too few; then `cpu` is unchanged. */
bool cores_of_rank(const Cores *c, int ranks, int rank, int threads, int *cpu);

/* Local. Number of processors that the cgroup quotas of a process allow, rounded up; 0: no limit.
 * `of`: /proc/self/cgroup; `at`: /sys/fs/cgroup. */
int cores_quota(const char *of, const char *at);

#endif
