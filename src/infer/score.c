/* score.c -- fills micro-batches with sequences, and sums their losses over ranks. */
#include "infer/score.h"

#include "job/batch.h"
#include "world/scalars.h"

JobSettings score_settings(const JobSettings *base, int64_t seq_len, int micros)
{
    JobSettings set = *base;
    set.kind = JOB_LOSS;
    set.inference = true;
    set.batch = (BatchShape){1, seq_len};
    set.micros = micros;
    set.schedule = "1f1b";
    set.n_stage_rules = 0;
    set.optim.kind = OPTIM_SGD;
    set.compile = (CompileOptions){.chunk_elements = base->compile.chunk_elements,
                                   .device_memory = base->compile.device_memory};
    set.parallel = (ParallelSettings){.mesh = base->parallel.mesh,
                                      .rank = base->parallel.rank,
                                      .zero = base->parallel.zero,
                                      .live = base->parallel.live,
                                      .sequence = base->parallel.sequence,
                                      .context = base->parallel.context,
                                      .tokens = base->parallel.tokens,
                                      .split = base->parallel.split};
    return set;
}

Err scorer_open(Scorer *s, const ScorerSettings *settings, Arena *a)
{
    *s = (Scorer){.settings = *settings};
    WorldRank *w = settings->world;
    const RankSettings set = {.program = &settings->job->linked,
                              .device = settings->device,
                              .ordinal = w->rank,
                              .comm = w->comm,
                              .team = settings->team,
                              .optim = settings->job->settings.optim,
                              .watch = w->status ? &w->status->watch : NULL};
    const BatchSplit split = batch_split(settings->job);
    s->capacity = batch_room(&split);
    TRY(ARENA_NEW(a, s->capacity, &s->cell));
    TRY(comm_register(w->comm, ARENA_SCORES, s->cell, (size_t)s->capacity * sizeof *s->cell));
    return rank_open(&s->rank, &set);
}

void scorer_close(Scorer *s)
{
    if (s->rank.live_rows) rank_close(&s->rank);
}

/* Row i has token i as input and token i + 1 as target. */
static void fill(Scorer *s, int micro, const ScoreSequence *q)
{
    Rank *r = &s->rank;
    const int64_t window = s->settings.job->settings.config->window;
    MUST(q->n >= 1 && q->n - 1 <= s->settings.job->model.rows && q->from >= 1, "%lld tokens",
         (long long)q->n);
    for (int64_t i = 0; i < q->n - 1; i++) {
        const int64_t lo = window && i >= window ? i - window + 1 : 0;
        const InputRow in = {.token = q->token[i],
                             .target = q->token[i + 1],
                             .position = (int32_t)i,
                             .range = {(int32_t)lo, (int32_t)i + 1, 0, 0},
                             .weight = i + 1 >= q->from ? 1 : 0};
        rank_put_row(r, micro, i, &in);
    }
    rank_set_rows(r, micro, q->n - 1);
}

/* True if the rank contributes its loss to the sum. Over some axes losses are partial sums, and
 * every rank contributes; along the other axes all ranks have the same loss, and the first
 * contributes. */
static bool has_own_loss(const LinkedProgram *lp)
{
    unsigned other = mesh_all_axes(lp->mesh, VIEW_DENSE);
    other &= ~(mesh_axes(lp->mesh, VIEW_DENSE, "dp") | mesh_axes(lp->mesh, VIEW_DENSE, "pp"));
    for (int i = 0; i < lp->programs.n_classes; i++)
        other &= ~(unsigned)lp->programs.program[i].loss_partial;
    return lp->has_loss && mesh_part(lp->mesh, VIEW_DENSE, other, lp->rank) == 0;
}

/* All-reduces the losses of a pass. */
static Err share_losses(Scorer *s, const BatchSplit *split)
{
    const LinkedProgram *lp = &s->settings.job->linked;
    for (int64_t i = 0; i < s->capacity; i++) s->cell[i] = 0;
    for (int m = 0; m < split->micros && has_own_loss(lp); m++)
        if (s->rank.live_rows[m] > 0)
            s->cell[batch_part(split, s->capacity, m).first] = rank_loss(&s->rank, m);
    return world_reduce(s->settings.world, ARENA_SCORES, s->capacity, F64, REDUCE_SUM);
}

static Err fill_pass(Scorer *s, const BatchSplit *split, const ScoreSource *source, int64_t from)
{
    const int64_t left = source->n - from, n = left < s->capacity ? left : s->capacity;
    for (int m = 0; m < split->micros; m++) rank_set_rows(&s->rank, m, 0);
    for (int64_t i = 0; i < n; i++) {
        ScoreSequence q;
        TRY(source->next(source->context, from + i, &q));
        for (int m = 0; m < split->micros; m++)
            if (batch_part(split, s->capacity, m).first == i) fill(s, m, &q);
    }
    return OK;
}

Err scorer_run(Scorer *s, const ScoreSource *source, double *loss)
{
    const BatchSplit split = batch_split(s->settings.job);
    for (int64_t at = 0; at < source->n; at += s->capacity) {
        StepResult result;
        TRY(world_agree(s->settings.world, fill_pass(s, &split, source, at)));
        TRY(rank_step(&s->rank, &(StepSettings){.step = 1}, &result));
        TRY(share_losses(s, &split));
        for (int64_t i = at; i < source->n && i < at + s->capacity; i++) loss[i] = s->cell[i - at];
    }
    return OK;
}
