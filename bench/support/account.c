/* account.c -- the table of a step. */
#include "support/account.h"

#include <stdio.h>
#include <string.h>
#include "support/timed.h"

static void print_row(const TimedRow *r, int width, double total_s, int steps)
{
    printf("%-*s %6.0f %10.2f %6.1f%% %10.2f", width, r->name, (double)r->calls / steps,
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
    TimedRow all = {.name = "step", .seconds = total_s};
    TimedRow rest = {.name = "between ops", .seconds = total_s};
    int n, width = 16;
    const TimedRow *row = timed_rows(&n);
    for (int i = 0; i < n; i++)
        if ((int)strlen(row[i].name) > width) width = (int)strlen(row[i].name);
    printf("%-*s %6s %10s %7s %10s %8s\n", width, "op", "calls", "ms", "share", "floor, ms",
           "of it");
    for (int i = 0; i < n; i++) {
        print_row(&row[i], width, total_s, steps);
        rest.seconds -= row[i].seconds;
        all.calls += row[i].calls;
        all.floor_s += row[i].floor_s;
        all.flops += row[i].flops;
    }
    print_row(&rest, width, total_s, steps);
    print_row(&all, width, total_s, steps);
}
