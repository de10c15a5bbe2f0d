/* token_loss.c -- cross entropy of softmax(logits) and its gradient, fused, for a vocabulary that
 * is not sharded: logits are read from memory once, and each exponential is computed once.
 *
 *     a row, piece by piece:   e = exp(x - top), summed     e is stored in dlogits if that is f32,
 *     second pass:             dlogits = e weight / sum     else in the thread's scratch row (L2)
 *     at the target:           -weight others / sum
 *
 * This is online softmax, but `top` need not be the maximum: it starts as the target's logit. When
 * a piece exceeds it by more than MARGIN, the sums so far are rescaled to the new top. A row of
 * weight 0 is masked: its target may have any value, and its logits affect no result.
 *
 * `others` is the sum without the target, whose exponential is computed in f64. Near the end of an
 * overfitted run sum is 1 + others with others = 1e-4: log(sum) and e / sum - 1 would lose all but
 * three digits of f32, log1p(others) and -others / sum keep them. */
#include "device/cpu/simd/math.h"
#include "device/cpu/simd/simd.h"

#include <stdatomic.h>
#include "device/cpu/workspace.h"

enum { BATCH = 1024, MARGIN = 40 }; /* BATCH: rows whose losses are summed in order; e^40 is 2e17 */

typedef struct {
    const Tensor *logits, *targets, *weights, *dlogits; /* dlogits may be NULL */
    int64_t first;
    double *loss;   /* [BATCH] */
    float *scratch; /* [n_scratch][scratch_floats]; NULL if none is needed */
    int64_t scratch_floats;
    atomic_bool *busy; /* [n_scratch] */
    int n_scratch;
} TokenLossWork;

/* State of the online softmax of a row: the sum of e^(x - top) over all x but the target, and the
 * largest x so far. */
typedef struct {
    float top, largest;
    double others;
} SoftmaxSum;

EACH_FORM float largest_of(ElementForm form, const void *x, int64_t n)
{
    V a = v_set(-HUGE_VALF), b = a;
    for (int64_t i = 0; i < n; i += 2 * W) { /* skips NaN */
        a = v_max(v_load_as(form, x, i), a);
        b = v_max(v_load_as(form, x, i + W), b);
    }
    return v_largest(v_max(a, b));
}

/* Returns the sum of exp(x - top), and stores the terms to e, which may be x or NULL. n: a multiple
 * of 2 W. */
EACH_FORM float sum_of_exp(ElementForm form, const void *x, int64_t n, float top, float *e)
{
    V a = {0}, b = {0};
    for (int64_t i = 0; i < n; i += 2 * W) {
        const V p = v_exp(v_load_as(form, x, i) - top), q = v_exp(v_load_as(form, x, i + W) - top);
        if (e) v_store_pair_as(AS_F32, e, i, p, q);
        a += p;
        b += q;
    }
    return v_sum(a + b);
}

static void scale_floats(float *x, int64_t n, float by)
{
    for (int64_t i = 0; i < n; i += W) v_store_to(x + i, n - i, by * v_load_to(x + i, n - i));
}

/* Prepares for a piece with this maximum; e contains `done` exponentials of earlier pieces. */
static void softmax_rescale(SoftmaxSum *s, float largest, float *e, int64_t done)
{
    if (largest > s->largest) s->largest = largest;
    if (!(largest > s->top + MARGIN)) return;
    const double by = exp((double)s->top - (double)largest); /* 0 for the first piece */
    if (e) scale_floats(e, done, (float)by);
    s->others *= by;
    s->top = largest;
}

/* Adds the next n elements, a multiple of 2 W. If all elements so far are -inf, so is top; then 0
 * is subtracted, as -inf - -inf would be NaN. */
EACH_FORM void add_piece(ElementForm form, const void *x, int64_t n, SoftmaxSum *s, float *e,
                         int64_t done)
{
    softmax_rescale(s, largest_of(form, x, n), e, done);
    const float top = s->top > -HUGE_VALF ? s->top : 0;
    s->others += (double)sum_of_exp(form, x, n, top, e ? e + done : NULL);
}

/* Adds the last elements of a row, those of a row that is not contiguous, or those around the
 * target, padded with -inf to full pairs of vectors. The target becomes -inf, too. */
static void add_rest(RowRef r, int64_t from, int64_t n, int64_t target, SoftmaxSum *s, float *e)
{
    _Alignas(64) float x[PIECE];
    const int64_t padded = blocks_of(n, 2 * W) * 2 * W;
    load_piece(r, from, n, x);
    for (int64_t i = n; i < padded; i++) x[i] = -HUGE_VALF;
    if (target >= from && target < from + n) x[target - from] = -HUGE_VALF;
    softmax_rescale(s, largest_of(AS_F32, x, padded), e, from);
    const float top = s->top > -HUGE_VALF ? s->top : 0;
    s->others += (double)sum_of_exp(AS_F32, x, padded, top, e ? x : NULL);
    if (e) memcpy(e + from, x, (size_t)n * sizeof *e);
}

/* Number of elements from `from` on that are added at once: a piece, which ends before the pair of
 * vectors with the target, or that pair. */
static int64_t piece_length(int64_t from, int64_t length, int64_t target)
{
    const int64_t pair = target - target % (2 * W), n = min_i64(length - from, PIECE);
    if (target < 0 || from > pair) return n;
    return min_i64(n, from == pair ? 2 * W : pair - from);
}

