/* blas.c -- loads OpenBLAS by dlopen. */
#define _GNU_SOURCE
#include "device/cpu/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/cpu/cpu.h"

/* One per process, like the library. Written once, under the lock, before any thread reads it. */
static struct {
    pthread_mutex_t lock;
    bool tried; /* a second attempt would not succeed either */
    Sgemm sgemm, in_use;
    char text[256];
} blas = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Copies the bytes of the address: dlsym returns a data pointer, and POSIX guarantees that it has
 * the size of a function pointer. */
static bool find(void *library, const char *name, void *out)
{
    void *const at = dlsym(library, name);
    memcpy(out, &at, sizeof at);
    return at != NULL;
}

static const char *file_of(const BlasLibrary *library)
{
    return library->file ? library->file : "libopenblas.so.0";
}

/* The core type whose kernels use this CPU's instruction set; NULL: the library's default. By
 * itself the library decides by model number, and treats models that are newer than the library as
 * the oldest. */
static const char *core_type(void)
{
    if (cpu_has(CPU_AVX512)) return "SkylakeX";
    if (cpu_has(CPU_AVX2)) return "Haswell";
    return NULL;
}

/* Sets the variables that the user has not set, only while the library loads. */
static void *load(const BlasLibrary *library)
{
    const char *const core = core_type();
    const bool set_core = core && !library->core_type_is_set;
    const bool set_threads = !library->threads_are_set;
    if (set_core) setenv("OPENBLAS_CORETYPE", core, 1);
    if (set_threads) setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *const handle = dlopen(file_of(library), RTLD_NOW | RTLD_LOCAL);
    if (set_core) unsetenv("OPENBLAS_CORETYPE");
    if (set_threads) unsetenv("OPENBLAS_NUM_THREADS");
    return handle;
}

/* Writes the text: the first two words of "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..", and the
 * core. */
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
                 " (this CPU could run %s: GEMM may be slow)", wanted);
}

static void open_library(const BlasLibrary *library)
{
    void (*set_threads)(int);
    void *const handle = load(library);
    if (!handle) {
        snprintf(blas.text, sizeof blas.text,
                 "cannot open %s (Debian: install libopenblas0-pthread)", dlerror());
        return;
    }
    if (!find(handle, "cblas_sgemm", &blas.sgemm) ||
        !find(handle, "openblas_set_num_threads", &set_threads)) {
        blas.sgemm = NULL;
        snprintf(blas.text, sizeof blas.text, "%s is not an OpenBLAS with a C interface",
                 file_of(library));
        return;
    }
    set_threads(1);
    describe(handle);
}

bool blas_open(const BlasLibrary *library)
{
    pthread_mutex_lock(&blas.lock);
    if (!blas.tried) open_library(library);
    blas.in_use = blas.sgemm;
    blas.tried = true;
    pthread_mutex_unlock(&blas.lock);
    return blas.sgemm != NULL;
}

Sgemm blas_sgemm(void) { return blas.in_use; }

void blas_use(bool library) { blas.in_use = library ? blas.sgemm : NULL; }

const char *blas_text(void) { return blas.text; }
