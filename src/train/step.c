/* step.c -- one step: fills the inputs, runs the linked program, sums the results over ranks. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>

#include "job/batch.h"
#include "base/clock.h"
#include "base/text.h"
#include "cost/cost.h"
#include "ir/pairs.h"
#include "train/loop_parts.h"
#include "world/scalars.h"

/* Attention is all heavy, and its flops depend on the slice. */
static double model_flops(const LinkedProgram *lp, const LinkedAction *l, const Instr *i)
{
    if (i->recomputed) return 0;
    return op_attends(i->op) ? linked_flops(lp, l, l->program, i) : cost_model_flops(l->program, i);
}

double job_model_flops(const Job *job)
{
    double flops = 0;
    for (int i = 0; i < job->linked.n; i++) {
        const LinkedAction *l = &job->linked.list[i];
        if (!l->program) continue;
        const Phase phase = (Phase)l->action.phase;
        for (int k = l->program->first[phase]; k < l->program->first[phase + 1]; k++)
            flops += model_flops(&job->linked, l, &l->program->instr[k]);
    }
    return flops;
}

static InputRows rows_of(Rank *r, int micro)
{
    const Tensor weights = rank_input(r, micro, INPUT_WEIGHTS);
    return (InputRows){.tokens = rank_input(r, micro, INPUT_TOKENS).data,
                       .targets = rank_input(r, micro, INPUT_TARGETS).data,
                       .positions = rank_input(r, micro, INPUT_POSITIONS).data,
                       .ranges = rank_input(r, micro, INPUT_RANGES).data,
                       .weights = weights.data,
                       .weight_type = weights.dtype,
                       .held = r->settings.program->input_rows};
}

/* Micro-batches of clips have all their rows; those that the batch lacks have weight 0. */
static Err fill_clips(const Job *job, const Dataset *data, Rank *r, int64_t cursor, int64_t count)
{
    const BatchSplit split = batch_split(job);
    const ModelConfig *c = job->settings.config;
    for (int m = 0; m < split.micros; m++) {
        const BatchPart part = batch_part(&split, count, m);
        const ClipRows in = clip_rows(r, m);
        for (int64_t i = 0; i < split.each; i++) {
            if (i < part.n)
                TRY(dataset_fill_clip(data, cursor + part.first + i, &in, i));
            else
                clip_fill_padding(c, &in, i);
        }
        rank_set_rows(r, m, split.each * c->max_positions);
    }
    return OK;
}

Err loop_fill(const Job *job, const Dataset *data, Rank *r, int64_t cursor, int64_t count)
{
    if (dataset_has_clips(data)) return fill_clips(job, data, r, cursor, count);
    const BatchSplit split = batch_split(job);
    const int64_t seq = job->settings.batch.seq_len;
    for (int m = 0; m < split.micros; m++) {
        const BatchPart part = batch_part(&split, count, m);
        const InputRows in = rows_of(r, m);
        for (int64_t i = 0; i < part.n; i++)
            TRY(dataset_fill(data, dataset_sample(data, cursor + part.first + i),
                             job->settings.config->window, &in, i * seq));
        rank_set_rows(r, m, part.n * seq);
    }
    return OK;
}

Err loop_add_up(TrainLoop *l, Reduce reduce)
{
    return world_reduce(l->s->world, ARENA_LOOP, N_SUMS, F64, reduce);
}

size_t loop_sent_bytes(const TrainLoop *l)
{
    const Recorder *r = comm_recorder(l->s->world->comm);
    size_t sum = 0;
    for (int k = 0; k < N_COMM_KINDS; k++) sum += r->of_kind[k].sent_bytes;
    return sum;
}

/* Live rows of this step's micro-batches, as a share of their capacity. */
static double live_share(const TrainLoop *l)
{
    int64_t live = 0;
    const int micros = l->s->job->settings.micros;
    for (int m = 0; m < micros; m++) live += l->rank.live_rows[m];
    return (double)live / ((double)micros * (double)l->s->job->model.rows);
}

