/* validate.c -- the loss of held-out samples; the validation rank shares the weights of the
 * training rank. */
#include "job/batch.h"
#include "train/loop_parts.h"

Err loop_validate(TrainLoop *l, double *loss)
{
    const TrainSettings *s = l->s;
    const BatchSplit split = batch_split(s->valid_job);
    const int64_t batch = batch_room(&split);
    const int64_t all = s->valid->n_samples < s->valid_limit ? s->valid->n_samples : s->valid_limit;
    double sum = 0;
    int64_t live = 0;
    for (int64_t at = 0; at < all; at += batch) {
        StepResult r;
        TRY(loop_fill(s->valid_job, s->valid, &l->valid, at, all - at < batch ? all - at : batch));
        TRY(rank_step(&l->valid, &(StepSettings){.step = 1}, &r));
        sum += r.loss_sum;
        live += r.live_tokens;
    }
    *loss = live ? sum / (double)live : 0;
    l->sent_before = loop_sent_bytes(l); /* validation traffic belongs to no step */
    return OK;
}
