/* trial.c -- runs the ranks of a trial, and assembles their results. */
#include "verify/trial_parts.h"

#include <math.h>
#include <string.h>
#include "base/philox.h"
#include "ir/pairs.h"
#include "schedule/traffic.h"
#include "job/batch.h"

typedef struct {
    const TrialSettings *s;
    Trial *out;
    bool by_all;    /* ranks are processes */
    double *owners; /* [count] with by_all: 1 for elements of this rank */
    double *sent, *predicted, *bytes, *copies; /* [ranks] */
} TrialRun;

enum { RANK_NUMBERS = 4 };

static double element(const Tensor *t, int64_t i)
{
    return t->dtype == F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

/* True if a packed document begins at token i of the sequence: documents of 1 to about 8 tokens. */
static bool begins_document(const TrialSettings *s, int64_t sequence, int64_t i)
{
    const Random random = random_named(s->seed, "documents");
    const uint64_t at = (uint64_t)(sequence * s->job.batch.seq_len + i);
    return i == 0 || (s->documents && random_bits(&random, at) % 4 == 0);
}

/* The end of the document of token i. */
static int64_t document_end(const TrialSettings *s, int64_t sequence, int64_t i)
{
    do i++;
    while (i < s->job.batch.seq_len && !begins_document(s, sequence, i));
    return i;
}

/* Writes one sequence of the step to rows of a micro-batch, with the key ranges of the model's
 * mask. */
static void fill_sequence(Rank *r, const TrialSettings *s, int micro, int64_t row, int64_t sequence)
{
    const int64_t T = s->job.batch.seq_len, window = s->job.config->window;
    const uint64_t vocab = (uint64_t)s->job.config->vocab;
    const Random random = random_named(s->seed, "tokens");
    const bool blank = s->blank && sequence % s->global >= (s->global + 1) / 2;
    for (int64_t i = 0, from = 0; i < T; i++) {
        const uint64_t at = (uint64_t)(sequence * (T + 1) + i);
        if (begins_document(s, sequence, i)) from = i;
        const int64_t lo = window > 0 && i + 1 - from > window ? i + 1 - window : from;
        const int64_t hi = s->job.config->full_mask ? document_end(s, sequence, i) : i + 1;
        InputRow in = {.token = (int32_t)(random_bits(&random, at) % vocab),
                       .target = (int32_t)(random_bits(&random, at + 1) % vocab),
                       .position = (int32_t)(i - from),
                       .range = {(int32_t)(row + lo), (int32_t)(row + hi), 0, 0},
                       .weight = blank || at % 7 == 3 ? 0 : 1};
        if (s->edit) s->edit(s->context, sequence, i, &in);
        rank_put_row(r, micro, row + i, &in);
    }
}

void trial_fill(Rank *r, const Job *job, const TrialSettings *s, int64_t step)
{
    if (s->job.config->frames) {
        trial_fill_clips(r, job, s, step);
        return;
    }
    const BatchSplit split = batch_split(job);
    for (int m = 0; m < job->settings.micros; m++) {
        const BatchPart part = batch_part(&split, s->global, m);
        for (int64_t i = 0; i < part.n; i++)
            fill_sequence(r, s, m, i * s->job.batch.seq_len,
                          (step - 1) * s->global + part.first + i);
        rank_set_rows(r, m, part.n * s->job.batch.seq_len);
    }
}

/* True if the rank is the first of those with the same home. */
static bool is_first_copy(const LinkedProgram *lp, const PackMemory *p)
{
    const unsigned same = mesh_data_axes(lp->mesh, p->home.view) & ~p->home.shard;
    return mesh_part(lp->mesh, p->home.view, same, lp->rank) == 0;
}

/* True if this rank owns element `at` of the pack's home. */
static bool is_owned(const PackMemory *p, int64_t at)
{
    for (int i = 0; i < p->n_owned; i++)
        if (at >= p->owned[i].lo && at < p->owned[i].hi) return true;
    return false;
}

/* The piece in host memory; copied to `temp` if it is in device memory. */
static Err piece_here(const Rank *r, const RankPiece *p, ParamPart part, Arena *temp, Tensor *out)
{
    *out = rank_piece_data(r, p, part);
    const void *at = out->data;
    const size_t bytes = (size_t)out->n[0] * dtype_bytes(out->dtype);
    if (rank_on_host(r)) return OK;
    TRY(arena_push(temp, bytes, &out->data));
    return rank_read(r, at, bytes, out->data);
}

/* Writes the elements that this rank owns to the result. */
static Err assemble(const Rank *r, Arena *temp, const TrialRun *t)
{
    const LinkedProgram *lp = r->settings.program;
    Trial *out = t->out;
    for (int pack = 0; pack < lp->model->n_packs; pack++)
        for (int i = 0; i < rank_pieces(r, pack) && is_first_copy(lp, &lp->pack[pack]); i++) {
            const RankPiece p = rank_piece(r, pack, i);
            const size_t mark = arena_mark(temp);
            Tensor weight, gradient;
            TRY(piece_here(r, &p, PART_MASTER, temp, &weight));
            TRY(piece_here(r, &p, PART_GRAD, temp, &gradient));
            for (int64_t k = 0; k < p.hi - p.lo; k++) {
                const int64_t global = out->at[p.param] + rank_piece_global(&p, k);
                if (!is_owned(&lp->pack[pack], p.at + k)) continue;
                out->weight[global] = element(&weight, k);
                out->gradient[global] = element(&gradient, k);
                if (t->by_all) t->owners[global]++;
            }
            arena_rewind(temp, mark);
        }
    return OK;
}

/* Compares this rank's copies with the owners' values. */
static Err compare_copies(const Rank *r, const Trial *out, Arena *temp, double *most)
{
    const LinkedProgram *lp = r->settings.program;
    *most = 0;
    for (int pack = 0; pack < lp->model->n_packs; pack++)
        for (int i = 0; i < rank_pieces(r, pack); i++) {
            const RankPiece p = rank_piece(r, pack, i);
            const size_t mark = arena_mark(temp);
            Tensor weight;
            TRY(piece_here(r, &p, PART_MASTER, temp, &weight));
            for (int64_t k = 0; k < p.hi - p.lo; k++) {
                const double owner = out->weight[out->at[p.param] + rank_piece_global(&p, k)];
                const double gap = fabs(element(&weight, k) - owner);
                if (!(gap <= *most)) *most = isnan(gap) ? (double)INFINITY : gap;
            }
            arena_rewind(temp, mark);
        }
    return OK;
}

static double sent_bytes(const Comm *c)
{
    const Recorder *r = comm_recorder(c);
    double sent = 0;
    for (int k = 0; k < N_COMM_KINDS; k++) sent += (double)r->of_kind[k].sent_bytes;
    return sent;
}

/* Bytes that the programs send, without scalars, and those of the further rounds that the rank has
 * run. */
static Err predict_bytes(const Job *job, const Rank *r, int steps, double *out)
{
    Traffic traffic;
    TRY(linked_traffic(&job->linked, &traffic));
    *out = (double)r->rounds.sent_bytes;
    for (int i = 0; i < traffic.n; i++)
        if (!traffic.row[i].scalar) *out += steps * (double)traffic.row[i].sent_bytes;
    return OK;
}

/* Terms of each sum of an instruction: the extents of its inputs that its output does not have. */
static double summed_terms(const Program *p, const Instr *i)
{
    double in = 1, out = 1;
    if (op_info(i->op)->class != CLASS_HEAVY || op_loops(i->op)) return 1;
    if (op_visits(i->op)) return (double)i->attr.kernel.attention.span;
    const ProgTensor *a = &p->tensor[i->in[0]], *b = &p->tensor[i->in[1]],
                     *y = &p->tensor[i->out[0]];
    for (int d = 0; d < a->ndim; d++) in *= (double)a->dim[d].cap;
    for (int d = 0; d < b->ndim; d++) in *= (double)b->dim[d].cap;
    for (int d = 0; d < y->ndim; d++) out *= (double)y->dim[d].cap;
    return out > 0 ? sqrt(in / out) : 1; /* [m,k] [k,n] -> [m,n] */
}

/* See trial.h. */
static double rounding_bound(const Job *job)
{
    double terms = 0;
    for (int i = 0; i < job->linked.n; i++) {
        const LinkedAction *l = &job->linked.list[i];
        if (!l->program || l->action.micro > 0) continue;
        const Phase phase = (Phase)l->action.phase;
        for (int k = l->program->first[phase]; k < l->program->first[phase + 1]; k++)
            terms += summed_terms(l->program, &l->program->instr[k]);
    }
    return 8 * ldexp(1, -dtype_row(job->settings.dtype)->digits) * sqrt(terms);
}

static Err run_steps(Rank *r, const Job *job, TrialRun *t, WorldRank *w)
{
    const TrialSettings *s = t->s;
    double valid = 0;
    TRY(rank_init_weights(r, s->seed));
    for (int step = 1; step <= s->steps; step++) {
        StepResult result;
        trial_fill(r, job, s, step);
        TRY(rank_step(r, &(StepSettings){.step = step, .lr = s->lr}, &result));
        if (w->rank != 0) continue;
        t->out->loss[step - 1] = result.loss;
        t->out->norm[step - 1] = result.grad_norm;
    }
    if (w->rank == 0) t->out->bound = rounding_bound(job);
    t->sent[w->rank] = sent_bytes(w->comm);
    TRY(predict_bytes(job, r, s->steps, &t->predicted[w->rank]));
    TRY(trial_validate(w, job, s, r, t->out->choices, &valid));
    if (w->rank == 0) t->out->valid = valid;
    TRY(world_agree(w, assemble(r, w->arena, t))); /* all ranks have written theirs */
    if (t->by_all) TRY(trial_merge(w, t->out, t->owners));
    if (t->by_all && t->out->choices) TRY(choices_merge(w, t->out->choices));
    TRY(world_agree(w, compare_copies(r, t->out, w->arena, &t->copies[w->rank])));
    return t->by_all ? trial_merge_numbers(w, t->sent, (int64_t)RANK_NUMBERS * w->ranks) : OK;
}

static Err open_job(WorldRank *w, const TrialSettings *s, Job **out)
{
    JobSettings set = s->job;
    const int dp = (set.parallel.mesh.dp_replicate ? set.parallel.mesh.dp_replicate : 1) *
                   (set.parallel.mesh.dp_shard ? set.parallel.mesh.dp_shard : 1);
    set.parallel.rank = w->rank;
    set.micros = (int)batch_micros(s->global, set.batch.sequences, dp,
                                   set.parallel.fold ? set.parallel.fold : 1);
    TRY(ARENA_NEW(w->arena, 1, out));
    return job_compile(&set, w->arena, *out);
}

/* Threads of a process that was launched with others copy device memory themselves. */
static Err open_transport(WorldRank *w, const TrialRun *t)
{
    char text[TRANSPORT_BYTES];
    if (!t->s->transport || t->s->transport->processes != t->by_all) return OK;
    return transport_open(w, t->s->transport, text);
}

static Err try_rank(WorldRank *w, void *work)
{
    TrialRun *t = work;
    Rank rank = {0};
    Job *job;
    TRY(world_agree(w, open_job(w, t->s, &job)));
    for (int a = 0; a < N_ARENAS; a++) t->bytes[w->rank] += (double)job->linked.bytes[a];
    ChoiceRank routes = {t->out->choices, job, ROUTED_STEP, w->arena};
    const RankSettings set = {.program = &job->linked,
                              .device = t->s->device,
                              .ordinal = w->rank,
                              .deterministic = true,
                              .comm = w->comm,
                              .optim = job->settings.optim,
                              .poison = t->s->poison,
                              .observer = choices_observer(&routes)};
    TRY(open_transport(w, t));
    Err err = world_agree(w, rank_open(&rank, &set));
    if (err == OK) err = run_steps(&rank, job, t, w);
    world_leave(w, err);
    rank_close(&rank);
    return err;
}

static Err open_result(const TrialSettings *s, Arena *arena, Trial *out)
{
    Model m;
    int64_t *at;
    TRY(model_build(s->job.config, s->job.dtype, s->job.batch, arena, &m));
    TRY(ARENA_NEW(arena, m.n_params + 1, &at));
    for (int p = 0; p < m.n_params; p++) at[p + 1] = at[p] + m.param[p].count;
    *out = (Trial){.count = at[m.n_params], .at = at};
    TRY(ARENA_NEW(arena, 1, &out->model));
    *out->model = m;
    if (s->routes && s->job.config->experts.n > 0) {
        TRY(ARENA_NEW(arena, 1, &out->choices));
        TRY(choices_open(s, m.n_units, arena, out->choices));
    }
    TRY(ARENA_NEW(arena, s->steps, &out->loss));
    TRY(ARENA_NEW(arena, s->steps, &out->norm));
    TRY(ARENA_NEW(arena, out->count, &out->gradient));
    return ARENA_NEW(arena, out->count, &out->weight);
}

Err trial_run(const TrialSettings *s, Arena *arena, Trial *out)
{
    Mesh mesh;
    TrialRun t = {.s = s, .out = out};
    TRY(mesh_sized(&s->job.parallel.mesh, &mesh));
    TRY(open_result(s, arena, out));
    t.by_all = trial_by_all(s, mesh.world);
    out->absent = s->processes && !t.by_all && s->processes->rank > 0;
    if (out->absent) return OK;
    TRY(ARENA_NEW(arena, RANK_NUMBERS * mesh.world, &t.sent));
    t.predicted = t.sent + mesh.world;
    t.bytes = t.predicted + mesh.world;
    t.copies = t.bytes + mesh.world;
    if (t.by_all) TRY(ARENA_NEW(arena, out->count, &t.owners));
    for (int64_t i = 0; i < out->count; i++) out->weight[i] = out->gradient[i] = (double)NAN;
    const WorldSettings world = {.ranks = mesh.world,
                                 .comm_world = t.by_all ? s->processes : NULL,
                                 .in_flight = TRIAL_IN_FLIGHT,
                                 .records = TRIAL_RECORDS,
                                 .timeout_s = TRIAL_TIMEOUT_S,
                                 .body = try_rank,
                                 .work = &t};
    TRY(world_run(&world));
    for (int r = 0; r < mesh.world; r++) {
        out->sent_bytes += (int64_t)t.sent[r];
        out->predicted_bytes += (int64_t)t.predicted[r];
        if (t.copies[r] > out->copies) out->copies = t.copies[r];
        if (t.bytes[r] > (double)out->rank_bytes) out->rank_bytes = (int64_t)t.bytes[r];
    }
    const bool is_first = !s->processes || s->processes->rank == 0;
    return s->generates && is_first ? trial_generate(s, arena, out) : OK;
}
