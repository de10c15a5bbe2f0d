/* step_plan.c -- plays a step before the run, and again with the kernels that the run measured. */
#include "train/step_plan.h"

#include <string.h>

/* Address space of the plan and of its compiler, each; both fit into a limit on virtual memory. */
#define MAX_PLAN_BYTES ((size_t)1 << 31)

/* Events of one step: an instruction or an action each, and prepacking. */
static int64_t count_events(const LinkedProgram *lp)
{
    int64_t n = 0;
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        const int phase = l->action.phase;
        n += l->program ? 1 + l->program->first[phase + 1] - l->program->first[phase] : 1;
    }
    return n + 1;
}

/* Without a cluster file: one level of links, whose rates are measured with the kernels. */
static Cluster unknown_cluster(void)
{
    Cluster c = {.name = "this run", .rates = *cost_default_rates()};
    c.rates.n_levels = 1;
    c.rates.level[0] = (CostLink){.ranks = 0};
    return c;
}

Err step_plan_open(StepPlan *p, const Job *job, const Cluster *cluster, bool records)
{
    StepTime time;
    *p = (StepPlan){.open = true, .job = job->settings, .mesh = job->mesh};
    p->cluster = cluster ? *cluster : unknown_cluster();
    p->in = (ClockInput){.cluster = &p->cluster, .job = &p->job, .mesh = &p->mesh};
    if (!cluster && (!records || job->linked.slices > 1)) return OK;
    TRY(arena_open(&p->arena, "plan of a step", MAX_PLAN_BYTES));
    TRY(arena_open(&p->temp, "plan's compiler", MAX_PLAN_BYTES));
    TRY(clock_open(&p->in, &p->arena, &p->temp, &p->clock));
    if (cluster) {
        TRY(clock_play(p->clock, &p->cluster, &time));
        p->predicted_s = time.step_s;
    }
    if (!records || job->linked.slices > 1) return OK;
    const int64_t events = MEASURED_STEPS * count_events(&job->linked);
    if ((size_t)events > MAX_PLAN_BYTES / 4 / sizeof *p->trace.at) return OK; /* no calibration */
    p->trace.cap = events;
    return ARENA_NEW(&p->arena, p->trace.cap, &p->trace.at);
}

/* Links of a run without a cluster file: bytes over the time from match to end, and the shortest
 * transfer. */
static void measure_links(StepPlan *p, const Comm *c)
{
    const Recorder *r = comm_recorder(c);
    double bytes = 0, busy = 0, least = 0;
    for (int64_t i = r->total > r->cap ? r->total - r->cap : 0; i < r->total; i++) {
        const Record *at = recorder_at(r, i);
        const double seconds = at->done_s - at->matched_s;
        if (at->matched_s < 0 || at->done_s < 0 || at->n_ranks < 2) continue;
        if (least == 0 || seconds < least) least = seconds;
        if (at->scalar) continue;
        bytes += (double)(at->sent_bytes ? at->sent_bytes : at->bytes);
        busy += seconds;
    }
    p->cluster.rates.level[0].latency_s = least;
    p->cluster.rates.level[0].Bps = busy > 0 && bytes > 0 ? bytes / busy : 1e9;
}

Err step_plan_update(StepPlan *p, const Job *job, const Comm *c, bool *changed, double *before_s)
{
    StepTime time;
    *changed = false;
    *before_s = p->predicted_s;
    if (++p->steps == 1) p->trace.n = 0;
    if (p->steps != MEASURED_STEP || p->trace.cap == 0 || p->trace.missed > 0) return OK;
    TRY(clock_calibrate(p->clock, &job->linked, &p->trace, &p->cluster.rates));
    if (p->predicted_s == 0 && c) measure_links(p, c);
    TRY(clock_play(p->clock, &p->cluster, &time));
    p->predicted_s = time.step_s;
    *changed = true;
    return OK;
}

void step_plan_close(StepPlan *p)
{
    if (!p->clock) return;
    arena_close(&p->temp);
    arena_close(&p->arena);
    *p = (StepPlan){0};
}
