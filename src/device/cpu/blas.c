/* blas.c -- OpenBLAS by dlopen. */
#define _GNU_SOURCE
#include "device/cpu/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/cpu/cpu.h"

/* Of the process, as the library is: written once, under the lock, before there are readers. */
static struct {
    pthread_mutex_t lock;
    bool tried;
    Sgemm sgemm, in_use;
    char text[256];
} blas = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Function pointers come out of dlsym as data pointers; POSIX says that they fit. */
static bool find(void *library, const char *name, void *out)
{
    void *const at = dlsym(library, name);
    memcpy(out, &at, sizeof at);
    return at != NULL;
}

/* The core types whose kernels this CPU's instructions run. What the library finds by itself is by
 * model number, and models that are newer than it are taken for the oldest. */
static const char *core_type(void)
{
    if (cpu_has(CPU_AVX512)) return "SkylakeX";
    if (cpu_has(CPU_AVX2)) return "Haswell";
    return NULL;
}

/* Sets a variable while the library loads, but leaves what the user has set. */
static void *load(const char *library)
{
    const char *const core = core_type();
    const bool guard = core && !getenv("OPENBLAS_CORETYPE");
    const bool threads = !getenv("OPENBLAS_NUM_THREADS");
    if (guard) setenv("OPENBLAS_CORETYPE", core, 1);
    if (threads) setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (guard) unsetenv("OPENBLAS_CORETYPE");
    if (threads) unsetenv("OPENBLAS_NUM_THREADS");
    return handle;
}

/* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." without what it was built with. */
static void describe(void *library)
{
    char *(*config)(void), *(*core)(void);
    char name[64] = "OpenBLAS";
    if (find(library, "openblas_get_config", &config)) {
        snprintf(name, sizeof name, "%s", config());
        char *space = strchr(name, ' ');
        if (space && (space = strchr(space + 1, ' '))) *space = '\0';
    }
    const char *const chosen = find(library, "openblas_get_corename", &core) ? core() : "unknown";
    const char *const wanted = core_type();
    snprintf(blas.text, sizeof blas.text, "%s, core %s", name, chosen);
    if (wanted && strcmp(chosen, wanted) != 0)
        snprintf(blas.text + strlen(blas.text), sizeof blas.text - strlen(blas.text),
                 " (not %s, which this CPU can run: it may be slow)", wanted);
}

static void open_library(const char *library)
{
    void (*set_threads)(int);
    void *const handle = load(library);
    if (!handle) {
        snprintf(blas.text, sizeof blas.text, "%s does not open (Debian: libopenblas0-pthread)",
                 dlerror());
        return;
    }
    if (!find(handle, "cblas_sgemm", &blas.sgemm) ||
        !find(handle, "openblas_set_num_threads", &set_threads)) {
        blas.sgemm = NULL;
        snprintf(blas.text, sizeof blas.text, "%s is no OpenBLAS with a C interface", library);
        return;
    }
    set_threads(1);
    describe(handle);
}

bool blas_open(const char *library)
{
    pthread_mutex_lock(&blas.lock);
    if (!blas.tried) open_library(library ? library : "libopenblas.so.0");
    blas.in_use = blas.sgemm;
    blas.tried = true;
    pthread_mutex_unlock(&blas.lock);
    return blas.sgemm != NULL;
}

Sgemm blas_sgemm(void) { return blas.in_use; }

void blas_use(bool library) { blas.in_use = library ? blas.sgemm : NULL; }

const char *blas_text(void) { return blas.text; }