/* target: -1 for none, then it is no element that is left out; x: its logit, or -inf. */
static SoftmaxSum row_softmax(RowRef r, int64_t length, int64_t target, float x, float *e)
{
    SoftmaxSum s = {x, x, 0};
    for (int64_t from = 0; from < length;) {
        const int64_t n = piece_length(from, length, target), whole = n / (2 * W) * (2 * W);
        const bool has_target = target >= from && target < from + n;
        const bool direct = whole > 0 && r.stride == 1 && !has_target;
        if (direct && r.dtype == BF16)
            add_piece(AS_BF16, piece_at(r, from), whole, &s, e, from);
        else if (direct && r.dtype == F32)
            add_piece(AS_F32, piece_at(r, from), whole, &s, e, from);
        else
            add_rest(r, from, n, target, &s, e);
        from += direct ? whole : n;
    }
    return s;
}

/* Writes full pairs of vectors; returns the number of elements written. y may be e. */
EACH_FORM int64_t write_pairs(ElementForm form, void *y, const float *e, int64_t n, float by)
{
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        v_store_pair_as(form, y, i, by * v_load(e + i), by * v_load(e + i + W));
    return i;
}

static void write_row(RowRef to, int64_t length, float *e, float by)
{
    int64_t done = 0;
    const ElementForm form = form_of(to);
    if (form == AS_F32) done = write_pairs(AS_F32, to.at, e, length, by);
    if (form == AS_BF16) done = write_pairs(AS_BF16, to.at, e, length, by);
    if (form == AS_BF16_HW) done = write_pairs(AS_BF16_HW, to.at, e, length, by);
    scale_floats(e + done, length - done, by);
    if ((const void *)to.at != (const void *)e) store_piece(to, done, length - done, e + done);
}

static void zero_row(RowRef r, int64_t length)
{
    static const float zero[PIECE];
    for (int64_t from = 0; from < length; from += PIECE)
        store_piece(r, from, min_i64(length - from, PIECE), zero);
}

static float *take_scratch(const TokenLossWork *w, int *taken)
{
    for (int i = 0;; i = (i + 1) % w->n_scratch)
        if (!atomic_exchange_explicit(&w->busy[i], true, memory_order_acquire)) {
            *taken = i;
            return w->scratch + i * w->scratch_floats;
        }
}

static void token_loss_row(const void *work, int64_t i)
{
    const TokenLossWork *w = work;
    const int64_t t = w->first + i, target = int_at(w->targets, t), length = w->logits->n[1];
    const float weight = stat_get(w->weights, t);
    const bool there = target >= 0 && target < length;
    const RowRef from = tensor_row(w->logits, t);
    const RowRef to = w->dlogits ? tensor_row(w->dlogits, t) : from;
    float *e = NULL, x = -HUGE_VALF;
    int taken = 0;
    w->loss[i] = 0;
    if (weight == 0) {
        if (w->dlogits) zero_row(to, length);
        return;
    }
    if (w->dlogits) e = w->scratch ? take_scratch(w, &taken) : (float *)(void *)to.at;
    if (there) load_piece(from, target, 1, &x);
    const SoftmaxSum s = row_softmax(from, length, there ? target : -1, x, e);
    /* A target outside the vocabulary counts as the largest logit. */
    const double below = (double)(there ? x : s.largest) - (double)s.top;
    const double self = there ? exp(below) : 0, sum = s.others + self;
    w->loss[i] = (double)weight * (s.others < self ? log1p(s.others / self) : log(sum) - below);
    if (!e) return;
    const float by = (float)((double)weight / sum);
    const float at_target = (float)((double)-weight * (s.others / sum));
    write_row(to, length, e, by);
    if (there) store_piece(to, target, 1, &at_target);
    if (w->scratch) atomic_store_explicit(&w->busy[taken], false, memory_order_release);
}

static void run_batches(const Call *call, TokenLossWork *w, const Tensor *out, double keep)
{
    double loss[BATCH], sum = 0;
    w->loss = loss;
    for (; w->first < w->logits->n[0]; w->first += BATCH) {
        const int64_t n = min_i64(w->logits->n[0] - w->first, BATCH);
        run_rows(call->team, n, w->logits->n[1], token_loss_row, w);
        for (int64_t i = 0; i < n; i++) sum += loss[i];
    }
    row_keep(tensor_row(out, 0), 0, 1, keep, &sum);
}

Err CPU_NAME(token_loss)(const Call *call)
{
    TokenLossWork w = {.logits = &call->in[0], .targets = &call->in[1], .weights = &call->in[2]};
    run_batches(call, &w, &call->out[0], call->number[0]);
    return OK;
}

/* Each thread has a scratch row, unless exponentials can be stored in dlogits itself. */
Err CPU_NAME(token_loss_dx)(const Call *call)
{
    TokenLossWork w = {.logits = &call->in[0],
                       .targets = &call->in[1],
                       .weights = &call->in[2],
                       .dlogits = &call->out[0]};
    Workspace *space = NULL;
    if (!piece_is_plain(tensor_row(w.dlogits, 0))) {
        w.n_scratch = team_threads(call->team);
        w.scratch_floats = blocks_of(w.logits->n[1], 16) * 16;
        const size_t bytes = (size_t)(w.n_scratch * w.scratch_floats) * sizeof *w.scratch;
        TRY(workspace_take(bytes + (size_t)w.n_scratch * sizeof *w.busy, "exponentials of logits",
                           &space));
        w.scratch = space->at;
        w.busy = (atomic_bool *)(void *)(w.scratch + w.n_scratch * w.scratch_floats);
        for (int i = 0; i < w.n_scratch; i++) atomic_init(&w.busy[i], false);
    }
    run_batches(call, &w, &call->out[1], call->number[1]);
    if (space) workspace_give(space);
    return OK;
}
