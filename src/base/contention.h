/* contention.h -- decides whether the threads of a team stay pinned to their cores.
 *
 *     every CHECK_NS   largest share of time that a thread was ready and did not run
 *     pinned           two checks in a row above 1/10: another process uses a core; release
 *     released         pin again after a pause of 5 s, which doubles up to 5 min at each release
 *
 * A pinned thread cannot move away from a core that another process uses, and the whole team waits
 * for it. The scheduler moves a released thread. The kernel counts the time that a thread waits for
 * a core, so sleeping threads do not look contended. */
#ifndef BASE_CONTENTION_H
#define BASE_CONTENTION_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { CORES_KEEP, CORES_RELEASE, CORES_PIN } CoresVerdict;

/* Zero at first: pinned, never checked. */
typedef struct {
    int64_t checked_ns; /* time of the last check */
    int64_t pinned_ns, pause_ns;
    int contended; /* checks in a row */
    bool released;
} Contention;

/* Local. True if it is time for a check. */
bool contention_due(const Contention *c, int64_t now_ns);
/* Local. `waited_ns`: the longest time since the last check that a thread was ready and did not
 * run. The caller does what is returned. */
CoresVerdict contention_check(Contention *c, int64_t now_ns, int64_t waited_ns);
/* Local. Time that thread `tid` of this process has waited for a core so far; 0 if the kernel does
 * not count it. */
int64_t contention_waited_ns(int tid);

#endif
