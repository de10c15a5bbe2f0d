/* interrupt.h -- signals that ask to stop. Ctrl-C: the first one asks, a second one ends the process at
 * once. SIGTERM, which schedulers send some time before they kill, asks however often it comes. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <signal.h>

/* Local. From now on *flag is the number of the signal once somebody asked by Ctrl-C; it is 0 now. */
const volatile sig_atomic_t *interrupt_watch(void);
/* Local. SIGTERM asks too, for work that has something to save; else it ends the process. */
void interrupt_watch_term(void);

#endif
