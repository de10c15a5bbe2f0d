/* team_parts.h -- a team's threads and state, shared by team.c (work) and team_pin.c (cores). */
#ifndef BASE_TEAM_PARTS_H
#define BASE_TEAM_PARTS_H

#include "base/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include "base/arena.h"
#include "base/contention.h"

/* Spin times: about the cost of sleeping and waking; longer for a pinned thread, whose core is free
 * for it and which would miss most of the next kernel by sleeping. */
enum { SPIN_NS = 50000, SPIN_PINNED_NS = 2000000 };

/* A thread and its share, on cache lines of their own. Thread 0 is the caller. */
typedef struct {
    _Alignas(ARENA_ALIGN) atomic_ullong share;
    Team *team;
    pthread_t thread;
    int cpu;           /* core of the thread, if the team is pinned */
    atomic_int tid;    /* the system's number of the thread; 0 until it runs */
    int64_t waited_ns; /* for a core, at the last check */
} Worker;

struct Team {
    int threads;
    int rank; /* of its threads; see team_set_rank */
    /* 0 if oversubscribed: spinning would keep another thread from working */
    atomic_int spin_ns;
    bool pinned, stop;
    bool shares; /* released while another process uses one of its cores */
    int releases;
    Contention contention;
    pthread_t owner;
    cpu_set_t owner_cores; /* restored by team_close */

    void (*run)(void *work, int64_t tile);
    void *work;
    int64_t n_tiles;
    void (*poll)(void *polled); /* called by thread 0 between its tiles; NULL: none */
    void *polled;

    _Alignas(ARENA_ALIGN) atomic_ullong gate;
    _Alignas(ARENA_ALIGN) atomic_int sleepers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Worker worker[];
};

/* Local. Pins thread i to core cpu[i]; after the workers started, which would inherit the caller's
 * core. */
void team_pin(Team *t, const int *cpu);
/* Local. Releases the threads from contended cores, and pins them again later. */
void team_check_cores(Team *t);

#endif
