/* world.c -- thread-ranks that run a job, and the assembly of their pieces. */
#include "support/expect.h"
#include "support/world.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"
#include "comm/local/local.h"
#include "comm/nccl.h"
#include "schedule/traffic.h"
#include "job/batch.h"

typedef struct {
    const World *w;
    CommWorld *world;
    WorldResult *out;
    pthread_mutex_t *lock;
    bool *held; /* [elements] held by a rank, so far */
    Arena arena;
    Job job, valid_job;
    Rank rank, valid;
    Comm *comm;
    Team *team;
    void *staging[N_PARTS]; /* [longest piece] */
    double sum;             /* ARENA_LOOP */
    int number;             /* of the rank */
    Err err;
    char text[2048];
} Worker;

World world_of(JobSettings set)
{
    return (World){.set = set, .device = &device_ref, .steps = 5, .lr = 1e-2, .without = -1};
}

/* Copies a part of a piece to host memory (`staging`, as long as the longest piece), and back. */
static Err fetch(Worker *k, const RankPiece *p, ParamPart part, Tensor *out)
{
    *out = rank_piece_data(&k->rank, p, part);
    const void *at = out->data;
    out->data = k->staging[part];
    return rank_read(&k->rank, at, (size_t)out->n[0] * dtype_bytes(out->dtype), out->data);
}

static Err store(Worker *k, const RankPiece *p, ParamPart part, const Tensor *x)
{
    return rank_write(&k->rank, rank_piece_data(&k->rank, p, part).data,
                      (size_t)x->n[0] * dtype_bytes(x->dtype), x->data);
}

static Err open_staging(Worker *k)
{
    const Model *m = &k->job.model;
    int64_t most = 1;
    for (int p = 0; p < m->n_params; p++)
        most = m->param[p].count > most ? m->param[p].count : most;
    for (int i = 0; i < N_PARTS; i++)
        TRY(arena_push(&k->arena, (size_t)most * sizeof(double), &k->staging[i]));
    return OK;
}

/* 0.4 times a normal number by element of the whole, plus 1 for parameters that start at 1. */
static Err fill_weights(Worker *k)
{
    const Model *m = &k->job.model;
    for (int u = 0; u < m->n_packs; u++)
        for (int i = 0; i < rank_pieces(&k->rank, u); i++) {
            const RankPiece piece = rank_piece(&k->rank, u, i);
            const Param *p = &m->param[piece.param];
            const Random random = random_named(5, p->name);
            Tensor w, moment;
            TRY(fetch(k, &piece, PART_MASTER, &w));
            for (int64_t e = 0; e < w.n[0]; e++) {
                const int64_t global = rank_piece_global(&piece, e);
                const double about = p->info.init == INIT_ONES ? 1.0 : 0.0;
                real_set(&w, e, about + 0.4 * random_normal(&random, (uint64_t)global));
            }
            TRY(store(k, &piece, PART_MASTER, &w));
            for (int part = 0; part < k->job.linked.n_moments; part++) {
                TRY(fetch(k, &piece, (ParamPart)(PART_MOMENT1 + part), &moment));
                for (int64_t e = 0; e < moment.n[0]; e++) real_set(&moment, e, 0.0);
                TRY(store(k, &piece, (ParamPart)(PART_MOMENT1 + part), &moment));
            }
        }
    return OK;
}

static void fill_batches(const Worker *k, Rank *r, int step)
{
    const World *w = k->w;
    const BatchSplit split = batch_split(&k->job);
    for (int m = 0; m < w->set.micros; m++) {
        const BatchPart part = batch_part(&split, INT64_MAX / 2, m);
        const int number = (int)(part.first / split.each);
        TestBatch b = test_job_batch(&k->job.settings, number + 16 * step);
        if (w->pattern) b.rows = k->job.model.rows;
        if (w->rows && number == w->numbers - 1) b.rows = w->rows;
        if (w->numbers && number >= w->numbers) b.rows = 0;
        rank_fill_batch(r, m, &b);
        for (int64_t i = 0; number == w->without && i < b.rows; i++) rank_put_weight(r, m, i, 0.0);
    }
}

