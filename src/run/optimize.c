/* optimize.c -- the end of a step: live tokens and loss, the norm of the gradient, the update.
 *
 * What was back-propagated is the sum of token losses, so one factor on the gradients does the
 * division by live tokens and the clip together. The norm is a fold of f64 sums over blocks of a
 * unit's pack, in order: no cut of the pack crosses a block, so every layout folds the same
 * numbers. All that ranks tell each other is folded in the order of ranks, by each of them: so all
 * have the same factor, to the bit.
 *
 * On a device the squares and the update are lists (lists.c). A rank that is alone leaves norm and
 * factor there too, and its step has no round trip; with others the host reads squares and losses
 * at NORM, tells them, and sends the factor back. */
#include <math.h>
#include <string.h>

#include "run/rank_parts.h"

static double *cells_of(const Rank *r, int which)
{
    return (double *)(void *)desk_of(r, r->settings.program->scalar[which].at);
}

/* Tokens whose weight is not 0, of the rank's micro-batches. */
static int64_t count_live(Rank *r)
{
    int64_t live = 0;
    for (int m = 0; m < r->settings.program->micros; m++) {
        const Tensor w = rank_input(r, m, INPUT_WEIGHTS);
        for (int64_t i = 0; i < r->live_rows[m]; i++)
            live +=
                w.dtype == F64 ? ((const double *)w.data)[i] != 0 : ((const float *)w.data)[i] != 0;
    }
    return live;
}

double rank_loss(const Rank *r, int micro)
{
    const LinkedProgram *lp = r->settings.program;
    const char *cell = desk_of(r, lp->loss + (size_t)micro * ARENA_ALIGN);
    float narrow;
    double wide;
    memcpy(&wide, cell, sizeof wide);
    memcpy(&narrow, cell, sizeof narrow);
    return dtype_wide(lp->model->dtype) == F64 ? wide : (double)narrow;
}

/* Left fold over groups of the left folds over their micro-batches; 0 where the loss is elsewhere. */
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

void execute_numbers(Rank *r)
{
    if (!r->runtime) return;
    Verdict *v = desk_verdict(r);
    v->mean = mean_of((double)count_live(r));
    v->rates = (UpdateRates){r->slot[SLOT_LR], r->slot[SLOT_BIAS1], r->slot[SLOT_BIAS2]};
}

Err execute_tally(Rank *r)
{
    const ScalarPlace *s = &r->settings.program->scalar[TALLY];
    double *cell = cells_of(r, TALLY), live = 0, loss = 0;
    if (r->tallied) return OK;
    r->tallied = true;
    TRY(desk_fetch(r));
    cell[s->mine] = (double)count_live(r);
    cell[s->mine + 1] = fold_loss(r);
    TRY(steps_scalar(r, TALLY));
    for (int i = 0; i < s->group.n; i++) {
        if (r->settings.program->counts_live[i]) live += cell[2 * i];
        loss += cell[2 * i + 1];
    }
    r->live_tokens = (int64_t)live;
    r->loss_sum = loss;
    r->slot[SLOT_FACTOR] = mean_of(live);
    if (r->clipped) {
        r->norm = desk_verdict(r)->norm;
        r->skips = isnan(desk_verdict(r)->factor);
    }
    return OK;
}

/* *sum = keep * *sum + the squares of x. */
static Err sum_squares(Rank *r, Tensor x, double keep, double *sum)
{
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .number = {keep}};
    c.in[0] = x;
    c.out[0] = (Tensor){.data = sum, .dtype = F64, .ndim = 1, .n = {1}, .stride = {1}};
    return r->settings.device->kernel[KERNEL_sum_squares](&c);
}

static int64_t blocks_of(const LinkedProgram *lp, int64_t count)
{
    return (count + lp->block - 1) / lp->block;
}

/* The sums of the blocks of the unit's home, of what the rank counts there. A home begins with a
 * block. */
