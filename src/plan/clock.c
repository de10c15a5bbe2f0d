/* clock.c -- makes a tape for each rank that is played, and plays them together.
 *
 * A tape runs until it waits for a transfer that some member has not begun; then the next tape
 * runs. Begins never block and times depend on no order of playing, so the order is free. Each tape
 * carries the critical path that led to its present time: a wait that is not over takes the path of
 * the transfer, which came from the member that began it last. */
#include "plan/clock_parts.h"

#include <string.h>

const char *time_kind_name(TimeKind kind)
{
    static const char *const name[N_TIMES] = {[TIME_GEMM] = "gemm",
                                              [TIME_ATTENTION] = "attention",
                                              [TIME_POINTWISE] = "pointwise",
                                              [TIME_HOST] = "host",
                                              [TIME_TP] = "tp",
                                              [TIME_CP] = "cp",
                                              [TIME_DP] = "dp",
                                              [TIME_PP] = "pp",
                                              [TIME_UPDATE] = "update",
                                              [TIME_IDLE] = "idle"};
    return name[kind];
}

/* A tape while it is played. */
typedef struct {
    const ClockTape *tape;
    int at;
    double now_s;
    double spent[N_TIMES], path[N_TIMES];
} TapePlayer;

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

/* All members have begun it: it starts after the transfer before it. */
static void start_flight(ClockChannel *k, ClockFlight *f)
{
    double start = f->ready_s;
    if (k->free_s > start) {
        start = k->free_s;
        memcpy(f->path, k->path, sizeof f->path);
    }
    f->end_s = start + f->seconds;
    f->path[k->time] += f->seconds;
    k->free_s = f->end_s;
    memcpy(k->path, f->path, sizeof k->path);
}