static Err put(Worker *k, int64_t at, double *cell, double x, const char *what)
{
    if (!k->held[at])
        *cell = x;
    else if (memcmp(cell, &x, sizeof x) != 0)
        return err_fail(ERR_CHECK, "rank %d has %.17g of %s, another has %.17g", k->number, x, what,
                        *cell);
    return OK;
}

static Err collect_piece(Worker *k, const RankPiece *piece)
{
    const int parts = k->job.linked.n_moments ? N_PARTS : PART_MOMENT1;
    const int64_t first = k->out->at[piece->param];
    Tensor held[N_PARTS];
    for (int part = PART_MASTER; part < parts; part++)
        TRY(fetch(k, piece, (ParamPart)part, &held[part]));
    for (int64_t e = 0; e < piece->hi - piece->lo; e++) {
        const int64_t at = first + rank_piece_global(piece, e);
        for (int part = PART_MASTER; part < parts; part++) {
            TRY(put(k, at, &k->out->part[part][at], real_get(&held[part], e),
                    k->job.model.param[piece->param].name));
        }
        k->held[at] = true;
    }
    return OK;
}

static Err collect(Worker *k)
{
    const Recorder *r = comm_recorder(k->comm);
    WorldResult *out = k->out;
    for (int u = 0; u < k->job.model.n_packs; u++)
        for (int i = 0; i < rank_pieces(&k->rank, u); i++) {
            const RankPiece piece = rank_piece(&k->rank, u, i);
            TRY(collect_piece(k, &piece));
        }
    for (int kind = 0; kind < N_COMM_KINDS; kind++)
        out->sent[kind] += (int64_t)r->of_kind[kind].sent_bytes;
    out->scalars_sent += (int64_t)r->scalars.sent_bytes;
    out->delays += k->rank.n_delays;
    out->captured += k->rank.capture.n_captured;
    out->launched += k->rank.capture.n_launched;
    return OK;
}

static void find_top(Worker *k)
{
    for (int a = 0; rank_on_host(&k->rank) && a < N_ARENAS; a++) {
        size_t *top = &k->out->top[k->number][a];
        for (*top = k->job.linked.bytes[a]; *top > 0; --*top)
            if ((unsigned char)k->rank.base[a][*top - 1] != k->w->pattern) break;
    }
}

static Err note_step(Worker *k, int step, const StepResult *r)
{
    WorldResult *out = k->out;
    const bool first = out->live[step] < 0;
    if (first) {
        out->loss[step] = r->loss;
        out->norm[step] = r->grad_norm;
        out->live[step] = r->live_tokens;
    }
    if (memcmp(&out->loss[step], &r->loss, sizeof r->loss) != 0 ||
        memcmp(&out->norm[step], &r->grad_norm, sizeof r->loss) != 0 ||
        out->live[step] != r->live_tokens)
        return err_fail(ERR_CHECK,
                        "step %d: rank %d: loss %.17g, norm %.17g, %lld tokens; another: %.17g, "
                        "%.17g, %lld",
                        step, k->number, r->loss, r->grad_norm, (long long)r->live_tokens,
                        out->loss[step], out->norm[step], (long long)out->live[step]);
    return OK;
}

/* Validates twice, with a training step between: the two ranks take turns on one comm. */
static Err validate(Worker *k, const RankSettings *as)
{
    RankSettings set = *as;
    StepResult r;
    set.program = &k->valid_job.linked;
    set.state_of = &k->rank;
    TRY(rank_open(&k->valid, &set));
    for (int a = 0; a < N_ARENAS; a++)
        if ((a != ARENA_STEP) != (k->valid.base[a] == k->rank.base[a]))
            return err_fail(ERR_CHECK, "arena %d of validation has another address", a);
    if (k->w->autotune) TRY(rank_autotune(&k->valid));
    for (int i = 0; i < 2; i++) {
        fill_batches(k, &k->valid, WORLD_STEPS + i);
        TRY(rank_step(&k->valid, &(StepSettings){.step = 1}, &r));
        if (i == 0) {
            fill_batches(k, &k->rank, k->w->steps);
            StepResult between;
            TRY(rank_step(&k->rank, &(StepSettings){.step = k->w->steps + 1, .lr = k->w->lr},
                          &between));
        }
        pthread_mutex_lock(k->lock);
        if (k->number == 0) k->out->valid_loss += r.loss;
        pthread_mutex_unlock(k->lock);
    }
    return OK;
}

