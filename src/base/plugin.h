/* plugin.h -- shared objects that the program opens at run time.
 *
 * Code that needs MPI, NCCL or CUDA is a shared object, so one binary starts on every machine. It
 * is next to the executable in a build folder, and in lib/sheaf when installed:
 *
 *     static const Plugin plugin = {.module = "mpi", .file = "sheaf-mpi.so", .symbol = "sheaf_mpi",
 *                                   .abi = {{sizeof(Comm), sizeof(Transfer)}}, ...};
 *     TRY(plugin_open(&plugin, NULL, &entry));        entry: the struct behind the symbol
 *
 * Calls go both ways: the program calls the functions in the entry, and the shared object calls
 * functions that the executable exports (it is linked with -rdynamic). So there is one err_text per
 * process. Both are built together; the sizes in PluginAbi detect when they were not.
 *
 * Shared objects stay open until the process ends. */
#ifndef BASE_PLUGIN_H
#define BASE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

/* Sizes of the types that both sides share, in the order that the plugin defines; unused ones are
 * 0. The struct behind the symbol of every plugin begins with it. */
typedef struct {
    size_t bytes[4];
} PluginAbi;

typedef struct {
    const char *module; /* first word of error messages */
    const char *file;   /* name of the shared object */
    const char *symbol;
    PluginAbi abi;
    bool global;         /* its libraries open plugins of their own that need their symbols */
    const char *missing; /* what to do when there is no such file: end of the error message */
    const char *broken;  /* the same for a file that does not open; NULL: nothing to add */
} Plugin;

enum { PLUGIN_PATH_BYTES = 4096 };

/* Local. `path`, or if it is NULL the path of `file` in `buffer`: in the folder of installed
 * plugins if it is there, else next to the running executable; the bare name if the system does not
 * report where the executable is. */
const char *plugin_path(const char *path, const char *file, char buffer[PLUGIN_PATH_BYTES]);
/* Local. True if the file can be read; opening it may still fail. */
bool plugin_exists(const Plugin *p, const char *path);
/* Local. Opens the shared object at `path` (NULL: see plugin_path) and returns the address of its
 * symbol. ERR_CONFIG for a missing file, one that does not open, and one from another
 * build. */
Err plugin_open(const Plugin *p, const char *path, const void **entry);

/* Local. Opens a library of the system by name, along the search path of the loader. ERR_CONFIG
 * with the loader's message, then `hint`. */
Err library_open(const char *module, const char *name, const char *hint, void **out);
/* Local. Address of a function or object in a library; NULL: it has none of that name. */
void *library_symbol(void *library, const char *symbol);

#endif