static Err unit_squares(Rank *r, int unit)
{
    const LinkedProgram *lp = r->settings.program;
    const UnitPlace *at = &lp->unit[unit];
    const Tensor home = rank_home(r, unit, PART_GRAD);
    double *cell = cells_of(r, BLOCKS) + at->cell[at->me];
    const int64_t blocks = blocks_of(lp, home.n[0]);
    int64_t begun = -1; /* the last block that has a summand */
    for (int64_t b = 0; b < blocks; b++) cell[b] = 0;
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

/* In the order of units, and of blocks in each. */
static double fold_blocks(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const double *cell = cells_of(r, BLOCKS);
    double total = 0;
    for (int u = 0; u < lp->model->n_units; u++)
        for (int i = 0; i < lp->unit[u].group.n; i++) {
            const int64_t n = blocks_of(lp, lp->unit[u].counts[i]);
            for (int64_t b = 0; b < n; b++) total += cell[lp->unit[u].cell[i] + b];
        }
    return total;
}

/* One step with such a gradient may spoil weights and moments for good. All ranks have the same
 * norm and the same loss, to the bit, so all decide alike. */
static bool is_unfit(const Rank *r)
{
    const double skip = r->settings.optim.skip;
    return !isfinite(r->norm) || !isfinite(r->loss_sum) || (skip > 0 && r->norm > skip);
}

/* Does nobody else have to be asked? */
static bool is_alone(const Rank *r)
{
    bool alone = true;
    for (int i = 0; i < N_SCALARS; i++)
        alone = alone && r->settings.program->scalar[i].group.n == 1;
    return alone;
}

/* The factor to where updates on a device read it. */
static Err judge(Rank *r)
{
    r->judged = true;
    desk_verdict(r)->factor = r->slot[SLOT_FACTOR];
    desk_verdict(r)->norm = r->norm;
    return desk_send_verdict(r);
}

Err execute_norm(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const ScalarPlace *s = &lp->scalar[SQUARES];
    const double clip = r->settings.optim.clip;
    double total = 0, *square = cells_of(r, SQUARES);
    if (r->runtime) TRY(lists_squares(r));
    if (r->runtime && is_alone(r)) {
        r->judged = r->clipped = true;
        return lists_clip(r);
    }
    TRY(execute_tally(r));
    const double mean = r->slot[SLOT_FACTOR];
    for (int u = 0; !r->runtime && u < lp->model->n_units; u++) TRY(unit_squares(r, u));
    TRY(steps_scalar(r, BLOCKS));
    square[s->mine] = fold_blocks(r);
    TRY(steps_scalar(r, SQUARES));
    for (int i = 0; i < s->group.n; i++) total += square[i];
    r->norm = sqrt(total) * mean;
    r->slot[SLOT_FACTOR] = clip > 0 && r->norm > clip ? mean * (clip / r->norm) : mean;
    r->skips = is_unfit(r);
    return r->runtime ? judge(r) : OK;
}

Err execute_publish(Rank *r, int unit)
{
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .queue = r->queue};
    c.in[0] = rank_home(r, unit, PART_MASTER);
    c.out[0] = rank_home(r, unit, PART_WEIGHT);
    if (c.in[0].dtype == c.out[0].dtype) return OK;
    return r->settings.device->kernel[KERNEL_cast](&c);
}

static Err update_piece(Rank *r, const RankPiece *p)
{
    const OptimSettings *o = &r->settings.optim;
    const double decay =
        r->settings.program->model->param[p->param].info.decay ? o->weight_decay : 0.0;
    const bool adamw = o->kind == OPTIM_ADAMW;
    Call c = {.n_in = 1, .n_out = adamw ? 3 : 1, .team = r->settings.team};
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

Err execute_update(Rank *r, int unit)
{
    if (!r->clipped) TRY(execute_tally(r));
    if (r->runtime && !r->judged) TRY(judge(r));
    if (r->runtime) return r->skips ? OK : lists_update(r, unit); /* which writes weights too */
    if (r->skips) return OK; /* weights, moments and what programs use stay as they were */
    for (int i = 0; i < rank_pieces(r, unit); i++) {
        const RankPiece piece = rank_piece(r, unit, i);
        TRY(update_piece(r, &piece));
    }
    return execute_publish(r, unit);
}