/* The sum of 1 over all ranks, in the group and purpose of train/step.c. */
static Err add_up(Worker *k)
{
    int32_t all[MAX_WORLD];
    const Ref at = {k->number, ARENA_LOOP, 0, 1, F64};
    for (int i = 0; i < k->out->ranks; i++) all[i] = i;
    const Transfer t = {.kind = COMM_ALL_REDUCE,
                        .group = {k->out->ranks, all},
                        .from = at,
                        .to = at,
                        .instr = -1,
                        .scalar = true};
    k->sum = 1;
    TRY(comm_do(k->comm, &t));
    return k->sum == k->out->ranks ? OK : err_fail(ERR_CHECK, "%g ranks add up", k->sum);
}

static Err work(Worker *k)
{
    const World *w = k->w;
    const CommSettings comm = {.rank = k->number,
                               .ranks = k->out->ranks,
                               .in_flight = 64,
                               .records = 64,
                               .hostile = w->hostile,
                               .staged = w->staged,
                               .seed = w->seed,
                               .timeout_s = 60};
    TRY(comm_join(k->world, &k->arena, &comm, &k->comm));
    if (w->nccl) TRY(nccl_attach(w->nccl, k->comm));
    if (w->threads) TRY(team_open(&k->team, w->threads, NULL));
    const RankSettings set = {.program = &k->job.linked,
                              .device = w->device,
                              .comm = k->comm,
                              .team = k->team,
                              .optim = w->set.optim,
                              .poison = !w->pattern,
                              .jitter = {w->jitter_s, w->seed},
                              .capture = w->capture,
                              .capture_transfers = w->nccl,
                              .late = !w->device->runtime}; /* a device has late queues instead */
    TRY(rank_open(&k->rank, &set));
    if (w->opened) w->opened(&k->rank);
    if (w->sums) TRY(comm_register(k->comm, ARENA_LOOP, &k->sum, sizeof k->sum));
    for (int i = 0; i < N_ARENAS; i++)
        TRY(rank_fill(&k->rank, k->rank.base[i], w->pattern ? w->pattern : 0xFF,
                      k->job.linked.bytes[i]));
    TRY(open_staging(k));
    if (w->init)
        TRY(rank_init_weights(&k->rank, 11));
    else
        TRY(fill_weights(k));
    if (w->autotune) TRY(rank_autotune(&k->rank));
    for (int s = 0; s < w->steps; s++) {
        StepResult r;
        fill_batches(k, &k->rank, s);
        TRY(rank_step(&k->rank, &(StepSettings){.step = s + 1, .lr = w->lr}, &r));
        TRY(comm_idle(k->comm));
        if (w->sums) TRY(add_up(k));
        pthread_mutex_lock(k->lock);
        const Err err = note_step(k, s, &r);
        pthread_mutex_unlock(k->lock);
        TRY(err);
    }
    find_top(k);
    if (w->validate) TRY(validate(k, &set));
    pthread_mutex_lock(k->lock);
    const Err err = collect(k);
    pthread_mutex_unlock(k->lock);
    TRY(err);
    return comm_quiet(k->comm); /* before this rank frees its memory */
}

static void *worker_main(void *worker)
{
    Worker *k = worker;
    k->err = work(k);
    snprintf(k->text, sizeof k->text, "%s", k->err == OK ? "" : err_text());
    if (k->err != OK && k->comm) comm_abort(k->comm, k->err, k->text);
    if (k->comm) comm_close(k->comm);
    rank_close(&k->valid);
    rank_close(&k->rank);
    team_close(k->team);
    return NULL;
}