/* Flops per second of all ranks, as a share of their GEMM peaks. */
static double utilization(TrainLoop *l, double step_s)
{
    const double rate = l->sums->flops / step_s / l->s->world->ranks;
    if (rate > l->peak) l->peak = rate; /* the measured peak was too low */
    return rate / l->peak;
}

static Err gather_sums(TrainLoop *l)
{
    const TrainSettings *s = l->s;
    const size_t sent = loop_sent_bytes(l);
    const int asked = s->stop ? *s->stop : 0;
    *l->sums = (StepSums){.stops = asked != 0,
                          .signals = asked,
                          .unlogged = loop_log_error(l) != OK,
                          .due = loop_save_time(l),
                          .sent_bytes = (double)(sent - l->sent_before),
                          .rounds = (double)(l->rank.rounds.n - l->rounds_before),
                          .flops = live_share(l) * job_model_flops(s->job),
                          .released = team_releases(s->team) > 0};
    l->sent_before = sent;
    l->rounds_before = l->rank.rounds.n;
    loop_add_save_state(l, l->sums);
    if (s->trace) trace_take(s->trace, comm_recorder(s->world->comm));
    return loop_add_up(l, REDUCE_SUM);
}

static void advance(TrainLoop *l, const StepResult *r)
{
    l->at.step++;
    l->at.cursor += l->s->global;
    l->at.tokens += r->live_tokens;
    l->at.skipped += r->skipped;
    l->skips = r->skipped ? l->skips + 1 : 0;
}

/* Reports once that the device cannot capture steps; the step ran without capture. */
static void report_refusal(TrainLoop *l)
{
    const char *why = rank_capture_refused(&l->rank);
    if (!why || l->refusal_reported) return;
    l->refusal_reported = true;
    loop_warn(l, "steps are not captured as a graph but launched op by op: %s", why);
}

/* Rank 0, after its first step: the memory of NCCL, which the run's memory does not count. */
static void report_communicators(const TrainLoop *l, int64_t step)
{
    char bytes[24];
    const CommDeviceUse use = comm_device_use(l->s->world->comm);
    if (use.channels == 0 || !loop_is_first(l) || step != l->first.step + 1) return;
    fprintf(l->s->out, "NCCL: %d communicators on rank 0, %s of GPU memory beside the run's\n",
            use.channels, use.bytes < 0 ? "an unknown amount" : text_bytes(use.bytes, bytes));
}

/* Rank 0, after the sums: reports once for all ranks that a neighbor uses cores of the run
 * (run.pin=auto). */
static void report_release(TrainLoop *l)
{
    char ranks[64] = "";
    const int n = (int)l->sums->released, all = l->s->world->ranks;
    if (l->release_reported || n == 0 || !loop_is_first(l)) return;
    l->release_reported = true;
    if (all > 1) snprintf(ranks, sizeof ranks, ", on %d of its %d ranks", n, all);
    loop_warn(l,
              "another process uses a core of this run%s; threads are not pinned while it does "
              "(run.pin=true pins them in any case)",
              ranks);
}

/* Further rounds of the step, in all exchanges of all groups; -1: there can be none. */
static int64_t step_rounds(const TrainLoop *l)
{
    const ParallelSettings *p = &l->s->job->settings.parallel;
    const int ep = p->mesh.ep > 1 ? p->mesh.ep : 1, etp = p->mesh.etp > 1 ? p->mesh.etp : 1;
    return p->rounds ? (int64_t)(l->sums->rounds / (ep * etp) + 0.5) : -1;
}

/* Rank 0, at the first step of a burst of further rounds: it ends with QUIET steps without any. */
static void report_rounds(TrainLoop *l, const Metrics *m)
{
    enum { QUIET = 100 };
    const int64_t last = l->rounds_step;
    if (m->router.rounds <= 0) return;
    l->rounds_step = m->step;
    if (!loop_is_first(l) || (last && m->step - last <= QUIET)) return;
    loop_warn(l,
              "step %lld: rows of experts took %lld further round%s (parallel.overflow=rounds): "
              "each costs about the time of one exchange and its experts; a larger "
              "parallel.expert_rows, now %g, avoids them",
              (long long)m->step, (long long)m->router.rounds, m->router.rounds == 1 ? "" : "s",
              l->s->job->settings.parallel.expert_rows);
}

