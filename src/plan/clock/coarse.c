/* coarse.c -- the coarse clock: stages take turns, and each plays RUNs of chunks until a
 * value of another stage is missing.
 *
 *     compute    | F0 units .. | wait | F1 units ..       | B1 ..      | norm  update
 *     gathers    gather.0 gather.1 ...                                      a queue each
 *     reduces                              reduce.7 reduce.6 ...
 *
 * Times do not depend on the turns, as in play.c. */
#include "plan/clock/coarse_parts.h"

#include <string.h>

static double later(double a, double b) { return a > b ? a : b; }

/* ---- transfers ---- */

static bool hides(const CoarseClock *c, TransferAxis axis)
{
    return c->in->cluster->overlaps && !(c->in->cluster->serial >> axis & 1);
}

static double at_least_1(double factor) { return factor > 1 ? factor : 1; }

CoarseFlight coarse_begin(const CoarseClock *c, TransferAxis axis, double now, double *free,
                          double seconds)
{
    CoarseFlight f = {.begun = now, .start = now, .seconds = seconds};
    if (hides(c, axis)) {
        f.start = later(now, *free);
        f.seconds *= at_least_1(c->in->cluster->slow_transfer);
    }
    f.end = f.start + f.seconds;
    *free = f.end;
    return f;
}

double coarse_wait(const CoarseClock *c, CoarseStage *g, TransferAxis axis, const CoarseFlight *f)
{
    const Cluster *cluster = c->in->cluster;
    const double before = g->now;
    if (hides(c, axis)) {
        const double beside = (f->end < g->now ? f->end : g->now) - f->start;
        if (beside > 0) g->now += (at_least_1(cluster->slow_work) - 1) * beside;
        g->now = later(g->now, f->end);
    } else {
        g->now = later(g->now, f->begun) + f->seconds;
    }
    g->now += f->after_s;
    if (cluster->stops_host >> axis & 1) g->host = later(g->host, g->now);
    return g->now - before;
}

/* ---- values between stages ---- */

/* Both ends of a value's transfer have begun: it starts after the one before it on the link. */
static void fly(const CoarseClock *c, CoarseStage *to, int side, CoarseCell *cell, double seconds)
{
    cell->flight = coarse_begin(c, TRANSFER_PP, later(cell->sent, cell->posted),
                                &to->link_free[side], seconds);
    cell->arrived = cell->flight.end;
}

static CoarseCell *cell_of(const CoarseClock *c, const Action *a)
{
    const Schedule *s = c->in->moves;
    const int64_t at = ((int64_t)a->unit * s->micros + a->micro) * s->slices + a->slice;
    return &c->cell[at * N_DIRECTIONS + action_direction(a)];
}

/* The link of a stage to or from a peer. Two peers on one side have different directions. */
static int side_of(const Action *a, int stage)
{
    return 2 * action_direction(a) + (a->peer > stage);
}

static void await(const CoarseClock *c, CoarseStage *g, const CoarseCell *cell)
{
    g->spent.pp_s += coarse_wait(c, g, TRANSFER_PP, &cell->flight);
}

/* Posts the receives that stand before the next RUN: while the last unit's RUN is executed. */
static void post_receives(CoarseClock *c, int stage)
{
    CoarseStage *g = &c->stage[stage];
    const Schedule *s = c->in->moves;
    for (int i = g->at; i < s->n[stage] && s->list[stage][i].kind != A_RUN; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind != A_RECV) continue;
        CoarseCell *cell = cell_of(c, a);
        cell->posted = g->last_start;
        g->host += cluster_launch_s(c->in->cluster, 2);
        if (cell->sent != NEVER)
            fly(c, g, side_of(a, stage), cell, c->chunk[a->unit].send_s[action_direction(a)]);
    }
}

static bool play_send(CoarseClock *c, int stage, const Action *a)
{
    CoarseStage *g = &c->stage[stage];
    CoarseCell *cell = cell_of(c, a), **before = &g->sending[side_of(a, stage)];
    if (*before && (*before)->arrived == NEVER) return false;
    if (*before) await(c, g, *before);
    *before = cell;
    cell->sent = g->now;
    g->host += cluster_launch_s(c->in->cluster, 2);
    const Action back = {.phase = a->phase, .peer = (int16_t)stage};
    if (cell->posted != NEVER)
        fly(c, &c->stage[a->peer], side_of(&back, a->peer), cell,
            c->chunk[a->unit].send_s[action_direction(a)]);
    return true;
}

