/* optimize.c -- the end of a step: totals of live tokens and loss, the gradient's norm, the update.
 *
 * Backward differentiates the sum of token losses, so one factor on the gradients does both the
 * division by live tokens and the clip. The norm is a fold of f64 sums over blocks of packs, in
 * order: no shard boundary falls inside a block, so every layout folds the same numbers.
 * Scalars of several ranks are folded in rank order by each rank, so all have the same factor, to
 * the bit.
 *
 * A device with optimizer lists (lists.c) runs squares and updates as lists. A rank that is alone
 * computes norm and factor there too, and its step has no round trip. With other ranks the host
 * reads squares and losses at NORM, exchanges them, and sends the factor back through the mailbox.
 * A device without lists runs the kernels sum_squares, adamw and sgd in its queue; the host folds,
 * and passes the factor as a number of the call. */
#include <math.h>
#include <string.h>

#include "run/rank_parts.h"

static double *cells_of(const Rank *r, int which)
{
    return (double *)(void *)mailbox_at(r, r->settings.program->scalar[which].at);
}

/* Tokens with nonzero weight among the rank's rows of its micro-batches. */
static int64_t count_live(Rank *r)
{
    int64_t live = 0;
    for (int m = 0; m < r->settings.program->micros; m++) {
        const Tensor w = rank_input(r, m, INPUT_WEIGHTS);
        const HeldSpans *rows = &r->settings.program->input_rows[INPUT_WEIGHTS];
        const int64_t n = held_below(rows, r->live_rows[m]);
        for (int64_t i = 0; i < n; i++)
            live +=
                w.dtype == F64 ? ((const double *)w.data)[i] != 0 : ((const float *)w.data)[i] != 0;
    }
    return live;
}

double rank_loss(const Rank *r, int micro)
{
    const LinkedProgram *lp = r->settings.program;
    const char *cell = mailbox_at(r, lp->loss + (size_t)micro * ARENA_ALIGN);
    float narrow;
    double wide;
    memcpy(&wide, cell, sizeof wide);
    memcpy(&narrow, cell, sizeof narrow);
    return dtype_wide(lp->model->dtype) == F64 ? wide : (double)narrow;
}

/* A left fold over groups of left folds over their micro-batches; 0 on ranks without the loss. */
static double fold_loss(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const int each = lp->micros / lp->fold;
    double sum = 0;
    for (int m = 0; lp->has_loss && m < lp->micros; m += each) {
        double group = 0;
        for (int i = m; i < m + each; i++) group += rank_loss(r, i);
        sum += group;
    }
    return sum;
}

static double mean_of(double live) { return live > 0 ? 1.0 / live : 0.0; }

void optimize_scalars(Rank *r)
{
    if (!r->runtime) return;
    StepScalars *s = mailbox_scalars(r);
    s->mean = mean_of((double)count_live(r));
    s->rates = (UpdateRates){r->slot[SLOT_LR], r->slot[SLOT_BIAS1], r->slot[SLOT_BIAS2]};
}

Err optimize_totals(Rank *r)
{
    const ScalarCells *s = &r->settings.program->scalar[TOTALS];
    double *cell = cells_of(r, TOTALS), live = 0, loss = 0;
    if (r->step.totalled) return OK;
    r->step.totalled = true;
    TRY(mailbox_fetch(r));
    cell[s->mine] = (double)count_live(r);
    cell[s->mine + 1] = fold_loss(r);
    TRY(steps_scalar(r, TOTALS));
    for (int i = 0; i < s->group.n; i++) {
        if (r->settings.program->tokens_are_own[i]) live += cell[2 * i];
        loss += cell[2 * i + 1];
    }
    r->step.live_tokens = (int64_t)live;
    r->step.loss_sum = loss;
    r->slot[SLOT_FACTOR] = mean_of(live);
    if (r->step.decision == CLIP_BY_DEVICE) {
        r->step.norm = mailbox_scalars(r)->norm;
        r->step.skipped =
            isnan(mailbox_scalars(r)->factor); /* NaN: DeviceLists.clip skips the step */
    }
    return OK;
}

/* *sum = keep * *sum + the sum of squares of x; all in the rank's memory. */
static Err sum_squares(Rank *r, Tensor x, double keep, double *sum)
{
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .queue = r->queue, .number = {keep}};
    c.in[0] = x;
    c.out[0] = (Tensor){.data = sum, .dtype = F64, .ndim = 1, .n = {1}, .stride = {1}};
    return r->settings.device->kernel[KERNEL_sum_squares](&c);
}

