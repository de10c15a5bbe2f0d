/* play.c -- plays the tapes of all ranks together.
 *
 * A tape runs until it waits for a transfer that some member has not begun; then the next tape
 * runs. Begins never block and times depend on no order of playing, so the order is free. Each tape
 * carries the critical path that led to its present time: a wait that is not over takes the path of
 * the transfer, which came from the member that began it last. */
#include "plan/clock/parts.h"

#include <string.h>

const char *time_kind_name(TimeKind kind)
{
    static const char *const name[N_TIMES] = {[TIME_GEMM] = "gemm",
                                              [TIME_ATTENTION] = "attention",
                                              [TIME_POINTWISE] = "pointwise",
                                              [TIME_HOST] = "host",
                                              [TIME_TP] = "tp",
                                              [TIME_CP] = "cp",
                                              [TIME_EP] = "ep",
                                              [TIME_DP] = "dp",
                                              [TIME_PP] = "pp",
                                              [TIME_UPDATE] = "update",
                                              [TIME_IDLE] = "idle"};
    return name[kind];
}

/* The bit of a kind of time in Cluster.serial; 0: it belongs to no axis. */
static unsigned axis_bit(TimeKind time)
{
    switch (time) {
    case TIME_TP:
    case TIME_EP: /* within units too */
        return 1u << TRANSFER_TP;
    case TIME_CP:
        return 1u << TRANSFER_CP;
    case TIME_DP:
        return 1u << TRANSFER_DP;
    case TIME_PP:
        return 1u << TRANSFER_PP;
    default:
        return 0;
    }
}

static Err reserve_flight(StepClock *c, ClockChannel *k, int number)
{
    ClockFlight *more;
    if (number < k->cap) return OK;
    const int cap = k->cap ? 2 * k->cap : 16;
    TRY(ARENA_NEW(c->arena, cap, &more)); /* zero */
    if (k->n) memcpy(more, k->flight, (size_t)k->n * sizeof *more);
    k->flight = more;
    k->cap = cap;
    return OK;
}

/* True if transfers of the channel are under way while the rank works. */
static bool overlaps(const StepClock *c, const ClockChannel *k)
{
    return c->cluster->overlaps && !(c->cluster->serial & axis_bit(k->time));
}

/* All members have begun it: it starts after the transfer before it. */
static void start_flight(ClockChannel *k, ClockFlight *f)
{
    f->start_s = f->ready_s;
    if (k->free_s > f->start_s) {
        f->start_s = k->free_s;
        memcpy(f->path, k->path, sizeof f->path);
    }
    f->end_s = f->start_s + f->seconds;
    f->path[k->time] += f->seconds;
    k->free_s = f->end_s;
    memcpy(k->path, f->path, sizeof k->path);
}

static double at_least_1(double factor) { return factor > 1 ? factor : 1; }

static Err play_begin(StepClock *c, TapePlayer *p, const ClockEvent *e)
{
    ClockChannel *k = &c->channel[e->channel];
    const bool hides = overlaps(c, k);
    double seconds = clock_seconds(c, p, e);
    TRY(reserve_flight(c, k, e->number));
    if (e->number >= k->n) k->n = e->number + 1;
    ClockFlight *f = &k->flight[e->number];
    p->host_s += clock_calls(c, k) * cluster_launch_s(c->cluster, k->group.n);
    const double late = p->host_s > p->now_s ? p->host_s - p->now_s : 0;
    if (f->begun++ == 0 || p->now_s + late > f->ready_s) {
        f->ready_s = p->now_s + late;
        memcpy(f->path, p->path, sizeof f->path);
        f->path[TIME_HOST] += late;
    }
    if (e->hidden && hides) seconds *= at_least_1(c->cluster->slow_transfer);
    if (k->share && hides) seconds *= k->share[e->number];
    if (seconds > f->seconds) f->seconds = seconds;
    f->kind = c->price[e->price].kind;
    f->bytes = c->price[e->price].bytes;
    if (f->begun == k->members && hides) start_flight(k, f);
    return OK;
}

