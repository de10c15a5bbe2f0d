/* interrupt.c -- the signal handler and the flag that it sets. */
#define _DEFAULT_SOURCE
#include "cli/interrupt.h"

#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop_signal; /* 0: no request */
static struct timespec requested_at;

/* A launcher may send one Ctrl-C both to a process and to its group. Signals within 0.2 s therefore
 * count as one request. */
static void on_interrupt(int signal_number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double after = (double)(now.tv_sec - requested_at.tv_sec) +
                         1e-9 * (double)(now.tv_nsec - requested_at.tv_nsec);
    if (stop_signal && after > 0.2 && signal_number == SIGINT) _exit(128 + signal_number);
    if (!stop_signal) requested_at = now;
    stop_signal = signal_number;
}

static void watch(int signal_number)
{
    const struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigaction(signal_number, &act, NULL);
}

const volatile sig_atomic_t *interrupt_watch(void)
{
    stop_signal = 0;
    watch(SIGINT);
    return &stop_signal;
}

void interrupt_watch_others(void)
{
    static const int others[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
    enum { N_OTHERS = sizeof others / sizeof *others };
    for (int i = 0; i < N_OTHERS; i++) {
        struct sigaction now;
        if (sigaction(others[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) watch(others[i]);
    }
}