double *optimize_blocks(const Rank *r)
{
    return (double *)(void *)(r->base[ARENA_STEP] + r->settings.program->scalar[BLOCKS].at);
}

static int64_t blocks_of(const LinkedProgram *lp, int64_t count)
{
    return (count + lp->block - 1) / lp->block;
}

/* Sums of squares over the blocks of the pack's home, of the elements that this rank counts. A home
 * begins with a block. A block counted in several spans accumulates them. */
static Err pack_squares(Rank *r, int pack)
{
    const LinkedProgram *lp = r->settings.program;
    const PackMemory *at = &lp->pack[pack];
    const Tensor home = rank_home(r, pack, PART_GRAD);
    double *cell = optimize_blocks(r) + at->cell[at->me];
    int64_t begun = -1; /* the last block that has a summand */
    TRY(rank_fill(r, cell, 0, (size_t)blocks_of(lp, home.n[0]) * sizeof *cell));
    if (lp->model->pack[pack].rule != PARAM_BY_OPTIMIZER) return OK; /* no gradient of the loss */
    for (int i = 0; i < at->n_owned; i++)
        for (int64_t lo = at->owned[i].lo, hi; lo < at->owned[i].hi; lo = hi) {
            const int64_t b = lo / lp->block;
            hi = (b + 1) * lp->block < at->owned[i].hi ? (b + 1) * lp->block : at->owned[i].hi;
            Tensor x = home;
            x.data = (char *)home.data + (size_t)lo * dtype_bytes(home.dtype);
            x.n[0] = hi - lo;
            TRY(sum_squares(r, x, b == begun ? 1.0 : 0.0, &cell[b]));
            begun = b;
        }
    return OK;
}

/* Folds the packs of a view by pack, and by block within a pack. */
static double fold_blocks(const Rank *r, int view)
{
    const LinkedProgram *lp = r->settings.program;
    const double *cell = cells_of(r, BLOCKS);
    double total = 0;
    for (int p = 0; p < lp->model->n_packs; p++) {
        const PackMemory *at = &lp->pack[p];
        for (int i = 0; at->home.view == view && i < at->group.n; i++) {
            const int64_t n = blocks_of(lp, at->counts[i]);
            for (int64_t b = 0; b < n; b++) total += cell[at->cell[i] + b];
        }
    }
    return total;
}

/* True if the step must update nothing: one such gradient may ruin weights and moments for good.
 * All ranks have the same norm and loss, to the bit, and therefore decide alike. */
static bool is_skipped_step(const Rank *r)
{
    const double skip = r->settings.optim.skip;
    const RankStep *s = &r->step;
    return !isfinite(s->norm) || !isfinite(s->loss_sum) || (skip > 0 && s->norm > skip);
}

/* True if no scalar is exchanged with other ranks. */
static bool is_alone(const Rank *r)
{
    bool alone = true;
    for (int i = 0; i < N_SCALARS; i++)
        alone = alone && r->settings.program->scalar[i].group.n == 1;
    return alone;
}

/* Sends the host's factor to the device, for lists_update; NaN: a graph updates nothing. */
static Err send_factor(Rank *r)
{
    r->step.decision = CLIP_BY_HOST;
    mailbox_scalars(r)->factor = r->step.skipped ? (double)NAN : r->slot[SLOT_FACTOR];
    mailbox_scalars(r)->norm = r->step.norm;
    return mailbox_send_factor(r);
}

static Err sum_blocks(Rank *r)
{
    if (lists_available(r)) return lists_squares(r);
    for (int p = 0; p < r->settings.program->model->n_packs; p++) TRY(pack_squares(r, p));
    return OK;
}

/* Adds the squares of the packs of a view, which all ranks of the stages exchange. */
static Err add_squares(Rank *r, int view, double *total)
{
    const ScalarCells *s = &r->settings.program->scalar[SQUARES + view];
    double *square = cells_of(r, SQUARES + view);
    if (s->cells == 0) return OK;
    TRY(steps_scalar(r, BLOCKS + view));
    square[s->mine] = fold_blocks(r, view);
    TRY(steps_scalar(r, SQUARES + view));
    for (int i = 0; i < s->group.n; i++) *total += square[i];
    return OK;
}