/* The value that a RUN of a chunk reads from another stage; NULL: none. */
static const CoarseCell *input_of(const CoarseClock *c, const Action *a, int stage)
{
    const Schedule *s = c->in->moves;
    const int maker = a->phase == PHASE_F ? a->unit - 1 : a->unit + 1;
    if (a->phase == PHASE_W || maker < 0 || maker == s->chunks || s->stage_of[maker] == stage)
        return NULL;
    Action from = *a;
    from.unit = (int16_t)maker;
    return cell_of(c, &from);
}

/* The value that the RUN reads the gradient of has been sent: that send is waited for first. */
static void end_own_send(CoarseClock *c, CoarseStage *g, const Action *a)
{
    Action forward = *a;
    forward.phase = PHASE_F;
    const CoarseCell *own = cell_of(c, &forward);
    for (int side = 0; side < 4 && a->phase != PHASE_F && a->phase != PHASE_W; side++)
        if (g->sending[side] == own) {
            await(c, g, own);
            g->sending[side] = NULL;
        }
}

/* ---- RUNs ---- */

/* The compute queue takes `seconds`, but no RUN ends before the host has launched it. */
static void take(CoarseStage *g, const RunSummary *run)
{
    g->host += run->host_s;
    const double end = g->now + run->seconds, late = g->host > end ? g->host - end : 0;
    g->now = end + late;
    g->spent.host_s += late;
    g->spent.tp_s += run->tp_s;
    g->spent.cp_s += run->cp_s;
    g->spent.work_s += run->seconds - run->tp_s - run->cp_s;
}

/* All units of a chunk whose packs are there and whose gradients are not reduced yet. */
static void play_plain(CoarseClock *c, CoarseStage *g, const Action *a)
{
    const CoarseChunk *k = &c->chunk[a->unit];
    const int at = a->slice * N_PHASES + a->phase;
    g->run += k->end - k->first;
    take(g, &k->sum[at]);
    g->last_start = g->now - k->last_s[at];
}

static void play_unit(CoarseClock *c, int stage, const Action *a, int unit)
{
    CoarseStage *g = &c->stage[stage];
    const UnitSummary *u = c->unit[unit];
    coarse_gather_ahead(c, stage);
    coarse_wait_packs(c, stage, unit, (Phase)a->phase);
    g->last_start = g->now;
    if (a->phase == PHASE_F && a->micro == 0 && a->slice == 0)
        take(g, &(RunSummary){.seconds = u->prepack_s});
    take(g, &u->run[a->slice * N_PHASES + a->phase]);
    coarse_end_use(c, stage, unit, (Phase)a->phase);
    coarse_reduce(c, stage, a, unit);
}

static bool play_run(CoarseClock *c, int stage, const Action *a)
{
    CoarseStage *g = &c->stage[stage];
    const CoarseChunk *k = &c->chunk[a->unit];
    const CoarseCell *input = input_of(c, a, stage);
    if (input && input->arrived == NEVER) return false;
    const bool plain = coarse_is_plain(c, stage, a);
    if (!plain) coarse_gather_ahead(c, stage);
    end_own_send(c, g, a);
    if (input) await(c, g, input);
    if (plain) {
        play_plain(c, g, a);
    } else if (a->phase == PHASE_F) {
        for (int u = k->first; u < k->end; u++) play_unit(c, stage, a, u);
    } else {
        for (int u = k->end - 1; u >= k->first; u--) play_unit(c, stage, a, u);
    }
    coarse_count(c, stage, a);
    return true;
}

/* ---- the step ---- */

static bool play_action(CoarseClock *c, int stage)
{
    CoarseStage *g = &c->stage[stage];
    const Action *a = &c->in->moves->list[stage][g->at];
    if (a->kind == A_SEND && !play_send(c, stage, a)) return false;
    if (a->kind == A_RUN && !play_run(c, stage, a)) return false;
    g->at++;
    if (a->kind == A_RUN) post_receives(c, stage);
    return true;
}

static Err play_stages(CoarseClock *c)
{
    const Schedule *s = c->in->moves;
    for (int stage = 0; stage < s->stages; stage++) post_receives(c, stage);
    for (bool moved = true, left = true; left;) {
        if (!moved)
            return err_fail(ERR_CHECK, "coarse clock: the stages of the schedule wait for each "
                                       "other; this is a bug of Sheaf");
        moved = left = false;
        for (int stage = 0; stage < s->stages; stage++) {
            while (c->stage[stage].at < s->n[stage] && play_action(c, stage)) moved = true;
            left = left || c->stage[stage].at < s->n[stage];
        }
    }
    return OK;
}

