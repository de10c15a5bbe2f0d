/* loop.c -- the loop, one rank. */
#define _DEFAULT_SOURCE
#include "train/loop.h"

#include <math.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double instr_flops(const Instr *i)
{
    const bool attention = i->op == OP_attention || i->op == OP_attention_dx;
    if (i->again || op_info(i->op)->class != CLASS_HEAVY) return 0;
    return attention ? 0.5 * i->flops : i->flops;
}

double job_model_flops(const Job *job)
{
    double flops = 0;
    for (int i = 0; i < job->linked.n; i++) {
        const Linked *l = &job->linked.list[i];
        if (!l->program) continue;
        const Phase phase = (Phase)l->action.phase;
        for (int k = l->program->first[phase]; k < l->program->first[phase + 1]; k++)
            flops += instr_flops(&l->program->instr[k]);
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
                       .weight_type = weights.dtype};
}

/* `count` samples from the cursor on, dealt to micro-batches in order; the last may be short. */
static Err fill(const Job *job, const Dataset *data, Rank *r, int64_t cursor, int64_t count)
{
    const int64_t each = job->settings.batch.sequences, seq = job->settings.batch.seq_len;
    for (int m = 0; m < job->settings.micros; m++) {
        const int64_t left = count - m * each, n = left < 0 ? 0 : left < each ? left : each;
        const InputRows in = rows_of(r, m);
        for (int64_t i = 0; i < n; i++)
            TRY(dataset_fill(data, dataset_sample(data, cursor + m * each + i),
                             job->settings.config->window, &in, i * seq));
        rank_set_rows(r, m, n * seq);
    }
    return OK;
}

typedef struct {
    const TrainSettings *s;
    Rank rank, valid;
    MetricsFiles files;
    double peak, mean_s; /* of recent steps, without validation */
    TrainResult result;
} Loop;

/* Held-out samples in the order of their own cursor, the same every time. */
static Err validate(Loop *l, double *loss)
{
    const TrainSettings *s = l->s;
    const int64_t batch = s->valid_job->settings.batch.sequences * s->valid_job->settings.micros;
    const int64_t all = s->valid->n_samples < s->valid_limit ? s->valid->n_samples : s->valid_limit;
    double sum = 0;
    int64_t live = 0;
    for (int64_t at = 0; at < all; at += batch) {
        StepResult r;
        TRY(fill(s->valid_job, s->valid, &l->valid, at, all - at < batch ? all - at : batch));
        TRY(rank_step(&l->valid, &(StepSettings){.step = 1}, &r));
        sum += r.loss_sum;
        live += r.live_tokens;
    }
    *loss = live ? sum / (double)live : 0;
    return OK;
}

int64_t train_bytes(const Job *job, const Job *valid)
{
    int64_t bytes = 0;
    for (int a = 0; a < N_ARENAS; a++) {
        bytes += (int64_t)job->linked.bytes[a];
        if (valid && a != ARENA_STATE) bytes += (int64_t)valid->linked.bytes[a];
    }
    return bytes;
}

/* Rows that this step's micro-batches have, of those that they have room for. */
static double live_share(const Loop *l)
{
    int64_t live = 0;
    const int micros = l->s->job->settings.micros;
    for (int m = 0; m < micros; m++) live += l->rank.live_rows[m];
    return (double)live / ((double)micros * (double)l->s->job->model.rows);
}

static double utilization(Loop *l, double step_s)
{
    const double rate = live_share(l) * job_model_flops(l->s->job) / step_s;
    if (rate > l->peak) l->peak = rate; /* then the measured peak was too low */
    return rate / l->peak;
}

static Err one_step(Loop *l, int64_t step, Metrics *m)
{
    const TrainSettings *s = l->s;
    StepResult r;
    const double before = now_s();
    TRY(fill(s->job, s->train, &l->rank, (step - 1) * s->global, s->global));
    const double lr = lr_at(&s->lr, step);
    TRY(rank_step(&l->rank, &(StepSettings){step, lr}, &r));
    const double took = now_s() - before;
    l->result.tokens += r.live_tokens;
    l->mean_s = step == 1 ? took : 0.9 * l->mean_s + 0.1 * took;
    *m = (Metrics){.step = step,
                   .steps = s->lr.steps,
                   .loss = r.loss,
                   .grad_norm = r.grad_norm,
                   .lr = lr,
                   .tokens = l->result.tokens,
                   .step_ms = 1e3 * took,
                   .tokens_per_s = (double)r.live_tokens / took,
                   .mfu = utilization(l, took),
                   .peak_bytes = train_bytes(s->job, s->valid_job)};
    return OK;
}

/* Nothing good comes after: said at once, with all that was measured on disk. */
static Err not_finite(const Loop *l, const Metrics *m)
{
    if (l->s->terminal) fputc('\n', l->s->out);
    return err_fail(ERR_CHECK,
                    "step %lld: the loss is %g; the weights of the step before made it so: try a "
                    "lower optim.lr "
                    "(now %.3g), a longer optim.warmup, or optim.clip=1",
                    (long long)m->step, m->loss, l->s->lr.lr);
}

static Err run_steps(Loop *l)
{
    const TrainSettings *s = l->s;
    TrainResult *out = &l->result;
    for (int64_t step = 1; step <= s->lr.steps && !(s->stop && *s->stop); step++) {
        Metrics m;
        TRY(one_step(l, step, &m));
        m.has_valid =
            s->valid_job && s->valid_every && (step % s->valid_every == 0 || step == s->lr.steps);
        if (m.has_valid) TRY(validate(l, &m.valid_loss));
        TRY(metrics_write(&l->files, &m));
        metrics_line(s->out, s->terminal, &m, l->mean_s * (double)(s->lr.steps - step));
        if (step == 1) out->first_loss = m.loss;
        out->last_loss = m.loss;
        out->steps = step;
        if (!isfinite(m.loss)) return not_finite(l, &m);
        if (m.has_valid) out->has_valid = true, out->valid_loss = m.valid_loss;
    }
    out->stopped = out->steps < s->lr.steps;
    if (out->stopped && s->terminal) fputc('\n', s->out);
    return OK;
}

static Err open_ranks(Loop *l)
{
    const TrainSettings *s = l->s;
    RankSettings set = {.program = &s->job->linked,
                        .device = s->device,
                        .comm = s->comm,
                        .team = s->team,
                        .optim = s->job->settings.optim};
    TRY(rank_open(&l->rank, &set));
    TRY(rank_init_weights(&l->rank, s->seed));
    if (!s->valid_job) return OK;
    set.program = &s->valid_job->linked;
    set.comm = NULL;
    set.state_of = &l->rank; /* the same weights, not a copy */
    return rank_open(&l->valid, &set);
}

Err train_run(const TrainSettings *s, TrainResult *out)
{
    Loop l = {.s = s, .peak = s->peak_flops};
    const double start = now_s();
    l.result.peak_bytes = train_bytes(s->job, s->valid_job);
    Err err = metrics_open(&l.files, s->dir, s->tensorboard);
    if (err == OK) err = open_ranks(&l);
    if (err == OK) err = run_steps(&l);
    if (err == OK) err = metrics_close(&l.files);
    l.result.seconds = now_s() - start;
    l.result.peak_flops = l.peak;
    rank_close(&l.valid);
    rank_close(&l.rank);
    *out = l.result;
    return err;
}
