/* interrupt.h -- stop requests by signal. The first Ctrl-C requests a stop; a second one ends the
 * process immediately. SIGTERM, which job schedulers send some time before SIGKILL, only requests a
 * stop, however often it arrives. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <signal.h>

/* Local. Installs the handler of Ctrl-C. The result points to 0 until a stop is requested, then to
 * the number of the signal. */
const volatile sig_atomic_t *interrupt_watch(void);
/* Local. Makes SIGTERM a stop request too, for work that saves before it stops. Without this call
 * SIGTERM ends the process. */
void interrupt_watch_term(void);

#endif
