/* plugin.c -- the path of a plugin, dlopen, dlsym, and the messages when one of them fails. */
#define _DEFAULT_SOURCE
#include "base/plugin.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

/* SHEAF_PLUGIN_DIR: the folder of installed plugins, relative to that of the executable. */
#ifndef SHEAF_PLUGIN_DIR
#define SHEAF_PLUGIN_DIR "../lib/sheaf"
#endif

const char *plugin_path(const char *path, const char *file, char buffer[PLUGIN_PATH_BYTES])
{
    if (path) return path;
    /* Two slashes and the terminating NUL. */
    const size_t bytes = strlen(SHEAF_PLUGIN_DIR) + strlen(file) + 3;
    const ssize_t length = readlink("/proc/self/exe", buffer, PLUGIN_PATH_BYTES - bytes);
    char *slash = length > 0 ? (buffer[length] = '\0', strrchr(buffer, '/')) : NULL;
    if (!slash) return file;
    char *name = stpcpy(slash + 1, SHEAF_PLUGIN_DIR "/");
    strcpy(name, file);
    if (access(buffer, R_OK) != 0) strcpy(slash + 1, file);
    return buffer;
}

bool plugin_exists(const Plugin *p, const char *path)
{
    char buffer[PLUGIN_PATH_BYTES];
    return access(plugin_path(path, p->file, buffer), R_OK) == 0;
}

Err plugin_open(const Plugin *p, const char *path, const void **entry)
{
    char buffer[PLUGIN_PATH_BYTES];
    path = plugin_path(path, p->file, buffer);
    /* Checked first: dlopen would search the library path for a name without a slash. */
    if (access(path, R_OK) != 0)
        return err_fail(ERR_CONFIG, "%s: %s is not there; %s", p->module, path, p->missing);
    void *object = dlopen(path, RTLD_NOW | (p->global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!object)
        return err_fail(ERR_CONFIG, "%s: %s does not open: %s%s%s", p->module, path, dlerror(),
                        p->broken ? "; " : "", p->broken ? p->broken : "");
    const void *found = dlsym(object, p->symbol);
    if (!found || memcmp(found, &p->abi, sizeof p->abi) != 0)
        return err_fail(ERR_CONFIG,
                        "%s: %s was built from other sources than this program; build both again",
                        p->module, path);
    *entry = found;
    return OK;
}

Err library_open(const char *module, const char *name, const char *hint, void **out)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_fail(ERR_CONFIG, "%s: %s does not open: %s; %s", module, name, dlerror(), hint);
    *out = library;
    return OK;
}

void *library_symbol(void *library, const char *symbol) { return dlsym(library, symbol); }
