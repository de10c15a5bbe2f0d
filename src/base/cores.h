/* cores.h -- the cores that this process may use, and on which of them each thread stays.
 *
 *     the machine       node 0: 0 1 2 3    node 1: 4 5 6 7        each core of one hardware thread or more
 *     the process               . 1 2 3            4 5 6 .        its affinity mask
 *     2 ranks of 3        rank 0: 1 2 3      rank 1: 4 5 6        in order of rank, none shared
 *
 * Two hardware threads of a core share its multipliers, so a core counts once, by the first of them
 * that the mask has. Cores are in the order of the machine: neighbours share caches and memory. A
 * cgroup may let fewer run at once than the mask has: its quota.
 *
 * The machine is seen through hwloc where the build has it. Else every hardware thread counts as a
 * core, and `known` says that this is a guess. */
#ifndef BASE_CORES_H
#define BASE_CORES_H

#include <stdbool.h>

enum { MAX_CORES = 1024 };

typedef struct {
    int n;      /* cores of the mask */
    int quota;  /* of them, how many may run at once; n where no cgroup says less */
    bool bound; /* the mask is less than the machine lets the process have: somebody chose it */
    bool known;
    int cpu[MAX_CORES]; /* their numbers, as the system counts hardware threads */
} Cores;

/* Local. Of the calling thread, before it is pinned: its mask is what is looked at. */
void cores_find(Cores *out);
/* Local. How many threads can run at once: at least 1. */
int cores_usable(void);
/* Local. Cores of the threads of rank `rank` of `ranks` that share them: each rank has as many, and
 * begins where its share of the cores does. False: there are too few, and cpu is as it was. */
bool cores_of_rank(const Cores *c, int ranks, int rank, int threads, int *cpu);

/* Local. How many processors' worth of time the quotas of a process allow, rounded up; 0: no limit.
 * `of`: /proc/self/cgroup; `at`: /sys/fs/cgroup. */
int cores_quota(const char *of, const char *at);

#endif