static Err play_begin(StepClock *c, const TapePlayer *p, const ClockEvent *e)
{
    ClockChannel *k = &c->channel[e->channel];
    TRY(reserve_flight(c, k, e->number));
    if (e->number >= k->n) k->n = e->number + 1;
    ClockFlight *f = &k->flight[e->number];
    if (f->begun++ == 0 || p->now_s > f->ready_s) {
        f->ready_s = p->now_s;
        memcpy(f->path, p->path, sizeof f->path);
    }
    if (e->seconds > f->seconds) f->seconds = e->seconds;
    if (f->begun == k->members && c->in->cluster->overlaps) start_flight(k, f);
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

/* Returns false if a member has not begun the transfer. */
static bool play_wait(const StepClock *c, TapePlayer *p, const ClockEvent *e)
{
    const ClockChannel *k = &c->channel[e->channel];
    if (e->number >= k->n || k->flight[e->number].begun < k->members) return false;
    const ClockFlight *f = &k->flight[e->number];
    if (!c->in->cluster->overlaps) {
        carry_out(p, k, f);
    } else if (f->end_s > p->now_s) {
        p->spent[k->time] += f->end_s - p->now_s;
        p->now_s = f->end_s;
        memcpy(p->path, f->path, sizeof p->path);
    }
    return true;
}

/* Plays a tape until it blocks or ends; *moved is set if it plays an event. */
static Err play_tape(StepClock *c, TapePlayer *p, bool *moved)
{
    for (; p->at < p->tape->n; p->at++) {
        const ClockEvent *e = &p->tape->event[p->at];
        if (e->event == EVENT_WORK) {
            p->now_s += e->seconds;
            p->spent[e->time] += e->seconds;
            p->path[e->time] += e->seconds;
        } else if (e->event == EVENT_BEGIN) {
            TRY(play_begin(c, p, e));
        } else if (!play_wait(c, p, e)) {
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
        for (int k = 0; k < N_TIMES; k++) out->spent_s[k] += player[i].spent[k] / c->n_tapes;
        out->spent_s[TIME_IDLE] += (out->step_s - player[i].now_s) / c->n_tapes;
    }
    out->played = c->n_tapes;
    out->model_flops = c->model_flops * c->in->mesh->world / c->n_tapes;
}

static Err play(StepClock *c, StepTime *out)
{
    TapePlayer *player;
    TRY(ARENA_NEW(c->arena, c->n_tapes, &player));
    for (int i = 0; i < c->n_tapes; i++) player[i].tape = &c->tape[i];
    for (bool done = false; !done;) {
        bool moved = false;
        done = true;
        for (int i = 0; i < c->n_tapes; i++) {
            TRY(play_tape(c, &player[i], &moved));
            done = done && player[i].at == player[i].tape->n;
        }
        if (!done && !moved) return stuck(c, player);
    }
    add_up(c, player, out);
    return OK;
}

/* True if ranks that differ only along dp have equal positions on the machine: every axis either
 * divides the blocks of the levels or is made of whole ones. */
static bool is_aligned(const Mesh *mesh, const CostRates *r)
{
    const View *v = &mesh->view[VIEW_DENSE];
    int64_t stride = 1;
    for (int axis = v->n_axes - 1; axis > 0; axis--) {
        stride *= v->size[axis];
        for (int l = 0; l < r->n_levels - 1; l++)
            if (stride % r->level[l].ranks != 0 && r->level[l].ranks % stride != 0) return false;
    }
    return true;
}

/* True if tp divides everything that it shards: then all ranks along it have equal shapes. */
static bool is_even(const JobSettings *job, int tp)
{
    const ModelConfig *c = job->config;
    const int64_t rows = job->batch.sequences * job->batch.seq_len;
    return c->n_heads % tp == 0 && c->n_kv_heads % tp == 0 && c->ff_width % tp == 0 &&
           c->vocab % tp == 0 && (!job->parallel.sequence || rows % tp == 0);
}

/* The axes along which one rank, with coordinate 0, is played for all. */
static unsigned shared_axes(const ClockInput *in)
{
    const unsigned dp = mesh_axes(in->mesh, VIEW_DENSE, "dp");
    const unsigned tp = mesh_axes(in->mesh, VIEW_DENSE, "tp");
    if (in->every_rank || !is_aligned(in->mesh, &in->cluster->rates)) return 0;
    return is_even(in->job, mesh_parts(in->mesh, VIEW_DENSE, tp)) ? dp | tp : dp;
}

/* Assigns tapes: ranks that differ along shared axes alone have one. */
static Err assign_tapes(StepClock *c)
{
    const Mesh *mesh = c->in->mesh;
    const unsigned shared = shared_axes(c->in);
    TRY(ARENA_NEW(c->arena, mesh->world, &c->tape_of));
    TRY(ARENA_NEW(c->arena, mesh->world, &c->tape));
    for (int rank = 0; rank < mesh->world; rank++) {
        const int first = shared ? mesh_move(mesh, VIEW_DENSE, shared, 0, rank) : rank;
        if (first == rank) c->tape[c->n_tapes++].rank = rank;
        c->tape_of[rank] = first == rank ? c->n_tapes - 1 : c->tape_of[first];
    }
    return OK;
}

static Err record_tapes(StepClock *c, Arena *temp)
{
    Job *shared;
    TRY(ARENA_NEW(temp, 1, &shared));
    TRY(job_share(c->in->job, temp, shared));
    const size_t mark = arena_mark(temp);
    for (int i = 0; i < c->n_tapes; i++) {
        Job *job;
        TRY(ARENA_NEW(temp, 1, &job));
        TRY(job_compile_rank(shared, c->tape[i].rank, temp, job));
        TRY(clock_record(c, &job->linked, temp, &c->tape[i]));
        arena_rewind(temp, mark);
    }
    return OK;
}

Err clock_step(const ClockInput *in, Arena *arena, Arena *temp, StepTime *out)
{
    const size_t mark = arena_mark(arena), temp_mark = arena_mark(temp);
    const JobSettings *job = in->job;
    const unsigned dp = mesh_axes(in->mesh, VIEW_DENSE, "dp");
    StepClock c = {.in = in, .arena = arena};
    StepTime time = {.tokens = (int64_t)job->micros * job->batch.sequences * job->batch.seq_len *
                               mesh_parts(in->mesh, VIEW_DENSE, dp)};
    TRY(assign_tapes(&c));
    TRY(record_tapes(&c, temp));
    TRY(play(&c, &time));
    arena_rewind(arena, mark);
    arena_rewind(temp, temp_mark);
    *out = time;
    return OK;
}
