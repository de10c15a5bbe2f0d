/* interrupt.c -- the handler, and the one flag that it can reach. */
#define _DEFAULT_SOURCE
#include "cli/interrupt.h"

#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop_asked;
static struct timespec asked_at;

/* A launcher may send the same wish to a process and to its group: at the same moment it is one. */
static void on_interrupt(int signal_number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double after =
        (double)(now.tv_sec - asked_at.tv_sec) + 1e-9 * (double)(now.tv_nsec - asked_at.tv_nsec);
    if (stop_asked && after > 0.2 && signal_number == SIGINT) _exit(128 + signal_number);
    if (!stop_asked) asked_at = now;
    stop_asked = signal_number;
}

static void watch(int signal_number)
{
    const struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigaction(signal_number, &act, NULL);
}

const volatile sig_atomic_t *interrupt_watch(void)
{
    stop_asked = 0;
    watch(SIGINT);
    return &stop_asked;
}

void interrupt_watch_term(void) { watch(SIGTERM); }