/* Compiles the programs of a rank. Ranks are compiled one after another. */
static Err compile(Worker *k)
{
    JobSettings set = k->w->set;
    set.parallel.rank = k->number;
    set.note_freed = !k->w->pattern;
    TRY(arena_open(&k->arena, "rank", ARENA_PLENTY));
    TRY(job_compile(&set, &k->arena, &k->job));
    if (k->w->change) TRY(k->w->change(&k->job, &k->arena));
    set.kind = JOB_LOSS;
    if (k->w->validate) TRY(job_compile(&set, &k->arena, &k->valid_job));
    memcpy(k->out->bytes[k->number], k->job.linked.bytes, sizeof k->job.linked.bytes);
    Traffic traffic;
    ChannelCount channels;
    TRY(linked_traffic(&k->job.linked, &traffic));
    TRY(linked_channels(&k->job.linked, &k->arena, &channels));
    k->out->channels += channels.groups + channels.pairs;
    for (int i = 0; i < traffic.n; i++) {
        int64_t *sum = traffic.row[i].scalar ? &k->out->scalars_predicted : &k->out->predicted;
        *sum += k->w->steps * (int64_t)traffic.row[i].sent_bytes;
    }
    return OK;
}

static Err result_open(const World *w, const Mesh *mesh, WorldResult *out)
{
    Model *m;
    *out = (WorldResult){.ranks = mesh->world};
    TRY(arena_open(&out->arena, "world", ARENA_PLENTY));
    TRY(ARENA_NEW(&out->arena, 1, &m));
    TRY(model_build(w->set.config, w->set.dtype, w->set.batch, &out->arena, m));
    if (w->reshape) w->reshape(m);
    TRY(ARENA_NEW(&out->arena, m->n_params + 1, &out->at));
    for (int p = 0; p < m->n_params; p++) out->at[p + 1] = out->at[p] + m->param[p].count;
    out->elements = out->at[m->n_params];
    for (int part = 0; part < N_PARTS; part++)
        TRY(ARENA_NEW(&out->arena, out->elements, &out->part[part]));
    for (int s = 0; s < WORLD_STEPS; s++) out->live[s] = -1;
    out->model = m;
    return OK;
}

static Err run_threads(Worker *worker, int n)
{
    pthread_t thread[MAX_WORLD];
    for (int i = 0; i < n; i++)
        if (pthread_create(&thread[i], NULL, worker_main, &worker[i]) != 0)
            return err_fail(ERR_NOMEM, "no thread for rank %d", i);
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++)
        if (worker[i].err != OK && worker[i].err != ERR_PEER)
            return err_fail(worker[i].err, "rank %d: %s", i, worker[i].text);
    for (int i = 0; i < n; i++)
        if (worker[i].err != OK) return err_fail(worker[i].err, "rank %d: %s", i, worker[i].text);
    return OK;
}

static Err run_all(const World *w, WorldResult *out, Worker *worker)
{
    pthread_mutex_t lock;
    bool *held;
    pthread_mutex_init(&lock, NULL);
    TRY(ARENA_NEW(&out->arena, out->elements, &held));
    for (int i = 0; i < out->ranks; i++) {
        worker[i] = (Worker){.w = w, .out = out, .lock = &lock, .held = held, .number = i};
        TRY(compile(&worker[i]));
    }
    const Job *job = &worker[0].job;
    for (int p = 0; p < job->model.n_packs; p++)
        out->gathered += job->gathers[p].gathers * job->linked.pack[p].mine.pack_count;
    CommWorld *world;
    TRY(local_start(out->ranks, &world));
    for (int i = 0; i < out->ranks; i++) worker[i].world = world;
    const Err err = run_threads(worker, out->ranks);
    comm_world_stop(world);
    TRY(err);
    for (int64_t i = 0; i < out->elements; i++)
        if (!held[i]) return err_fail(ERR_CHECK, "no rank has element %lld at home", (long long)i);
    return OK;
}

Err world_run_job(const World *w, WorldResult *out)
{
    Mesh mesh;
    Worker *worker;
    TRY(mesh_sized(&w->set.parallel.mesh, &mesh));
    MUST(mesh.world <= MAX_WORLD && w->steps <= WORLD_STEPS, "%d ranks", mesh.world);
    TRY(model_config_check(w->set.config));
    TRY(result_open(w, &mesh, out));
    worker = calloc((size_t)mesh.world, sizeof *worker);
    const Err err = run_all(w, out, worker);
    for (int i = 0; i < mesh.world; i++)
        if (worker[i].arena.base) arena_close(&worker[i].arena);
    free(worker);
    return err;
}

