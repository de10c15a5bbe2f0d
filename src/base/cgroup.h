/* cgroup.h -- the control groups of a process: its own and all that contain it.
 *
 *     /proc/self/cgroup            folders, from the group up to the root
 *     version 2   "0::/a/b"        AT/a/b       AT/a       AT
 *     version 1   "4:cpu,x:/a/b"   AT/cpu/a/b   AT/cpu/a   AT/cpu
 *
 * The limit of a group holds for the groups within it. A container often sees its own group as the
 * root, and a path that is not there. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdbool.h>

typedef struct {
    const char *list; /* /proc/self/cgroup */
    const char *at;   /* /sys/fs/cgroup */
} CgroupPlace;

typedef void CgroupVisit(void *context, const char *folder);

/* Local. Visits the folder of each group that has the controller. Folders need not exist. */
void cgroup_visit(const CgroupPlace *place, const char *controller, CgroupVisit *visit,
                  void *context);

enum { CGROUP_LINE_BYTES = 4096 };
/* Local. Reads the first line of a file of a group; false if there is none. */
bool cgroup_line(const char *folder, const char *file, char line[CGROUP_LINE_BYTES]);

#endif