/* The rank carries out the transfer itself, from the moment at which all members have begun it. */
static void carry_out(TapePlayer *p, const ClockChannel *k, const ClockFlight *f)
{
    const double before = p->now_s;
    if (f->ready_s > p->now_s) {
        p->now_s = f->ready_s;
        memcpy(p->path, f->path, sizeof p->path);
    }
    p->now_s += f->seconds;
    p->path[k->time] += f->seconds;
    p->spent[k->time] += p->now_s - before;
}

/* Work beside a transfer is slower; the time that this adds is that of the transfer's axis. */
static void slow_down(const StepClock *c, TapePlayer *p, const ClockChannel *k,
                      const ClockFlight *f)
{
    const double end = f->end_s < p->now_s ? f->end_s : p->now_s;
    const double beside = end > f->start_s ? end - f->start_s : 0;
    const double more = (at_least_1(c->cluster->slow_work) - 1) * beside;
    p->now_s += more;
    p->spent[k->time] += more;
    p->path[k->time] += more;
}

/* Ranks exchange loss and norm when the last stage is done: the wait for it is the pipeline's. */
static void move_bubble(const StepClock *c, TapePlayer *p, const ClockFlight *f, double before)
{
    const unsigned pp = mesh_axes(c->in->mesh, VIEW_DENSE, "pp");
    if (f->ready_s <= before || mesh_parts(c->in->mesh, VIEW_DENSE, pp) == 1) return;
    p->spent[TIME_UPDATE] -= f->ready_s - before;
    p->spent[TIME_PP] += f->ready_s - before;
}

static bool can_wait(const StepClock *c, const ClockEvent *e)
{
    const ClockChannel *k = &c->channel[e->channel];
    return e->number < k->n && k->flight[e->number].begun == k->members;
}

/* All members have begun the transfer. */
static Err play_wait(const StepClock *c, TapePlayer *p, const ClockEvent *e)
{
    const ClockChannel *k = &c->channel[e->channel];
    const ClockFlight *f = &k->flight[e->number];
    const double before = p->now_s;
    if (!overlaps(c, k)) {
        carry_out(p, k, f);
    } else {
        slow_down(c, p, k, f);
        if (f->end_s > p->now_s) {
            p->spent[k->time] += f->end_s - p->now_s;
            p->now_s = f->end_s;
            memcpy(p->path, f->path, sizeof p->path);
        }
    }
    if (k->purpose == PURPOSE_SCALAR) move_bubble(c, p, f, before);
    if (c->cluster->stops_host & axis_bit(k->time) && p->now_s > p->host_s) p->host_s = p->now_s;
    return clock_span_wait(c, p, e, before);
}

/* A kernel starts after the one before it, and after its launch. */
static Err play_work(const StepClock *c, TapePlayer *p, const ClockEvent *e)
{
    const double seconds = clock_seconds(c, p, e);
    const int launches = 1 + (e->time == TIME_ATTENTION ? c->in->attention_launches : 0);
    p->host_s += launches * c->cluster->host_launch_s;
    const double late = p->host_s > p->now_s ? p->host_s - p->now_s : 0;
    p->spent[TIME_HOST] += late;
    p->path[TIME_HOST] += late;
    p->now_s += late + seconds;
    p->spent[e->time] += seconds;
    p->path[e->time] += seconds;
    return clock_span_work(c, p, e, late);
}

/* Plays a tape until it blocks or ends; *moved is set if it plays an event. */
static Err play_tape(StepClock *c, TapePlayer *p, bool *moved)
{
    for (; p->at < p->tape->n; p->at++) {
        const ClockEvent *e = &p->tape->event[p->at];
        if (e->event == EVENT_WORK) {
            TRY(play_work(c, p, e));
        } else if (e->event == EVENT_BEGIN) {
            TRY(play_begin(c, p, e));
        } else if (can_wait(c, e)) {
            TRY(play_wait(c, p, e));
        } else {
            return OK;
        }
        *moved = true;
    }
    return OK;
}