void world_result_close(WorldResult *r) { arena_close(&r->arena); }

static double largest(const WorldResult *r, int param, ParamPart part)
{
    double most = 0;
    for (int64_t i = r->at[param]; i < r->at[param + 1]; i++)
        most = fmax(most, fabs(r->part[part][i]));
    return most;
}

double world_differ(const WorldResult *a, const WorldResult *b, ParamPart part)
{
    double worst = 0, of_all = 0;
    for (int p = 0; p < a->model->n_params; p++) of_all = fmax(of_all, largest(a, p, part));
    for (int p = 0; p < a->model->n_params; p++) {
        const double scale = fmax(largest(a, p, part), 1e-4 * of_all);
        for (int64_t i = a->at[p]; i < a->at[p + 1]; i++) {
            const double off = fabs(a->part[part][i] - b->part[part][i]);
            if (!isfinite(off)) return HUGE_VAL;
            if (off > 0) worst = fmax(worst, off / scale);
        }
    }
    return worst;
}

bool world_equal(const WorldResult *a, const WorldResult *b, char what[128])
{
    for (int s = 0; s < WORLD_STEPS; s++)
        if (a->live[s] != b->live[s] || memcmp(&a->loss[s], &b->loss[s], sizeof(double)) != 0 ||
            memcmp(&a->norm[s], &b->norm[s], sizeof(double)) != 0 ||
            memcmp(&a->valid_loss, &b->valid_loss, sizeof(double)) != 0) {
            snprintf(what, 128, "step %d: loss %.17g and %.17g, norm %.17g and %.17g", s,
                     a->loss[s], b->loss[s], a->norm[s], b->norm[s]);
            return false;
        }
    for (int part = PART_MASTER; part < N_PARTS; part++)
        for (int p = 0; p < a->model->n_params; p++)
            for (int64_t i = a->at[p]; i < a->at[p + 1]; i++)
                if (memcmp(&a->part[part][i], &b->part[part][i], sizeof(double)) != 0) {
                    snprintf(what, 128, "part %d of %.40s[%lld]: %.17g and %.17g", part,
                             a->model->param[p].name, (long long)(i - a->at[p]), a->part[part][i],
                             b->part[part][i]);
                    return false;
                }
    return true;
}

static double relative(double a, double b)
{
    const double off = fabs(a - b);
    return off <= 0 ? 0 : isfinite(off) ? off / fmax(fabs(a), fabs(b)) : HUGE_VAL;
}

double world_differ_all(const WorldResult *a, const WorldResult *b)
{
    double worst = relative(a->valid_loss, b->valid_loss);
    for (int s = 0; s < WORLD_STEPS; s++) {
        if (a->live[s] != b->live[s]) return HUGE_VAL;
        worst = fmax(worst, relative(a->loss[s], b->loss[s]));
        worst = fmax(worst, relative(a->norm[s], b->norm[s]));
    }
    for (int part = PART_MASTER; part < N_PARTS; part++)
        worst = fmax(worst, world_differ(a, b, (ParamPart)part));
    return worst;
}

void world_peaks_are_exact(const char *name, World w)
{
    static const unsigned char pattern[2] = {0x5A, 0xA5};
    size_t top[MAX_WORLD][N_ARENAS] = {{0}};
    WorldResult r;
    w.steps = 1;
    w.set.dtype = F32;
    for (int p = 0; p < 2; p++) {
        w.pattern = pattern[p];
        DO(world_run_job(&w, &r));
        for (int rank = 0; rank < r.ranks; rank++)
            for (int a = 0; a < N_ARENAS; a++)
                if (align_up(r.top[rank][a]) > top[rank][a])
                    top[rank][a] = align_up(r.top[rank][a]);
        if (p == 0) world_result_close(&r);
    }
    for (int rank = 0; rank < r.ranks; rank++)
        for (int a = 0; a < N_ARENAS; a++)
            if (top[rank][a] != r.bytes[rank][a])
                fail_msg("%s: rank %d, arena %d: %zu bytes touched, %zu predicted", name, rank, a,
                         top[rank][a], r.bytes[rank][a]);
    world_result_close(&r);
}
