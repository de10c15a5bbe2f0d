/* clock.h -- time, and the pause of a loop that spins. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* Local. The monotonic clock: seconds since some moment before the process started, the same moment
 * for all processes of a host. */
double now_s(void);
/* Local. The same clock in nanoseconds. */
int64_t now_ns(void);

/* A hint to the core that the thread spins: it saves power, and the other hardware thread of the
 * core runs faster. */
static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