/* The stage's reductions that other stages take part in. */
static ReduceSummary late_reduce(const CoarseClock *c, int stage)
{
    const Schedule *s = c->in->moves;
    ReduceSummary sum = {0};
    for (int k = 0; k < s->chunks; k++)
        for (int u = c->chunk[k].first; s->stage_of[k] == stage && u < c->chunk[k].end; u++) {
            const ReduceSummary *r = &c->unit[u]->reduce[REDUCE_AFTER_LAST];
            if (!c->unit[u]->late) continue;
            sum.before_s += r->before_s;
            sum.begun_s += r->begun_s;
            sum.after_s += r->after_s;
        }
    return sum;
}

/* Reductions of parameters on several stages run when all RUNs of these stages have ended. Their
 * transfers follow the stage's other reductions. */
static void play_late(CoarseClock *c)
{
    double meet = 0;
    for (int stage = 0; stage < c->in->moves->stages; stage++) {
        const ReduceSummary r = late_reduce(c, stage);
        if (reduce_seconds(&r) > 0) meet = later(meet, c->stage[stage].now);
    }
    for (int stage = 0; stage < c->in->moves->stages; stage++) {
        CoarseStage *g = &c->stage[stage];
        const ReduceSummary r = late_reduce(c, stage);
        const double before = g->now;
        if (reduce_seconds(&r) == 0) continue;
        g->now = meet + r.before_s;
        if (hides(c, TRANSFER_DP)) g->now = later(g->now, g->reduce_free);
        g->now += r.begun_s + r.after_s;
        g->spent.dp_s += g->now - before;
    }
}

/* Sends, reductions, then the norm, which all stages wait for, and the update. */
static void play_end(CoarseClock *c)
{
    const Schedule *s = c->in->moves;
    double meet = 0;
    for (int stage = 0; stage < s->stages; stage++) {
        CoarseStage *g = &c->stage[stage];
        for (int side = 0; side < 4; side++)
            if (g->sending[side]) await(c, g, g->sending[side]);
    }
    play_late(c);
    for (int stage = 0; stage < s->stages; stage++) {
        CoarseStage *g = &c->stage[stage];
        coarse_end_reduces(c, stage);
        g->now += g->norm_s;
        g->spent.update_s += g->norm_s;
        meet = later(meet, g->now);
    }
    const double exchange = coarse_norm_seconds(c);
    for (int stage = 0; stage < s->stages; stage++) {
        CoarseStage *g = &c->stage[stage];
        g->spent.pp_s += meet - g->now;
        g->spent.update_s += exchange + g->update_s;
        g->now = meet + exchange + g->update_s;
    }
}

static void add_up(const CoarseClock *c, CoarseTime *out)
{
    const int n = c->in->moves->stages;
    double most = -1;
    *out = (CoarseTime){0};
    for (int i = 0; i < n; i++) out->step_s = later(out->step_s, c->stage[i].now);
    for (int i = 0; i < n; i++) {
        const CoarseStage *g = &c->stage[i];
        const double busy = g->spent.work_s + g->spent.tp_s + g->spent.cp_s;
        out->work_s += g->spent.work_s / n;
        out->tp_s += g->spent.tp_s / n;
        out->cp_s += g->spent.cp_s / n;
        out->dp_s += g->spent.dp_s / n;
        out->pp_s += g->spent.pp_s / n;
        out->host_s += g->spent.host_s / n;
        out->update_s += g->spent.update_s / n;
        out->idle_s += (out->step_s - g->now) / n;
        if (busy > most) out->slowest = i;
        most = later(most, busy);
        if (g->peak_bytes > out->peak_bytes) out->peak_stage = i;
        if (g->peak_bytes > out->peak_bytes) out->peak_bytes = g->peak_bytes;
        if (g->least_bytes > out->least_bytes) out->least_bytes = g->least_bytes;
    }
}

Err clock_coarse_step(const CoarseInput *in, Arena *temp, CoarseTime *out)
{
    const size_t mark = arena_mark(temp);
    CoarseClock c = {.in = in};
    TRY(coarse_open(&c, temp));
    TRY(play_stages(&c));
    play_end(&c);
    add_up(&c, out);
    arena_rewind(temp, mark);
    return OK;
}