static const double *load_of(const void *rank, int layer)
{
    return (const double *)rank_stats(rank, layer) + 2;
}

/* The routers' statistics of the step, over all ranks. */
static RouterMetrics router_metrics(const Rank *rank)
{
    RouterMetrics r = {.load = load_of, .context = rank};
    r.experts = (int)rank->settings.program->stats - 2;
    for (const double *s; (s = rank_stats(rank, r.layers)); r.layers++) {
        double all = 0;
        for (int e = 0; e < r.experts; e++) all += s[2 + e];
        for (int e = 0; e < r.experts && all > 0; e++) {
            const double share = s[2 + e] * r.experts / all;
            if (share > r.max) r.max = share;
            if (share < r.min || (r.layers == 0 && e == 0)) r.min = share;
        }
        r.aux += s[0];
        r.z += s[1];
    }
    return r;
}

Err loop_step(TrainLoop *l, Metrics *m)
{
    const TrainSettings *s = l->s;
    StepResult r;
    const int64_t step = l->at.step + 1;
    const double before = now_s(), lr = lr_at(&s->lr, step);
    TRY(loop_fill(s->job, s->train, &l->rank, l->at.cursor, s->global));
    TRY(rank_step(&l->rank, &(StepSettings){step, lr, step - l->at.skipped}, &r));
    report_refusal(l);
    TRY(gather_sums(l));
    report_release(l);
    report_communicators(l, step);
    const double took = now_s() - before;
    advance(l, &r);
    l->mean_s = l->mean_s > 0 ? 0.9 * l->mean_s + 0.1 * took : took;
    *m = (Metrics){.step = step,
                   .steps = s->lr.steps,
                   .loss = r.loss,
                   .grad_norm = r.grad_norm,
                   .lr = lr,
                   .tokens = l->at.tokens,
                   .step_ms = 1e3 * took,
                   .predicted_ms = 1e3 * l->plan.predicted_s * live_share(l),
                   .tokens_per_s = (double)r.live_tokens / took,
                   .mfu = utilization(l, took),
                   .peak_bytes = l->result.peak_bytes,
                   .sent_bytes = (int64_t)l->sums->sent_bytes,
                   .skipped = r.skipped,
                   .router = router_metrics(&l->rank)};
    if (m->router.layers > 0 && r.live_tokens > 0) {
        m->router.aux /= (double)(m->router.layers * r.live_tokens);
        m->router.z /= (double)(m->router.layers * r.live_tokens);
    }
    m->router.rounds = step_rounds(l);
    report_rounds(l, m);
    return OK;
}

const char *loop_skip_reason(const Metrics *m)
{
    if (!m->skipped) return NULL;
    if (!isfinite(m->loss)) return "the loss is not finite";
    if (!isfinite(m->grad_norm)) return "the norm of the gradient is not finite";
    return "the norm of the gradient is larger than optim.skip";
}

/* The plan is an extra: an error ends it, not the run. */
void loop_update_plan(TrainLoop *l)
{
    const TrainSettings *s = l->s;
    double before_s;
    bool changed;
    if (!l->plan.open) return;
    if (step_plan_update(&l->plan, s->job, s->world->comm, &changed, &before_s) != OK) {
        loop_warn(l, "the time of a step is not planned again: %s", err_text());
        l->plan.open = false;
        return;
    }
    if (l->plan.steps < MEASURED_STEP || !changed) return;
    l->rank.settings.trace = NULL;
    fprintf(s->out, "%sstep time: planned %.4g ms, from the kernels of steps %lld to %lld",
            s->terminal ? "\n" : "", 1e3 * l->plan.predicted_s,
            (long long)l->at.step - MEASURED_STEPS + 1, (long long)l->at.step);
    if (before_s > 0) fprintf(s->out, "; %.4g ms before", 1e3 * before_s);
    fprintf(s->out, "\n");
}
