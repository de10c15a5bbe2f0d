/* team_pin.c -- the cores of a team: its threads are pinned, released from contended cores, and
 * pinned again. */
#define _GNU_SOURCE
#include "base/team_parts.h"

#include <sys/syscall.h>
#include <unistd.h>
#include "base/clock.h"

/* A core that does not exist, or is not allowed, is ignored: the thread is then not pinned. */
static void pin(pthread_t thread, int cpu)
{
    cpu_set_t one;
    if (cpu < 0 || cpu >= CPU_SETSIZE) return;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    (void)pthread_setaffinity_np(thread, sizeof one, &one);
}

/* An oversubscribed team never spins. */
static void set_spin(Team *t, int ns)
{
    if (atomic_load(&t->spin_ns) > 0) atomic_store(&t->spin_ns, ns);
}

static void pin_all(Team *t)
{
    for (int i = 0; i < t->threads; i++) pin(t->worker[i].thread, t->worker[i].cpu);
    set_spin(t, SPIN_PINNED_NS);
}

/* The threads may run on all cores that the caller had. */
static void release_all(Team *t)
{
    for (int i = 0; i < t->threads; i++)
        (void)pthread_setaffinity_np(t->worker[i].thread, sizeof t->owner_cores, &t->owner_cores);
    set_spin(t, SPIN_NS);
    t->releases++;
}

void team_pin(Team *t, const int *cpu)
{
    t->pinned = pthread_getaffinity_np(t->owner, sizeof t->owner_cores, &t->owner_cores) == 0;
    if (!t->pinned) return;
    t->worker[0].thread = t->owner;
    atomic_store(&t->worker[0].tid, (int)syscall(SYS_gettid));
    for (int i = 0; i < t->threads; i++) t->worker[i].cpu = cpu[i];
    pin_all(t);
}

void team_check_cores(Team *t)
{
    const int64_t now = now_ns();
    int64_t most = 0;
    if (!contention_due(&t->contention, now)) return;
    for (int i = 0; i < t->threads; i++) {
        Worker *w = &t->worker[i];
        const int64_t waited = contention_waited_ns(atomic_load(&w->tid));
        if (waited - w->waited_ns > most) most = waited - w->waited_ns;
        w->waited_ns = waited;
    }
    const CoresVerdict verdict = contention_check(&t->contention, now, most);
    if (verdict == CORES_RELEASE) release_all(t);
    if (verdict == CORES_PIN) pin_all(t);
}

void team_share_cores(Team *team) { team->shares = team->pinned; }

int team_releases(const Team *team) { return team ? team->releases : 0; }
