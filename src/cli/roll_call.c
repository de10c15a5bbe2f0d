/* roll_call.c -- a small file in shared memory, named after the launcher's job. */
#define _GNU_SOURCE
#include "cli/roll_call.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_NAMED = 8 };

/* FNV-1a over the variables by which launchers name a job; 0: none is set. */
static uint64_t job_hash(EnvGet *get)
{
    static const char *const name[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                                       "PMI_JOBID",      "PMI_KVS",
                                       "SLURM_JOB_ID",   "SLURM_STEP_ID"};
    uint64_t hash = 1469598103934665603u;
    bool any = false;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        const char *value = get(name[i]);
        any = any || (value && *value);
        for (const char *p = value ? value : ""; *p; p++)
            hash = (hash ^ (uint8_t)*p) * 1099511628211u;
        hash = (hash ^ 0xFF) * 1099511628211u;
    }
    return any ? hash : 0;
}

void roll_call_open(RollCall *r, EnvGet *get, const MpiLaunch *by)
{
    const uint64_t job = job_hash(get);
    const size_t bytes = (size_t)by->ranks * sizeof *r->entry;
    *r = (RollCall){.rank = by->rank, .ranks = by->ranks};
    if (!job) return;
    snprintf(r->path, sizeof r->path, "/dev/shm/sheaf-%u-%016llx", (unsigned)getuid(),
             (unsigned long long)job);
    const int fd = open(r->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return;
    void *at = ftruncate(fd, (off_t)bytes) == 0
                   ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                   : MAP_FAILED;
    close(fd);
    if (at == MAP_FAILED) return;
    r->entry = at;
    atomic_store(&r->entry[r->rank].worker, 0);
    atomic_store(&r->entry[r->rank].start, START_NONE);
    atomic_store(&r->entry[r->rank].pid, (int32_t)getpid());
}

void roll_call_enter(RollCall *r, int worker, int start)
{
    if (!r->entry) return;
    atomic_store(&r->entry[r->rank].worker, worker);
    atomic_store(&r->entry[r->rank].start, start);
}

void roll_call_close(RollCall *r)
{
    if (!r->entry) return;
    unlink(r->path);
    munmap(r->entry, (size_t)r->ranks * sizeof *r->entry);
    r->entry = NULL;
}

/* The state letter of a process in /proc; 0: there is no such process. */
static char process_state(int pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    const bool read = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    const char *end = read ? strrchr(line, ')') : NULL; /* the name may contain anything */
    return end && end[1] == ' ' ? end[2] : 0;
}

bool process_is_stopped(int pid)
{
    const char state = process_state(pid);
    return state == 'T' || state == 't';
}

/* What is wrong with a rank of this host, in `text`; false if nothing is. */
static bool describe(const RollEntry *e, int rank, int start, char text[128])
{
    const int pid = atomic_load(&e->pid), worker = atomic_load(&e->worker);
    const int shown = worker ? worker : pid;
    if (!pid || (!process_state(pid) && !process_state(worker))) {
        snprintf(text, 128, "rank %d has not started on this host", rank);
        return start == START_MPI_INIT;
    }
    if (process_is_stopped(shown) || process_is_stopped(pid)) {
        snprintf(text, 128, "rank %d (pid %d) is stopped", rank, shown);
        return true;
    }
    snprintf(text, 128, "rank %d (pid %d) has not called MPI_Init", rank, shown);
    return start == START_MPI_INIT && atomic_load(&e->start) == START_NONE;
}

void roll_call_end_stopped(const RollCall *r)
{
    for (int i = 0; r->entry && i < r->ranks; i++) {
        const int pid = atomic_load(&r->entry[i].pid), worker = atomic_load(&r->entry[i].worker);
        if (i == r->rank) continue;
        if (worker > 0 && process_is_stopped(worker)) kill(worker, SIGKILL);
        if (pid > 0 && process_is_stopped(pid)) kill(pid, SIGKILL);
    }
}

int roll_call_missing(const RollCall *r, int start, Text *t)
{
    int n = 0;
    char text[128];
    for (int i = 0; r->entry && i < r->ranks; i++) {
        if (i == r->rank || !describe(&r->entry[i], i, start, text)) continue;
        if (n++ < MAX_NAMED) text_add(t, "%s%s", n > 1 ? "; " : "", text);
    }
    if (n > MAX_NAMED) text_add(t, "; and %d more", n - MAX_NAMED);
    return n;
}
