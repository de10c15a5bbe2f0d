/* overlap.c -- how work and a transfer slow each other down.
 *
 *     alone       GEMMs take W, an all-reduce M = 2 W
 *     together    begin | GEMMs, W' | wait |
 *                 ------ T -----------------
 *
 *     work        W' / W                     the GEMMs are slower beside the transfer
 *     transfer    W' / (M - (T - W'))        it did this part of M in W', and the rest alone
 *
 * A rank of the host polls its transfers between the tiles of the GEMM, as in a run; W' of a device
 * is the time of its compute queue. If nothing moves beside work, the factor is at its limit. */
#include "plan/measure/parts.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

enum { OVERLAP_REPEATS = 7, HOST_GEMM = 256, DEVICE_GEMM = 2048, SMALL_GEMM = 64 };
static const double most_slowdown = 100, poll_s = 20e-6;

typedef struct {
    TimedCall gemm;
    Transfer transfer;
    int gemms;      /* of a repetition */
    double next_s;  /* time of the next poll */
    double *work_s; /* [OVERLAP_REPEATS + 1]: of the GEMMs beside the transfer */
    int n;
    DeviceTimestamps *stamps; /* NULL: the host */
    void *block;              /* operands in device memory */
    Measurer *m;
} Overlap;

static void poll_comm(void *overlap)
{
    Overlap *o = overlap;
    if (now_s() < o->next_s) return;
    if (comm_poll(o->m->r->comm) != OK) return; /* the wait fails too */
    o->next_s = now_s() + poll_s;
}

static Err run_gemms(const Overlap *o)
{
    for (int i = 0; i < o->gemms; i++) TRY(o->gemm.kernel(&o->gemm.call));
    return OK;
}

static Err finish(const Measurer *m)
{
    return m->rt ? comm_sync(m->r->comm, (CommDevice){m->rt, m->context}, m->queue) : OK;
}

static Err run_work(Measurer *m, void *work)
{
    TRY(run_gemms(work));
    return finish(m);
}

static Err run_alone(Measurer *m, void *work)
{
    return measure_transfer(m, &((Overlap *)work)->transfer);
}

static Err stamp(const Measurer *m, const Overlap *o, int i)
{
    return o->stamps ? m->rt->timestamp(m->queue, o->stamps, i) : OK;
}

static Err run_together(Measurer *m, void *work)
{
    Overlap *o = work;
    Ticket ticket;
    double at[2] = {0};
    TRY(comm_begin(m->r->comm, &o->transfer, &ticket));
    const double start = now_s();
    TRY(stamp(m, o, 0));
    TRY(run_gemms(o));
    TRY(stamp(m, o, 1));
    const double end = now_s();
    TRY(comm_wait(m->r->comm, ticket));
    TRY(finish(m));
    if (o->stamps) TRY(m->rt->timestamps_read(o->stamps, 2, at));
    o->work_s[o->n++] = o->stamps ? at[1] : end - start;
    return OK;
}

/* Operands in the arena of the host, or in a block of the device's memory. */
static Err open_operands(Measurer *m, Overlap *o)
{
    const bool small = m->s->grid == GRID_SMALL;
    const int64_t n = small ? SMALL_GEMM : m->rt ? DEVICE_GEMM : HOST_GEMM;
    const DType dtype = m->rt ? BF16 : F32;
    const size_t bytes = (size_t)(n * n) * dtype_bytes(dtype);
    Call *c = &o->gemm.call;
    if (m->rt) {
        TRY(m->rt->alloc(m->context, 3 * bytes, &o->block));
        TRY(m->rt->timestamps_open(m->context, 2, &o->stamps));
        TRY(m->rt->set(m->queue, o->block, 0, 3 * bytes));
    } else {
        TRY(arena_push(m->r->arena, 3 * bytes, &o->block));
        memset(o->block, 0, 3 * bytes);
    }
    for (int i = 0; i < 3; i++)
        *(i < 2 ? &c->in[i] : &c->out[0]) =
            (Tensor){(char *)o->block + (size_t)i * bytes, dtype, 2, {n, n}, {n, 1}};
    return OK;
}

static Err open_overlap(Measurer *m, Overlap *o)
{
    const Ref whole = {m->r->rank, ARENA_LOOP, 0, (int64_t)(2 * m->link_bytes / sizeof(float)),
                       F32};
    TRY(ARENA_NEW(m->r->arena, OVERLAP_REPEATS + 1, &o->work_s));
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
    return open_operands(m, o);
}

static void close_overlap(Measurer *m, Overlap *o)
{
    if (!m->rt) return;
    (void)m->rt->sync(m->queue);
    if (o->stamps) m->rt->timestamps_close(o->stamps);
    if (o->block) m->rt->free(m->context, o->block);
}

static double at_least_1(double x) { return x > 1 ? fmin(x, most_slowdown) : 1; }

static void keep_factor(Measurer *m, const char *what, double factor, double spread)
{
    m->out->row[m->out->n++] = (Measured){what, "x", factor, spread};
}

static Err time_overlap(Measurer *m, Overlap *o)
{
    Measured alone = {NULL, NULL, 0, 0}, work = alone, both = alone;
    TRY(measure_repeat(m, run_alone, o, OVERLAP_REPEATS, &alone));
    TRY(measure_repeat(m, run_work, o, OVERLAP_REPEATS, &work));
    o->gemms = (int)fmax(1, fmin(1e4, 0.5 * alone.value / work.value));
    TRY(measure_repeat(m, run_work, o, OVERLAP_REPEATS, &work));
    if (m->s->team) team_set_poll(m->s->team, poll_comm, o);
    const Err err = measure_repeat(m, run_together, o, OVERLAP_REPEATS, &both);
    if (m->s->team) team_set_poll(m->s->team, NULL, NULL);
    TRY(err);
    const double beside = measure_median(o->work_s, o->n),
                 moved = alone.value + beside - both.value;
    m->out->slow_work = at_least_1(beside / work.value);
    m->out->slow_transfer = moved > 0 ? at_least_1(beside / moved) : most_slowdown;
    keep_factor(m, "work, beside", m->out->slow_work, work.spread);
    keep_factor(m, "transfer, beside", m->out->slow_transfer, both.spread);
    return OK;
}

Err measure_overlap(Measurer *m)
{
    Overlap o = {.n = 0};
    measure_progress(m, "work beside transfers");
    Err err = open_overlap(m, &o);
    if (err == OK) err = time_overlap(m, &o);
    close_overlap(m, &o);
    return err;
}
