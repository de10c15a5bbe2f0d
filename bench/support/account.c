/* account.c -- the table of a step. */
#include "support/account.h"

#include <stdio.h>
#include "support/timed.h"

/* The kernel of most time below that of `last`, by time and then by number; 0: there is none. */
static KernelId next_of(KernelId last)
{
    KernelId top = KERNEL_NONE;
    for (int k = 1; k < N_KERNELS; k++) {
        const double s = timed_row((KernelId)k)->seconds;
        const double before = last == KERNEL_NONE ? 1e30 : timed_row(last)->seconds;
        const bool after = s < before || (s == before && k > (int)last);
        if (timed_row((KernelId)k)->calls == 0 || !after || (last != KERNEL_NONE && k == (int)last))
            continue;
        if (top == KERNEL_NONE || s > timed_row(top)->seconds) top = (KernelId)k;
    }
    return top;
}

static void print_row(const char *name, const TimedRow *r, double total_s, int steps)
{
    printf("%-16s %6.0f %10.2f %6.1f%% %10.2f", name, (double)r->calls / steps,
           1e3 * r->seconds / steps, 100 * r->seconds / total_s, 1e3 * r->floor_s / steps);
    if (r->floor_s > 0) printf(" %7.0f%%", 100 * r->floor_s / r->seconds);
    if (r->flops > 0)
        printf(" %8.1f GF/s", 1e-9 * r->flops / r->seconds);
    else if (r->bytes > 0)
        printf(" %8.1f GB/s", 1e-9 * r->bytes / r->seconds);
    printf("\n");
}

void account_print(double total_s, int steps)
{
    TimedRow all = {.seconds = total_s}, rest = {.seconds = total_s};
    printf("%-16s %6s %10s %7s %10s %8s\n", "op", "calls", "ms", "share", "floor, ms", "of it");
    for (KernelId k = next_of(KERNEL_NONE); k != KERNEL_NONE; k = next_of(k)) {
        const TimedRow *r = timed_row(k);
        print_row(kernel_name(k), r, total_s, steps);
        rest.seconds -= r->seconds;
        all.calls += r->calls;
        all.floor_s += r->floor_s;
        all.flops += r->flops;
    }
    print_row("between ops", &rest, total_s, steps);
    print_row("step", &all, total_s, steps);
}
