/* cgroup.c -- walks from the groups of a process up to their roots. */
#include "base/cgroup.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 8192 };

bool cgroup_line(const char *folder, const char *file, char line[CGROUP_LINE_BYTES])
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%.8000s/%.48s", folder, file);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const bool read = fgets(line, CGROUP_LINE_BYTES, f) != NULL;
    fclose(f);
    return read;
}

static void visit_parents(const char *root, const char *path, CgroupVisit *visit, void *context)
{
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s%s", root, strcmp(path, "/") == 0 ? "" : path);
    for (;;) {
        visit(context, folder);
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + strlen(root)) return;
        *slash = '\0';
    }
}

/* True if a comma-separated list contains the name. */
static bool list_has(const char *list, const char *end, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        if ((size_t)(stop - at) == length && memcmp(at, name, length) == 0) return true;
        at = stop + 1;
    }
    return false;
}

void cgroup_visit(const CgroupPlace *place, const char *controller, CgroupVisit *visit,
                  void *context)
{
    char line[CGROUP_LINE_BYTES], root[CGROUP_LINE_BYTES];
    FILE *f = fopen(place->list, "r");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        const char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        const bool second = path == names + 1; /* no controller names: version 2 */
        if (!second && !list_has(names + 1, path, controller)) continue;
        snprintf(root, sizeof root, "%.2000s%s%.64s", place->at, second ? "" : "/",
                 second ? "" : controller);
        visit_parents(root, path + 1, visit, context);
    }
    fclose(f);
}
