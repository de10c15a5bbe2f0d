/* measure_overlap.c -- how work and a transfer slow each other down.
 *
 *     alone       GEMMs take W, an all-reduce M = 2 W
 *     together    begin | GEMMs, W' | wait |
 *                 ------ T -----------------
 *
 *     work        W' / W                     the GEMMs are slower beside the transfer
 *     transfer    W' / (M - (T - W'))        it did this part of M in W', and the rest alone
 *
 * A rank of the host polls its transfers between the tiles of the GEMM, as in a run. If nothing
 * moves beside work, the factor is at its limit. */
#include "plan/measure_parts.h"

#include <math.h>

#include "base/clock.h"

enum { OVERLAP_BYTES = 8 << 20, OVERLAP_REPEATS = 7, OVERLAP_GEMM = 256 };
static const double most_slowdown = 100, poll_s = 20e-6;

typedef struct {
    TimedCall gemm;
    Transfer transfer;
    int gemms;      /* of a repetition */
    double next_s;  /* time of the next poll */
    double *work_s; /* [OVERLAP_REPEATS + 1]: of the GEMMs beside the transfer */
    int n;
    Measurer *m;
} Overlap;

static void poll_comm(void *overlap)
{
    Overlap *o = overlap;
    if (now_s() < o->next_s) return;
    if (comm_poll(o->m->r->comm) != OK) return; /* the wait fails too */
    o->next_s = now_s() + poll_s;
}

static Err run_work(Measurer *m, void *work)
{
    Overlap *o = work;
    for (int i = 0; i < o->gemms; i++) TRY(measure_call(m, &o->gemm));
    return OK;
}

static Err run_alone(Measurer *m, void *work)
{
    return comm_do(m->r->comm, &((Overlap *)work)->transfer);
}

static Err run_together(Measurer *m, void *work)
{
    Overlap *o = work;
    Ticket ticket;
    TRY(comm_begin(m->r->comm, &o->transfer, &ticket));
    const double start = now_s();
    TRY(run_work(m, o));
    o->work_s[o->n++] = now_s() - start;
    return comm_wait(m->r->comm, ticket);
}

static Err open_overlap(Measurer *m, Overlap *o)
{
    const int64_t size[] = {OVERLAP_GEMM, OVERLAP_GEMM}, count = OVERLAP_BYTES / 4;
    float *data;
    TRY(ARENA_NEW(m->r->arena, count, &data));
    TRY(ARENA_NEW(m->r->arena, OVERLAP_REPEATS + 1, &o->work_s));
    TRY(comm_register(m->r->comm, ARENA_LOOP, data, OVERLAP_BYTES));
    const Ref whole = {m->r->rank, ARENA_LOOP, 0, count, F32};
    o->m = m;
    o->gemms = 1;
    o->transfer = (Transfer){
        .kind = COMM_ALL_REDUCE, .group = {m->r->ranks, m->all}, .from = whole, .to = whole};
    o->gemm = (TimedCall){m->s->device->kernel[KERNEL_gemm],
                          {.n_in = 2,
                           .n_out = 1,
                           .attr = {.gemm = {.tb = true}},
                           .team = m->s->team,
                           .queue = m->queue}};
    for (int i = 0; i < 3; i++) {
        Call *c = &o->gemm.call;
        TRY(measure_tensor(m, F32, 2, size, i < 2 ? &c->in[i] : &c->out[0]));
    }
    return OK;
}

static double at_least_1(double x) { return x > 1 ? fmin(x, most_slowdown) : 1; }

static void keep_factor(Measurer *m, const char *what, double factor, double spread)
{
    m->out->row[m->out->n++] = (Measured){what, "x", factor, spread};
}

Err measure_overlap(Measurer *m)
{
    Overlap o = {.n = 0};
    Measured alone = {NULL, NULL, 0, 0}, work = alone, both = alone;
    measure_progress(m, "work beside transfers");
    TRY(open_overlap(m, &o));
    TRY(measure_repeat(m, run_alone, &o, OVERLAP_REPEATS, &alone));
    TRY(measure_repeat(m, run_work, &o, OVERLAP_REPEATS, &work));
    o.gemms = (int)fmax(1, fmin(1e4, 0.5 * alone.value / work.value));
    TRY(measure_repeat(m, run_work, &o, OVERLAP_REPEATS, &work));
    if (m->s->team) team_set_poll(m->s->team, poll_comm, &o);
    const Err err = measure_repeat(m, run_together, &o, OVERLAP_REPEATS, &both);
    if (m->s->team) team_set_poll(m->s->team, NULL, NULL);
    TRY(err);
    const double beside = measure_median(o.work_s, o.n), moved = alone.value + beside - both.value;
    m->out->slow_work = at_least_1(beside / work.value);
    m->out->slow_transfer = moved > 0 ? at_least_1(beside / moved) : most_slowdown;
    keep_factor(m, "work, beside", m->out->slow_work, work.spread);
    keep_factor(m, "transfer, beside", m->out->slow_transfer, both.spread);
    return OK;
}
