/* shares.c -- sums of a trace's events, by op. */
#include "support/shares.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    int64_t calls;
    double seconds, flops, bytes, floor_s;
} Share;

static Share *share_of(Share *all, int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(all[i].name, name) == 0) return &all[i];
    all[*n] = (Share){.name = name};
    return &all[(*n)++];
}

static int by_seconds(const void *a, const void *b)
{
    const double x = ((const Share *)a)->seconds, y = ((const Share *)b)->seconds;
    return (x < y) - (x > y);
}

static const char *name_of(const TraceEvent *e)
{
    if (e->instr >= 0) return op_info((OpId)e->op)->name;
    return e->action == A_UPDATE ? "(update)" : e->action == A_NORM ? "(norm)" : "(other)";
}

/* Adds flops and bytes of an event that is an instruction. */
static void add_work(const Job *job, const TraceEvent *e, double flops_per_s, double bytes_per_s,
                     Share *s)
{
    const Instr *in = &job->program[job->model.unit[e->unit].kind].instr[e->instr];
    const double flops_s = (double)in->flops / flops_per_s;
    const double bytes_s = (double)in->bytes / bytes_per_s;
    s->flops += (double)in->flops;
    s->bytes += (double)in->bytes;
    s->floor_s += flops_s > bytes_s ? flops_s : bytes_s;
}

static void print_share(const Share *s, double step_s)
{
    printf("%-20s %6lld %9.3f %6.1f%% %9.0f %8.2f", s->name, (long long)s->calls, 1e3 * s->seconds,
           100 * s->seconds / step_s, 1e-12 * s->flops / s->seconds, 1e-12 * s->bytes / s->seconds);
    printf(s->floor_s > 0 ? " %7.0f%%\n" : "\n", 100 * s->floor_s / s->seconds);
}

void shares_print(const Job *job, const RankTrace *trace, double flops_per_s, double bytes_per_s,
                  double step_s)
{
    Share all[N_OPS + 3];
    int n = 0;
    double sum = 0;
    for (int64_t i = 0; i < trace->n; i++) {
        const TraceEvent *e = &trace->at[i];
        Share *s = share_of(all, &n, name_of(e));
        s->calls++;
        s->seconds += e->end_s - e->begin_s;
        sum += e->end_s - e->begin_s;
        if (e->instr >= 0) add_work(job, e, flops_per_s, bytes_per_s, s);
    }
    qsort(all, (size_t)n, sizeof *all, by_seconds);
    printf("%-20s %6s %9s %7s %9s %8s %8s\n", "op", "calls", "ms", "share", "TFLOP/s", "TB/s",
           "of floor");
    for (int i = 0; i < n; i++) print_share(&all[i], step_s);
    printf("%-20s %6s %9.3f %6.1f%%\n", "between ops, host", "", 1e3 * (step_s - sum),
           100 * (1 - sum / step_s));
}
