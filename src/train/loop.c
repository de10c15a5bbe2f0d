/* loop.c -- the loop, as one of its ranks runs it. */
#define _DEFAULT_SOURCE
#include "train/loop.h"

#include <math.h>
#include <time.h>
#include "train/batch.h"

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

/* Of `count` samples from the cursor on, those that are this rank's. */
static Err fill(const Job *job, const Dataset *data, Rank *r, int64_t cursor, int64_t count)
{
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

/* What the ranks add up after a step; all f64, so that one sum does. */
typedef struct {
    double stops; /* ranks that were asked to stop */
    double sent_bytes;
    double flops; /* of live rows */
    double bytes; /* of memory, before the first step */
} Sums;
enum { N_SUMS = sizeof(Sums) / sizeof(double), ARENA_LOOP = MAX_COMM_ARENAS - 1 };

typedef struct {
    const TrainSettings *s;
    Rank rank, valid;
    MetricsFiles files;
    Sums *sums;          /* registered as ARENA_LOOP */
    size_t sent_before;  /* this rank, up to the step before */
    double peak, mean_s; /* of recent steps, without validation */
    TrainResult result;
} Loop;

static bool is_first(const Loop *l) { return l->s->world->rank == 0; }

static Err add_up(Loop *l, Reduce reduce)
{
    const WorldRank *w = l->s->world;
    const Ref at = {w->rank, ARENA_LOOP, 0, N_SUMS, F64};
    const Transfer t = {.kind = COMM_ALL_REDUCE,
                        .reduce = reduce,
                        .group = w->all,
                        .from = at,
                        .to = at,
                        .instr = -1,
                        .scalar = true};
    return comm_do(w->comm, &t);
}

/* Bytes that left this rank, but for norms, losses and agreements. */
static size_t sent_bytes(const Loop *l)
{
    const Recorder *r = comm_recorder(l->s->world->comm);
    size_t sum = 0;
    for (int k = 0; k < N_COMM_KINDS; k++) sum += r->of_kind[k].sent_bytes;
    return sum;
}

/* Held-out samples in the order of their own cursor, the same every time. */
static Err validate(Loop *l, double *loss)
{
    const TrainSettings *s = l->s;
    const BatchSplit split = batch_split(s->valid_job);
    const int64_t batch = batch_room(&split);
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
    l->sent_before = sent_bytes(l); /* no step's */
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

/* Of the peaks of all ranks. */
static double utilization(Loop *l, double step_s)
{
    const double rate = l->sums->flops / step_s / l->s->world->ranks;
    if (rate > l->peak) l->peak = rate; /* then the measured peak was too low */
    return rate / l->peak;
}

static Err gather_sums(Loop *l)
{
    const TrainSettings *s = l->s;
    const size_t sent = sent_bytes(l);
    *l->sums = (Sums){.stops = s->stop && *s->stop,
                      .sent_bytes = (double)(sent - l->sent_before),
                      .flops = live_share(l) * job_model_flops(s->job)};
    l->sent_before = sent;
    if (s->trace) trace_take(s->trace, comm_recorder(s->world->comm));
    return add_up(l, REDUCE_SUM);
}

static Err one_step(Loop *l, int64_t step, Metrics *m)
{
    const TrainSettings *s = l->s;
    StepResult r;
    const double before = now_s();
    TRY(fill(s->job, s->train, &l->rank, (step - 1) * s->global, s->global));
    const double lr = lr_at(&s->lr, step);
    TRY(rank_step(&l->rank, &(StepSettings){step, lr}, &r));
    TRY(gather_sums(l));
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
                   .peak_bytes = l->result.peak_bytes,
                   .sent_bytes = (int64_t)l->sums->sent_bytes};
    return OK;
}

/* Nothing good comes after: said at once, with all that was measured on disk. */
static Err not_finite(const Loop *l, const Metrics *m)
{
    if (l->s->terminal && is_first(l)) fputc('\n', l->s->out);
    return err_fail(ERR_CHECK,
                    "step %lld: the loss is %g; the weights of the step before made it so: try a "
                    "lower optim.lr "
                    "(now %.3g), a longer optim.warmup, or optim.clip=1",
                    (long long)m->step, m->loss, l->s->lr.lr);
}

static Err tell(Loop *l, const Metrics *m)
{
    const TrainSettings *s = l->s;
    TRY(metrics_write(&l->files, m));
    metrics_line(s->out, s->terminal, m, l->mean_s * (double)(s->lr.steps - m->step));
    return OK;
}

static Err run_steps(Loop *l)
{
    const TrainSettings *s = l->s;
    TrainResult *out = &l->result;
    bool stop = false;
    for (int64_t step = 1; step <= s->lr.steps && !stop; step++) {
        Metrics m;
        TRY(one_step(l, step, &m));
        stop = l->sums->stops > 0;
        m.has_valid =
            s->valid_job && s->valid_every && (step % s->valid_every == 0 || step == s->lr.steps);
        if (m.has_valid) TRY(validate(l, &m.valid_loss));
        if (is_first(l)) TRY(tell(l, &m));
        if (step == 1) out->first_loss = m.loss;
        out->last_loss = m.loss;
        out->steps = step;
        if (!isfinite(m.loss)) return world_agree(s->world, not_finite(l, &m)); /* on all */
        if (m.has_valid) out->has_valid = true, out->valid_loss = m.valid_loss;
    }
    out->stopped = out->steps < s->lr.steps;
    if (out->stopped && s->terminal && is_first(l)) fputc('\n', s->out);
    return OK;
}

static Err open_ranks(Loop *l)
{
    const TrainSettings *s = l->s;
    RankSettings set = {.program = &s->job->linked,
                        .device = s->device,
                        .comm = s->world->comm,
                        .team = s->team,
                        .optim = s->job->settings.optim,
                        .watch = s->world->seat ? &s->world->seat->watch : NULL,
                        .trace = s->trace ? &s->trace->events : NULL};
    TRY(ARENA_NEW(s->world->arena, 1, &l->sums));
    TRY(comm_register(s->world->comm, ARENA_LOOP, l->sums, sizeof *l->sums));
    TRY(rank_open(&l->rank, &set));
    TRY(rank_init_weights(&l->rank, s->seed));
    if (!s->valid_job) return OK;
    set.program = &s->valid_job->linked;
    set.state_of = &l->rank; /* the same weights, not a copy */
    return rank_open(&l->valid, &set);
}

/* All that may fail on one rank alone; then all agree. */
static Err open_loop(Loop *l)
{
    const TrainSettings *s = l->s;
    Err err = is_first(l) ? metrics_open(&l->files, s->dir, s->tensorboard) : OK;
    if (err == OK) err = open_ranks(l);
    TRY(world_agree(s->world, err));
    *l->sums = (Sums){.bytes = (double)train_bytes(s->job, s->valid_job)};
    TRY(add_up(l, REDUCE_MAX));
    l->result.peak_bytes = (int64_t)l->sums->bytes;
    return OK;
}

Err train_run(const TrainSettings *s, TrainResult *out)
{
    Loop l = {.s = s, .peak = s->peak_flops};
    const double start = now_s();
    Err err = open_loop(&l);
    if (err == OK) err = run_steps(&l);
    if (err == OK) err = metrics_close(&l.files);
    l.result.seconds = now_s() - start;
    l.result.peak_flops = l.peak;
    world_leave(s->world, err);
    rank_close(&l.valid);
    rank_close(&l.rank);
    *out = l.result;
    return err;
}
