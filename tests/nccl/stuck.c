/* stuck.c -- a call of CUDA that never returns: for LD_PRELOAD into one rank of a run on a GPU.
 *
 *     SHEAF_STUCK_AT=400 LD_PRELOAD=libstuck.so sheaf train ...
 *
 * The 400th cudaEventRecord of the process sleeps for ever. A rank records an event for each
 * transfer that it begins. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef int Record(void *event, void *stream);
__attribute__((visibility("default"))) Record cudaEventRecord;

int cudaEventRecord(void *event, void *stream)
{
    static atomic_int calls;
    static Record *_Atomic real;
    const char *at = getenv("SHEAF_STUCK_AT");
    if (!real)
        *(void **)(void *)&real =
            dlsym(dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD), "cudaEventRecord");
    while (at && atomic_fetch_add(&calls, 1) + 1 >= atoi(at)) pause();
    return real(event, stream);
}
