/* measured.c -- seconds of work from the trace of a real step.
 *
 *     trace    layer.0 F 0, instruction 3, gemm, 1.21 ms     layer.1 F 0, instruction 3, 1.19 ms
 *     price    gemm of 512 x 64 x 176                        1.20 ms: the median of all of its kind
 *
 * Equal work has one price, whatever unit, micro-batch and step it belongs to. Medians, since other
 * programs may have had the cores for a while. */
#include "plan/clock/parts.h"

#include <stdlib.h>
#include <string.h>
#include "ir/pairs.h"

typedef struct {
    int price;
    double seconds;
} PricedEvent;

typedef struct {
    StepClock *c;
    const LinkedProgram *lp;
    PricedEvent *event; /* [n] */
    int64_t n;
    double *seconds; /* [n_prices]: medians; 0: not measured */
} Calibration;

static void add_seconds(Calibration *k, const CostWork *work, double seconds)
{
    const int price = clock_find_work(k->c, work);
    if (price >= 0 && seconds > 0) k->event[k->n++] = (PricedEvent){price, seconds};
}

static int by_price(const void *pa, const void *pb)
{
    const PricedEvent *a = pa, *b = pb;
    if (a->price != b->price) return a->price < b->price ? -1 : 1;
    return a->seconds < b->seconds ? -1 : a->seconds > b->seconds;
}

static void find_medians(Calibration *k)
{
    qsort(k->event, (size_t)k->n, sizeof *k->event, by_price);
    for (int64_t i = 0, end; i < k->n; i = end) {
        for (end = i; end < k->n && k->event[end].price == k->event[i].price;) end++;
        k->seconds[k->event[i].price] =
            0.5 * (k->event[(i + end - 1) / 2].seconds + k->event[(i + end) / 2].seconds);
    }
}

static void add_state(Calibration *k, double bytes, double seconds)
{
    const CostWork work = clock_state_work(k->lp, bytes);
    if (bytes > 0) add_seconds(k, &work, seconds);
}

/* An instruction that computes; transfers and their waits are not work, and further rounds of the
 * rows of experts are no part of the plan: the routing decides on them. */
static void add_instr(Calibration *k, const TraceEvent *e)
{
    const LinkedAction l = {.action = action_run((Phase)e->phase, e->unit, e->micro, 0)};
    const Program *p = linked_program(k->lp, e->unit, e->micro, 0);
    const Instr *i = &p->instr[e->instr];
    if (i->op == OP_wait || op_transfers(i->op) || op_info(i->op)->class == CLASS_VIEW) return;
    if (i->queue == QUEUE_D2H || i->queue == QUEUE_H2D || op_loops(i->op)) return;
    CostWork work = cost_instr_work(p, i);
    if (op_attends(i->op)) work.heavy = linked_flops(k->lp, &l, p, i);
    add_seconds(k, &work, e->end_s - e->begin_s);
}

/* The norm of a single rank is work alone; its seconds go to the packs by their bytes. */
static void add_norm(Calibration *k, double seconds)
{
    const LinkedProgram *lp = k->lp;
    double all = 0;
    if (lp->mesh->world > 1) return;
    for (int p = 0; p < lp->model->n_packs; p++) all += clock_norm_bytes(lp, p);
    for (int p = 0; p < lp->model->n_packs; p++)
        add_state(k, clock_norm_bytes(lp, p), seconds * clock_norm_bytes(lp, p) / all);
}

static void add_event(Calibration *k, const TraceEvent *e)
{
    const double seconds = e->end_s - e->begin_s;
    if (e->instr >= 0)
        add_instr(k, e);
    else if (e->instr == TRACE_ACTION && e->action == A_UPDATE)
        add_state(k, clock_update_bytes(k->lp, e->unit), seconds);
    else if (e->instr == TRACE_ACTION && e->action == A_NORM)
        add_norm(k, seconds);
}

/* Rates of the measured work, for work that was not measured. */
static void find_rates(const Calibration *k, CostRates *rates)
{
    double flops[N_WORK_CLASSES][N_DTYPES] = {{0}}, busy[N_WORK_CLASSES][N_DTYPES] = {{0}};
    double bytes = 0, moved = 0;
    for (int i = 0; i < k->c->n_prices; i++) {
        const CostWork *w = &k->c->price[i].work;
        const WorkClass class = cost_class(w->op);
        if (k->seconds[i] == 0) continue;
        if (class == WORK_POINTWISE) {
            bytes += w->bytes;
            moved += k->seconds[i];
        } else {
            flops[class][w->dtype] += w->heavy;
            busy[class][w->dtype] += k->seconds[i];
        }
    }
    rates->launch_s = 0;
    if (moved > 0) rates->memory_Bps = bytes / moved;
    for (int c = 0; c < WORK_POINTWISE; c++)
        for (int t = 0; t < N_DTYPES; t++)
            if (busy[c][t] > 0) rates->flops_per_s[c][t] = flops[c][t] / busy[c][t];
}

Err clock_calibrate(StepClock *c, const LinkedProgram *lp, const RankTrace *trace, CostRates *rates)
{
    Calibration k = {.c = c, .lp = lp};
    if (lp->slices > 1)
        return err_fail(ERR_CONFIG, "clock: events of slices do not say which slice they are of");
    TRY(ARENA_NEW(c->arena, c->n_prices, &k.seconds));
    int64_t norms = 0;
    for (int64_t i = 0; i < trace->n; i++) norms += trace->at[i].action == A_NORM;
    TRY(ARENA_NEW(c->arena, trace->n + norms * lp->model->n_units, &k.event));
    for (int64_t i = 0; i < trace->n; i++) add_event(&k, &trace->at[i]);
    find_medians(&k);
    find_rates(&k, rates);
    c->measured = k.seconds;
    return OK;
}
