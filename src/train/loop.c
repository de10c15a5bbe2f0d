/* loop.c -- the training loop of one rank: opens its parts, runs steps, reports and saves. */
#define _DEFAULT_SOURCE
#include "train/loop.h"

#include <math.h>
#include <stdarg.h>
#include "base/clock.h"
#include "train/loop_parts.h"
#include "train/resume.h"

Err train_bytes(const Job *job, const Job *valid, SaveMemory save_memory, Arena *temp, int64_t *out)
{
    const ProgramSet set = {valid ? 2 : 1, {&job->linked, valid ? &valid->linked : NULL}};
    int64_t bytes;
    TRY(saver_bytes(&job->linked, job->linked.rank, save_memory, temp, &bytes));
    for (int a = 0; a < N_ARENAS; a++) bytes += (int64_t)program_set_bytes(&set, (ArenaId)a);
    for (int i = 0; i < set.n; i++) bytes += (int64_t)set.program[i]->pinned_bytes;
    *out = bytes;
    return OK;
}

void loop_warn(const TrainLoop *l, const char *format, ...)
{
    FILE *to = l->s->warn ? l->s->warn : stderr;
    char text[1024]; /* one write per warning: other ranks write to the same stream */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(to, "%ssheaf: WARNING: %s\n", l->s->terminal ? "\n" : "", text);
    fflush(to);
}

static Err too_many_skips(const TrainLoop *l, const Metrics *m)
{
    return err_fail(
        ERR_CHECK,
        "step %lld: the loss is %g, the gradient norm is %g, and the %d steps before were "
        "skipped too, so the weights no longer change; try a lower "
        "optim.lr (now %.3g), a longer optim.warmup, optim.clip=1%s",
        (long long)m->step, m->loss, m->grad_norm, MAX_SKIPS - 1, l->s->lr.lr,
        l->s->job->settings.optim.skip > 0 ? ", or a larger optim.skip" : "");
}

/* A run that has ended without changing the weights. Its checkpoint before is kept. */
static Err nothing_learned(const TrainLoop *l, const Metrics *m)
{
    const int64_t steps = m->step - l->first.step;
    return err_fail(
        ERR_CHECK,
        "step %lld: the loss is %g, the gradient norm is %g, and %s of this run changed "
        "the weights; are the numbers of the data finite? Else try a lower optim.lr "
        "(now %.3g) or a longer optim.warmup",
        (long long)m->step, m->loss, m->grad_norm, steps == 1 ? "no step" : "none of the steps",
        l->s->lr.lr);
}

static void record_result(TrainLoop *l, const Metrics *m)
{
    TrainResult *out = &l->result;
    out->first = l->first.step + 1;
    if (m->step == out->first) out->first_loss = m->loss;
    out->last_loss = m->loss;
    out->steps = m->step;
    out->tokens = m->tokens;
    out->tokens_here = m->tokens - l->first.tokens;
    if (m->has_valid) out->has_valid = true, out->valid_loss = m->valid_loss;
}

/* No save while steps are skipped: if the run ends because of them, its restart must repeat
 * them. */
static bool is_save_due(const TrainLoop *l)
{
    const int64_t every = l->s->save.every;
    const bool by_steps = every > 0 && l->at.step % every == 0;
    return (by_steps || l->due) && l->skips == 0;
}

/* True if a rank was asked to stop, or rank 0 cannot write its logs. Ranks of a launcher get the
 * same signal, but not at the same step: the signal is the mean of those that arrived. */
static bool is_stop(TrainLoop *l)
{
    const StepSums *sums = l->sums;
    if (sums->stops > 0) l->result.stop_signal = (int)(sums->signals / sums->stops);
    return sums->stops > 0 || sums->unlogged > 0;
}

static Err run_steps(TrainLoop *l)
{
    const TrainSettings *s = l->s;
    bool stop = false;
    l->save_began_s = now_s();
    while (l->at.step < s->lr.steps && !stop) {
        Metrics m;
        TRY(loop_step(l, &m));
        stop = is_stop(l);
        l->due |= l->sums->due > 0;
        const bool last = m.step == s->lr.steps;
        const bool due = s->valid_every && (m.step % s->valid_every == 0 || last);
        m.has_valid = s->valid_job && due && !stop; /* a launcher may grant only a second */
        if (m.has_valid) TRY(loop_validate(l, &m.valid_loss));
        if (loop_is_first(l)) {
            loop_write_step(l, &m);
            loop_update_plan(l);
        }
        record_result(l, &m);
        if (l->skips == MAX_SKIPS)
            return world_agree(s->world, too_many_skips(l, &m)); /* the same on all ranks */
        if (last && !isfinite(m.loss) && l->skips == m.step - l->first.step)
            return world_agree(s->world, nothing_learned(l, &m));
        if (s->check_every && m.step % s->check_every == 0) /* before a faulty copy is saved */
            TRY(replicas_check(&l->replicas, s->world, m.step));
        TRY(loop_advance_save(l));
        if (!last && !stop && !is_save_due(l)) continue;
        TRY(loop_save(l));
        l->due = false;
    }
    TRY(loop_drain_saver(l));
    TRY(world_agree(s->world, loop_log_error(l))); /* of rank 0 */
    l->result.stopped = l->at.step < s->lr.steps;
    if (l->result.stopped && s->terminal && loop_is_first(l)) fputc('\n', s->out);
    return OK;
}

