/* contention.c -- the rule of contention.h, and the kernel's count of waiting time. */
#include "base/contention.h"

#include <inttypes.h>
#include <stdio.h>

#define CHECK_NS INT64_C(100000000)
#define FIRST_PAUSE_NS INT64_C(5000000000)
#define MAX_PAUSE_NS INT64_C(300000000000)

bool contention_due(const Contention *c, int64_t now_ns)
{
    return now_ns >= c->checked_ns + CHECK_NS;
}

static CoresVerdict release(Contention *c, int64_t now_ns)
{
    /* A pause counts from zero again after the threads were pinned for longer than it. */
    const bool again = c->pause_ns > 0 && now_ns - c->pinned_ns < c->pause_ns;
    const int64_t twice = 2 * c->pause_ns;
    c->pause_ns = !again ? FIRST_PAUSE_NS : twice < MAX_PAUSE_NS ? twice : MAX_PAUSE_NS;
    c->released = true;
    c->pinned_ns = now_ns + c->pause_ns;
    return CORES_RELEASE;
}

CoresVerdict contention_check(Contention *c, int64_t now_ns, int64_t waited_ns)
{
    const bool first = c->checked_ns == 0;
    const int64_t since = now_ns - c->checked_ns;
    c->checked_ns = now_ns;
    if (c->released) {
        if (now_ns < c->pinned_ns) return CORES_KEEP;
        c->released = false;
        c->pinned_ns = now_ns;
        c->contended = 0;
        return CORES_PIN;
    }
    if (first) { /* waited_ns began with the thread */
        c->pinned_ns = now_ns;
        return CORES_KEEP;
    }
    c->contended = waited_ns > since / 10 ? c->contended + 1 : 0;
    return c->contended < 2 ? CORES_KEEP : release(c, now_ns);
}

/* schedstat: time on a core, time ready without one, number of time slices. */
int64_t contention_waited_ns(int tid)
{
    char path[64];
    int64_t waited = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", tid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%*d %" SCNd64, &waited) != 1) waited = 0;
    fclose(f);
    return waited;
}
