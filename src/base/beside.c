/* beside.c -- where the running program lies. */
#define _DEFAULT_SOURCE
#include "base/beside.h"

#include <string.h>
#include <unistd.h>

const char *path_beside(const char *given, const char *name, char room[BESIDE_BYTES])
{
    if (given) return given;
    const size_t bytes = strlen(name) + 2; /* its slash, its end */
    const ssize_t length = readlink("/proc/self/exe", room, BESIDE_BYTES - bytes);
    char *slash = length > 0 ? (room[length] = '\0', strrchr(room, '/')) : NULL;
    if (!slash) return name;
    strcpy(slash + 1, name);
    return room;
}