static Err open_ranks(TrainLoop *l)
{
    const TrainSettings *s = l->s;
    RankSettings set = {.program = &s->job->linked,
                        .device = s->device,
                        .ordinal = s->world->rank,
                        .deterministic = s->deterministic,
                        .capture = s->capture,
                        .capture_transfers = s->capture_transfers,
                        .comm = s->world->comm,
                        .team = s->team,
                        .optim = s->job->settings.optim,
                        .watch = s->world->status ? &s->world->status->watch : NULL,
                        .trace = s->trace                ? &s->trace->events
                                 : l->plan.trace.cap > 0 ? &l->plan.trace
                                                         : NULL};
    l->programs = (ProgramSet){s->valid_job ? 2 : 1,
                               {&s->job->linked, s->valid_job ? &s->valid_job->linked : NULL}};
    set.set = &l->programs;
    TRY(ARENA_NEW(s->world->arena, 1, &l->sums));
    TRY(comm_register(s->world->comm, ARENA_LOOP, l->sums, sizeof *l->sums));
    TRY(rank_open(&l->rank, &set));
    TRY(rank_init_weights(&l->rank, s->seed));
    if (!s->valid_job) return OK;
    set.program = &s->valid_job->linked;
    set.number = 1;
    set.state_of = &l->rank;         /* the same weights, not a copy */
    if (!s->trace) set.trace = NULL; /* the plan is that of a step */
    set.capture = false;             /* a graph would keep its memory between validations */
    return rank_open(&l->valid, &set);
}

/* Kernels are recorded on the host, if the user records no trace of all steps. */
static Err open_plan(TrainLoop *l)
{
    const TrainSettings *s = l->s;
    if (s->unplanned) return OK;
    return step_plan_open(&l->plan, s->job, s->cluster, !s->device->runtime && !s->trace);
}

double train_loop_plan(const TrainLoop *l, bool *measures)
{
    *measures = l->plan.trace.cap > 0;
    return l->plan.predicted_s;
}

static Err open_files(TrainLoop *l)
{
    const TrainSettings *s = l->s;
    const MetricsSettings set = {s->dir, s->tensorboard, l->at.step};
    TRY(metrics_open(&l->sinks, &set));
    return samples_open(&l->samples, s->train, s->dir, s->log_samples, l->at.step);
}

/* Opens everything up to the first step. Each part may fail on one rank only, so all ranks agree
 * after it. */
static Err open_loop(TrainLoop *l, TrainStart *start)
{
    const TrainSettings *s = l->s;
    int64_t bytes = 0;
    const SaveMemory memory = s->save.folder ? save_memory(s->save.every) : SAVE_MEMORY_NONE;
    Err err = train_bytes(s->job, s->valid_job, memory, s->world->arena, &bytes);
    if (err == OK && loop_is_first(l)) err = open_plan(l);
    if (err == OK) err = open_ranks(l);
    TRY(world_agree(s->world, err));
    *l->sums = (StepSums){.bytes = (double)bytes};
    TRY(loop_add_up(l, REDUCE_MAX));
    l->result.peak_bytes = (int64_t)l->sums->bytes;
    TRY(resume_run(l, start));
    TRY(resume_init(l, start));
    start->at = l->first = l->at;
    l->result.steps = l->at.step;
    l->result.was_done = start->done = l->at.step >= s->lr.steps;
    if (start->done) return OK;
    TRY(loop_autotune(l, start));
    err = loop_open_saver(l);
    if (err == OK && s->check_every)
        err = replicas_open(&l->replicas, &l->rank, s->world->ranks, s->world->arena);
    return world_agree(s->world, err);
}

Err train_loop_open(const TrainSettings *s, TrainLoop **out, TrainStart *start)
{
    TrainLoop *l;
    TrainResult result;
    TRY(world_agree(s->world, ARENA_NEW(s->world->arena, 1, &l)));
    l->s = s;
    l->peak = s->peak_flops;
    l->opened_s = now_s();
    const Err err = open_loop(l, start);
    if (err != OK) train_loop_close(l, err, &result);
    *out = l;
    return err;
}

Err train_loop_run(TrainLoop *l)
{
    if (l->result.was_done) return OK;
    TRY(world_agree(l->s->world, loop_is_first(l) ? open_files(l) : OK));
    TRY(run_steps(l));
    return loop_close_logs(l);
}

void train_loop_close(TrainLoop *l, Err err, TrainResult *out)
{
    l->result.seconds = now_s() - l->opened_s;
    l->result.peak_flops = l->peak;
    world_leave(l->s->world, err);
    if (l->saver) saver_close(l->saver);
    rank_close(&l->valid);
    rank_close(&l->rank);
    step_plan_close(&l->plan);
    *out = l->result;
}

Err train_loop(const TrainSettings *s, TrainResult *out)
{
    TrainLoop *l;
    TrainStart start;
    *out = (TrainResult){0};
    TRY(train_loop_open(s, &l, &start));
    const Err err = train_loop_run(l);
    train_loop_close(l, err, out);
    return err;
}