/* The squares precede the totals: on a device both reach the host by the same fetch. */
Err optimize_norm(Rank *r)
{
    const double clip = r->settings.optim.clip;
    double total = 0;
    TRY(sum_blocks(r));
    if (lists_available(r) && is_alone(r)) {
        r->step.decision = CLIP_BY_DEVICE;
        return lists_clip(r);
    }
    TRY(optimize_totals(r));
    const double mean = r->slot[SLOT_FACTOR];
    for (int view = 0; view < MAX_VIEWS; view++) TRY(add_squares(r, view, &total));
    const double norm = sqrt(total) * mean;
    r->step.norm = norm;
    r->slot[SLOT_FACTOR] = clip > 0 && norm > clip ? mean * (clip / norm) : mean;
    r->step.skipped = is_skipped_step(r);
    return lists_available(r) ? send_factor(r) : OK;
}

/* Codes are made by the next list (codes.c). */
Err optimize_publish(Rank *r, int pack)
{
    if (pack_is_coded(&r->settings.program->model->pack[pack])) return OK;
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .queue = r->queue};
    c.in[0] = rank_home(r, pack, PART_MASTER);
    c.out[0] = rank_home(r, pack, PART_WEIGHT);
    if (c.in[0].dtype == c.out[0].dtype) return OK;
    return r->settings.device->kernel[KERNEL_cast](&c);
}

bool optimize_is_constant(const Rank *r, int pack)
{
    return r->settings.program->model->pack[pack].rule == PARAM_BY_SIGN &&
           !(r->settings.optim.bias_rate > 0);
}

static Err update_by_sign(Rank *r, const RankPiece *p)
{
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .queue = r->queue};
    c.in[0] = rank_piece_data(r, p, PART_GRAD);
    c.out[0] = rank_piece_data(r, p, PART_MASTER);
    c.number[0] = r->settings.optim.bias_rate;
    return r->settings.device->kernel[KERNEL_sign_sgd](&c);
}

static Err age_marks(Rank *r, const RankPiece *p)
{
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .queue = r->queue};
    c.in[0] = rank_piece_data(r, p, PART_GRAD);
    c.out[0] = rank_piece_data(r, p, PART_MASTER);
    return r->settings.device->kernel[KERNEL_age_marks](&c);
}

static Err update_piece(Rank *r, const RankPiece *p)
{
    const OptimSettings *o = &r->settings.optim;
    const double decay =
        r->settings.program->model->param[p->param].info.decay ? o->weight_decay : 0.0;
    const bool adamw = o->kind == OPTIM_ADAMW;
    Call c = {.n_in = 1, .n_out = adamw ? 3 : 1, .team = r->settings.team, .queue = r->queue};
    c.in[0] = rank_piece_data(r, p, PART_GRAD);
    c.out[0] = rank_piece_data(r, p, PART_MASTER);
    c.number[0] = r->slot[SLOT_LR];
    c.number[1] = r->slot[SLOT_FACTOR];
    if (!adamw) {
        c.attr.sgd.decay = decay;
        return r->settings.device->kernel[KERNEL_sgd](&c);
    }
    c.out[1] = rank_piece_data(r, p, PART_MOMENT1);
    c.out[2] = rank_piece_data(r, p, PART_MOMENT2);
    c.number[2] = r->slot[SLOT_BIAS1];
    c.number[3] = r->slot[SLOT_BIAS2];
    c.attr.adamw.beta1 = o->beta1;
    c.attr.adamw.beta2 = o->beta2;
    c.attr.adamw.eps = o->eps;
    c.attr.adamw.decay = decay;
    return r->settings.device->kernel[KERNEL_adamw](&c);
}

/* A skipped step leaves weights, moments and the programs' weights unchanged. */
Err optimize_update(Rank *r, int pack)
{
    if (r->step.decision != CLIP_BY_DEVICE) TRY(optimize_totals(r));
    if (lists_available(r) && r->step.decision == CLIP_UNDECIDED) TRY(send_factor(r));
    if (r->step.skipped) return OK;
    if (lists_available(r)) return lists_update(r, pack); /* which also writes the weights */
    const ParamRule rule = r->settings.program->model->pack[pack].rule;
    if (optimize_is_constant(r, pack)) return OK;
    for (int i = 0; i < rank_pieces(r, pack); i++) {
        const RankPiece piece = rank_piece(r, pack, i);
        TRY(rule == PARAM_BY_SIGN    ? update_by_sign(r, &piece)
            : rule == PARAM_BY_MARKS ? age_marks(r, &piece)
                                     : update_piece(r, &piece));
    }
    return optimize_publish(r, pack);
}
