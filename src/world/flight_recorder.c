/* flight_recorder.c -- memory shared with child processes, and the status blocks in it. */
#define _GNU_SOURCE
#include "world/flight_recorder.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include "base/team.h"

/* FLIGHT_RECORDER_BYTES are addresses; pages are taken when they are written. */
enum { FLIGHT_RECORDER_BYTES = 256 << 20, MIN_RECORDS = 16, ALTERNATE_BYTES = 64 << 10 };

/* Bytes of one rank without its records: its status, its alternate stack, and their alignment. */
enum { RANK_BYTES = sizeof(RankStatus) + ALTERNATE_BYTES + 3 * ARENA_ALIGN };

Err flight_recorder_open(FlightRecorder **out)
{
    void *at = mmap(NULL, FLIGHT_RECORDER_BYTES, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return err_fail(ERR_NOMEM, "no memory to share with the worker: %s", strerror(errno));
    FlightRecorder *f = at;
    f->arena = (Arena){.name = "flight recorder", .base = at, .cap_bytes = FLIGHT_RECORDER_BYTES};
    f->arena.used_bytes = align_up(sizeof *f);
    *out = f;
    return OK;
}

void flight_recorder_close(FlightRecorder *f) { munmap(f, FLIGHT_RECORDER_BYTES); }

Err flight_recorder_check(int64_t n)
{
    const size_t all = FLIGHT_RECORDER_BYTES - align_up(sizeof(FlightRecorder));
    const int64_t most = (int64_t)(all / (RANK_BYTES + MIN_RECORDS * sizeof(Record)));
    if (n <= most) return OK;
    return err_fail(ERR_CONFIG,
                    "%lld ranks as threads of one process: %lld are the most; start more as "
                    "processes, with mpirun",
                    (long long)n, (long long)most);
}

/* Divides the memory that is left equally among the ranks of this process. */
Err flight_recorder_rank(FlightRecorder *f, int ranks, int first, int n, int64_t records)
{
    RankStatus *status;
    TRY(flight_recorder_check(n));
    const size_t left = f->arena.cap_bytes - f->arena.used_bytes;
    const int64_t room = ((int64_t)left / n - RANK_BYTES) / (int64_t)sizeof(Record);
    TRY(ARENA_NEW(&f->arena, n, &status));
    for (int i = 0; i < n; i++) {
        Recorder *r = &status[i].recorder;
        status[i].rank = first + i;
        atomic_init(&status[i].watch.action, -1);
        *r = (Recorder){.cap = records < room ? records : room, .waits = -1};
        TRY(arena_push(&f->arena, sizeof *r->ring * (size_t)r->cap, (void *)&r->ring));
        TRY(arena_push(&f->arena, ALTERNATE_BYTES, &status[i].stack));
    }
    f->status = status;
    f->ranks = ranks;
    f->n_here = n; /* last: readers of another process check it first */
    return OK;
}

/* Signal handlers run on an alternate stack, since the thread's own may have overflowed. Sanitizers
 * have set one already; then it stays. */
void flight_recorder_enter(const RankStatus *s)
{
    const stack_t mine = {.ss_sp = s->stack, .ss_size = ALTERNATE_BYTES};
    stack_t old;
    team_set_rank(s->rank);
    if (sigaltstack(NULL, &old) == 0 && (old.ss_flags & SS_DISABLE)) sigaltstack(&mine, NULL);
}

RankStatus *flight_recorder_of(const FlightRecorder *f, int rank)
{
    const int i = f->n_here ? rank - f->status[0].rank : -1;
    return i >= 0 && i < f->n_here ? &f->status[i] : NULL;
}
