/* interrupt.h -- stop requests by signal. The first Ctrl-C requests a stop; a second one ends the
 * process immediately. SIGTERM, SIGUSR1, SIGUSR2 and SIGXCPU, which job schedulers send some time
 * before SIGKILL, and SIGHUP of a terminal that closes only request a stop, however often they
 * arrive. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <signal.h>

/* Local. Installs the handler of Ctrl-C. The result points to 0 until a stop is requested, then to
 * the number of the signal. */
const volatile sig_atomic_t *interrupt_watch(void);
/* Local. Makes all of those stop requests, for work that saves before it stops. Without this call
 * all but Ctrl-C end the process. Those that the caller made the process ignore (nohup) stay
 * ignored. */
void interrupt_watch_others(void);

#endif
