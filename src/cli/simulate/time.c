/* time.c -- the predicted time of a step as text. */
#include "cli/simulate/simulate.h"

#include <math.h>

double simulated_mfu(const SimulationReport *s)
{
    const double peak = s->cluster->peak_flops_per_s[s->settings->dtype];
    if (peak <= 0) return -1;
    return s->time.model_flops /
           (s->time.step_s * peak * cost_speeds(&s->cluster->rates, s->mesh->world));
}

SimulatedFit simulated_fit(const SimulationReport *s)
{
    const Cluster *c = s->cluster;
    SimulatedFit worst = {.limit_bytes = (double)INFINITY};
    const int n = s->all.class_of ? s->mesh->world : s->all.n;
    for (int i = 0; i < n; i++) {
        const RankClass *k = &s->all.class[s->all.class_of ? s->all.class_of[i] : i];
        const int rank = s->all.class_of ? i : k->first;
        const SimulatedFit fit = {rank, (double)rank_count_bytes(&k->count, c->host_memory),
                                  cluster_memory_bytes(c, rank)};
        if (fit.bytes - fit.limit_bytes > worst.bytes - worst.limit_bytes) worst = fit;
    }
    return worst;
}

/* On devices that differ, the rank that has the least memory left. */
static void fit_text(const SimulationReport *s, Text *t)
{
    const SimulatedFit fit = simulated_fit(s);
    const double excess = fit.bytes - fit.limit_bytes;
    char a[24], b[24], c[24];
    text_bytes((int64_t)fit.bytes, a);
    text_bytes((int64_t)fit.limit_bytes, b);
    text_bytes((int64_t)(excess > 0 ? excess : -excess), c);
    text_add(t, "  %-16s %12s of %s: %s, %s %s", "memory", a, b,
             excess > 0 ? "does NOT fit" : "fits", c, excess > 0 ? "too much" : "free");
    if (s->all.class_of) text_add(t, " on rank %d", fit.rank);
    text_add(t, "\n");
}

/* A kind of time is printed if it is more than nothing. */
static void times_text(const double *seconds, double all_s, Text *t)
{
    static const char *const text[N_TIMES] = {[TIME_GEMM] = "GEMMs",
                                              [TIME_ATTENTION] = "attention",
                                              [TIME_POINTWISE] = "other kernels",
                                              [TIME_HOST] = "the host: launches and copies",
                                              [TIME_TP] = "transfers along tp",
                                              [TIME_CP] = "transfers along cp",
                                              [TIME_EP] = "transfers to and from experts",
                                              [TIME_DP] = "gathers and reductions along dp",
                                              [TIME_PP] = "other stages: bubble, transfers",
                                              [TIME_UPDATE] = "norm and update",
                                              [TIME_IDLE] = "idle until the last rank ends"};
    for (int k = 0; k < N_TIMES; k++)
        if (seconds[k] > 0)
            text_add(t, "    %-36s %12.3f ms  %5.1f%%\n", text[k], 1e3 * seconds[k],
                     100 * seconds[k] / all_s);
}

void simulate_time_text(const SimulationReport *s, Text *t)
{
    const StepTime *time = &s->time;
    char a[24];
    text_add(t, "\nTIME of a step");
    if (!s->cluster) {
        text_add(t,
                 "\n  not predicted: give a machine, as --cluster share/clusters/h100-sxm.yaml\n");
        return;
    }
    text_add(t, " on %s, full micro-batches; %d rank%s played\n", s->cluster->name, time->played,
             time->played == 1 ? "" : "s");
    text_add(t, "  %-16s %12.3f ms\n", "step", 1e3 * time->step_s);
    text_add(t, "  %-16s %12s\n", "tokens/s", text_count((double)time->tokens / time->step_s, a));
    if (simulated_mfu(s) >= 0)
        text_add(t, "  %-16s %11.1f%% of peak\n", "mfu", 100 * simulated_mfu(s));
    fit_text(s, t);
    text_add(t, "  a rank's time, on average: work, and waits that nothing hides\n");
    times_text(time->spent_s, time->step_s, t);
    text_add(t, "  the critical path: work and transfers that the last rank's end depends on\n");
    times_text(time->path_s, time->step_s, t);
}