static Err stuck(const StepClock *c, const TapePlayer *player)
{
    int i = 0;
    while (player[i].at == player[i].tape->n) i++;
    const ClockEvent *e = &player[i].tape->event[player[i].at];
    const ClockChannel *k = &c->channel[e->channel];
    return err_fail(ERR_CHECK,
                    "simulate: rank %d waits for transfer %d of %d ranks from %d to %d, which some "
                    "of them never begin; this is a bug of Sheaf",
                    player[i].tape->rank, e->number, k->group.n, k->group.rank[0],
                    k->group.rank[k->group.n - 1]);
}

static void add_up(const StepClock *c, const TapePlayer *player, StepTime *out)
{
    for (int i = 0; i < c->n_tapes; i++)
        if (player[i].now_s > out->step_s || i == 0) {
            out->step_s = player[i].now_s;
            memcpy(out->path_s, player[i].path, sizeof out->path_s);
        }
    for (int i = 0; i < c->n_tapes; i++) {
        for (int k = 0; k < N_TIMES; k++) out->spent_s[k] += player[i].spent[k] / c->parts[i];
        out->spent_s[TIME_IDLE] += (out->step_s - player[i].now_s) / c->parts[i];
    }
    out->played = c->n_tapes;
    out->model_flops = c->model_flops * c->in->mesh->world / c->n_tapes;
}

/* Forgets the transfers of an earlier play. */
static void rewind_channels(StepClock *c)
{
    for (int i = 0; i < c->n_channels; i++) {
        ClockChannel *k = &c->channel[i];
        if (k->n) memset(k->flight, 0, (size_t)k->n * sizeof *k->flight);
        memset(k->path, 0, sizeof k->path);
        k->free_s = 0;
        k->n = 0;
    }
}

/* Plays all tapes from the begin of the step to its end. */
static Err play_once(StepClock *c)
{
    rewind_channels(c);
    for (int i = 0; i < c->n_tapes; i++)
        c->player[i] = (TapePlayer){
            .tape = &c->tape[i], .speed = cost_device(&c->cluster->rates, c->tape[i].rank).speed};
    for (bool done = false; !done;) {
        bool moved = false;
        done = true;
        for (int i = 0; i < c->n_tapes; i++) {
            TRY(play_tape(c, &c->player[i], &moved));
            done = done && c->player[i].at == c->player[i].tape->n;
        }
        if (!done && !moved) return stuck(c, c->player);
    }
    return OK;
}

/* Plays once without sharing, unwatched, to find the flows that share links. */
static Err play_shared(StepClock *c)
{
    const ClockWatch *watch = c->watch;
    c->watch = NULL;
    TRY(play_once(c));
    c->watch = watch;
    const size_t mark = arena_mark(c->arena); /* a second play needs no more flights */
    TRY(clock_find_shares(c));
    TRY(play_once(c));
    arena_rewind(c->arena, mark);
    return OK;
}

Err clock_play(StepClock *c, const Cluster *cluster, StepTime *out)
{
    const JobSettings *job = c->in->job;
    const unsigned dp = mesh_axes(c->in->mesh, VIEW_DENSE, "dp");
    StepTime time = {.tokens = (int64_t)job->micros * job->batch.sequences * job->batch.seq_len *
                               mesh_parts(c->in->mesh, VIEW_DENSE, dp)};
    c->cluster = cluster;
    clock_price_all(c, cluster, c->seconds);
    for (int i = 0; i < c->n_channels; i++) c->channel[i].share = NULL;
    TRY(cluster->share_links ? play_shared(c) : play_once(c));
    for (int i = 0; i < c->n_channels; i++) c->channel[i].share = NULL;
    add_up(c, c->player, &time);
    *out = time;
    return OK;
}
