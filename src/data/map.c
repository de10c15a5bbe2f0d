/* map.c -- maps files with mmap. The mapping stays valid after the descriptor is closed.
 *
 * A read past the new end of a truncated file raises SIGBUS. The handler finds the file in a table
 * of mappings, notes its name, and puts zero pages in place of the lost ones, so that the reader
 * goes on to its next map_check. Any other SIGBUS is left to the handler before this one. */
#define _DEFAULT_SOURCE
#include "data/map.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* More mappings than two lists of 256 pairs have. One beyond them is not in the table; its loss
 * ends the process. */
enum { MAX_MAPS = 2048, MAX_NAME = 512 };

typedef struct {
    _Atomic uintptr_t at; /* 0: free; set last, cleared first */
    size_t bytes;
    char name[MAX_NAME];
} MappedFile;

/* Global, because a signal handler has no context argument. */
static MappedFile mapped[MAX_MAPS];
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER; /* held to add and remove rows */
static struct sigaction before;
static _Atomic int losses; /* 0: none; 1: lost_name is being written; 2: it is complete */
static char lost_name[MAX_NAME];

/* ---- the handler ---- */

static const MappedFile *find(uintptr_t address)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        const uintptr_t at = atomic_load(&mapped[i].at);
        if (at && address >= at && address - at < mapped[i].bytes) return &mapped[i];
    }
    return NULL;
}

/* Replaces the lost page and all pages after it; false if the system refuses. */
static bool replace_pages(const MappedFile *m, uintptr_t address)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = address / page * page, end = atomic_load(&m->at) + m->bytes;
    return mmap((void *)from, end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
    const int kept = errno;
    const uintptr_t address = (uintptr_t)info->si_addr;
    const MappedFile *m = info->si_code == BUS_ADRERR ? find(address) : NULL;
    int none = 0;
    (void)context;
    if (!m || !replace_pages(m, address)) { /* a fault repeats; a sent signal does not */
        sigaction(SIGBUS, &before, NULL);
        if (info->si_code <= 0) raise(signal_number);
    } else if (atomic_compare_exchange_strong(&losses, &none, 1)) {
        memcpy(lost_name, m->name, MAX_NAME);
        atomic_store(&losses, 2);
    }
    errno = kept;
}

static void install_handler(void)
{
    struct sigaction now;
    const struct sigaction act = {.sa_sigaction = on_bus_error,
                                  .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (sigaction(SIGBUS, NULL, &now) != 0) return;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error) return;
    before = now;
    sigaction(SIGBUS, &act, NULL);
}

Err map_check(void)
{
    if (atomic_load(&losses) == 0) return OK;
    while (atomic_load(&losses) != 2) continue; /* another thread is in the handler */
    return err_fail(ERR_IO,
                    "%s: was truncated while it was read, or its disk failed; restore it and start "
                    "again; to replace a file in use, rename a new one over it",
                    lost_name);
}

/* ---- the table ---- */

static void add_row(const char *path, const Bytes *map)
{
    pthread_mutex_lock(&changing);
    install_handler();
    for (int i = 0; i < MAX_MAPS; i++) {
        MappedFile *m = &mapped[i];
        if (atomic_load(&m->at)) continue;
        m->bytes = map->bytes;
        snprintf(m->name, sizeof m->name, "%s", path);
        atomic_store(&m->at, (uintptr_t)map->at);
        break;
    }
    pthread_mutex_unlock(&changing);
}

static void remove_row(const Bytes *map)
{
    pthread_mutex_lock(&changing);
    for (int i = 0; i < MAX_MAPS; i++)
        if (atomic_load(&mapped[i].at) == (uintptr_t)map->at) atomic_store(&mapped[i].at, 0);
    pthread_mutex_unlock(&changing);
}

/* ---- mappings ---- */

static Err map_open(int fd, const char *path, Bytes *out)
{
    struct stat s;
    if (fstat(fd, &s) != 0) return err_fail(ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (S_ISDIR(s.st_mode))
        return err_fail(ERR_IO, "%s: is a folder; give the files in it (%s/*)", path, path);
    if (!S_ISREG(s.st_mode))
        return err_fail(ERR_IO, "%s: is no plain file; write its content to one first", path);
    *out = (Bytes){.bytes = (size_t)s.st_size};
    if (s.st_size == 0) return OK;
    void *at = mmap(NULL, out->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return err_fail(ERR_IO, "%s: cannot map its %zu bytes: %s", path, out->bytes,
                        strerror(errno));
    out->at = at;
    add_row(path, out);
    return OK;
}

Err map_file(const char *path, Bytes *out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no wait for a FIFO */
    if (fd < 0) return err_fail(ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    const Err err = map_open(fd, path, out);
    close(fd);
    return err;
}

void unmap(Bytes *map)
{
    if (map->at) {
        remove_row(map);
        munmap((void *)map->at, map->bytes);
    }
    *map = (Bytes){0};
}

bool map_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}
