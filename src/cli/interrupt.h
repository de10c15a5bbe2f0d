/* interrupt.h -- Ctrl-C: the first one asks to stop, a second one ends the process at once. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <signal.h>

/* Local. From now on *flag is not 0 once somebody asked; it is 0 now. */
const volatile sig_atomic_t *interrupt_watch(void);

#endif
