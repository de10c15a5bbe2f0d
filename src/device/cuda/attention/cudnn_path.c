/* cudnn_path.c -- searches the Python packages for cuDNN and compares their versions. */
#include "device/cuda/attention/cudnn_path.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024 };

static int version_of(int major, int minor, int patch)
{
    return 10000 * major + 100 * minor + patch;
}

int cudnn_path_version(const char *file)
{
    int major, minor, patch;
    const char *end = strstr(file, ".so.");
    if (!end || sscanf(end, ".so.%d.%d.%d", &major, &minor, &patch) != 3) return 0;
    return version_of(major, minor, patch);
}

/* The version in the name of the package's folder, such as
 * nvidia_cudnn_cu13-9.19.0.56.dist-info. */
static int packaged_version(const char *packages)
{
    char pattern[PATH_BYTES + 64];
    glob_t found;
    int best = 0;
    snprintf(pattern, sizeof pattern, "%s/nvidia_cudnn_cu*-*.dist-info", packages);
    if (glob(pattern, 0, NULL, &found) != 0) return 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        int cuda, major, minor, patch;
        const char *name = strstr(found.gl_pathv[i], "/nvidia_cudnn_cu");
        if (sscanf(name, "/nvidia_cudnn_cu%d-%d.%d.%d", &cuda, &major, &minor, &patch) != 4)
            continue;
        if (version_of(major, minor, patch) > best) best = version_of(major, minor, patch);
    }
    globfree(&found);
    return best;
}

/* Shortens the path of the library to the folder of packages, in place: four components up. */
static void strip_to_packages(char *file)
{
    for (int i = 0; i < 4; i++) {
        char *slash = strrchr(file, '/');
        if (slash) *slash = '\0';
    }
}

/* Searches the packages of the Python in one folder of PATH. */
static int newest_of_python(const char *folder, char *file, size_t bytes)
{
    static const char *const kind[] = {"site", "dist"};
    int best = 0;
    for (int k = 0; k < 2; k++) {
        char pattern[PATH_BYTES + 128];
        glob_t found;
        snprintf(pattern, sizeof pattern,
                 "%s/../lib/python3*/%s-packages/nvidia/cudnn/lib/libcudnn.so.9", folder, kind[k]);
        if (glob(pattern, 0, NULL, &found) != 0) continue;
        for (size_t i = 0; i < found.gl_pathc; i++) {
            char packages[PATH_BYTES];
            if (strlen(found.gl_pathv[i]) >= sizeof packages || strlen(found.gl_pathv[i]) >= bytes)
                continue;
            strcpy(packages, found.gl_pathv[i]);
            strip_to_packages(packages);
            const int version = packaged_version(packages);
            if (version <= best) continue;
            best = version;
            strcpy(file, found.gl_pathv[i]);
        }
        globfree(&found);
    }
    return best;
}

int cudnn_path_newest(const char *path, char *file, size_t bytes)
{
    int best = 0;
    while (path && *path) {
        char folder[PATH_BYTES], python[PATH_BYTES + 16], found[PATH_BYTES];
        const size_t n = strcspn(path, ":");
        const size_t used = n < sizeof folder ? n : 0;
        memcpy(folder, path, used);
        folder[used] = '\0';
        path += n + (path[n] == ':');
        snprintf(python, sizeof python, "%s/python3", folder);
        if (used == 0 || access(python, X_OK) != 0) continue;
        const int version = newest_of_python(folder, found, sizeof found);
        if (version <= best || strlen(found) >= bytes) continue;
        best = version;
        strcpy(file, found);
    }
    return best;
}
