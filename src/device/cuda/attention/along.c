/* along.c -- attention along one of several token dims: short sequences have kernels of their own,
 * others are plain attention.
 *
 *     q[e,b,a,h,c]       e groups of b tokens at a places each
 *     [(e b), h, c]      one place, groups that follow each other: rows see their own group
 *     [b, (a h), c]      a group: heads of all places, stride[3] from place to place
 *     [b, (e h), c]      a place, if there are fewer places than groups: heads of all groups */
#include "device/cuda/attention/along.h"
#include "device/cuda/walk.h"

static bool is_bf16_rows(const Tensor *t) { return t->dtype == BF16 && walk_rows_wide(t); }

/* True if a block's tiles and statistics fit into its shared memory (along_short*.cu), whose limit
 * differs between GPUs: 163 KiB on an A100, 99 KiB on some, 227 KiB on an H100. */
static bool short_fits_shared(const Call *call, bool backward)
{
    const int64_t t = call->in[0].n[1], s = call->in[1].n[1], c = call->in[0].n[4];
    const int64_t channels = c <= 32 ? 32 : c <= 64 ? 64 : c <= 80 ? 80 : 128;
    const int64_t longest = t > s ? t : s;
    const int64_t rows = longest <= 16 ? 16 : longest <= 32 ? 32 : longest <= 64 ? 64 : 128;
    const int64_t tile = 2 * (channels + 8), slopes = 2 * (rows + 8); /* bytes of a row */
    const int64_t over = 2 * tile > slopes ? 2 * tile : slopes;       /* o and v, or ds */
    const int64_t row_bytes = backward ? 3 * tile + over + 8 : 3 * tile;
    return cuda_shared_fits(call, (size_t)(rows * row_bytes));
}

/* True if the kernels for short sequences can run a call: bf16 in rows of 16 bytes, nothing is
 * added to an output, and backward each head has its own keys. */
static bool is_short(const Call *call, bool backward)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    bool fits = q->n[1] > 0 && q->n[1] <= ALONG_SHORT && k->n[1] > 0 && k->n[1] <= ALONG_SHORT;
    fits = fits && q->n[3] > 0 && k->n[3] > 0 && q->n[4] > 0 && q->n[4] <= ALONG_CHANNELS;
    fits = fits && q->n[0] * q->n[2] > 0 && q->n[0] * q->n[2] * q->n[3] <= INT32_MAX;
    fits = fits && call->n_in == (backward ? 6 : 3) && short_fits_shared(call, backward);
    for (int i = 0; i < call->n_in; i++)
        if (!backward || i != 4) fits = fits && is_bf16_rows(&call->in[i]); /* 4: lse */
    for (int i = 0; i < call->n_out; i++) {
        if (backward || i == 0) fits = fits && is_bf16_rows(&call->out[i]);
        fits = fits && call->number[i] == 0;
    }
    if (!backward) return fits;
    return fits && call->in[5].ndim == 5 && q->n[3] == k->n[3] &&
           call->attr.attention.head_at == 0 && along_group(call) == 1;
}

/* x[e,b,1,h,..] as [(e b),h,..]. */
static Tensor joined(const Tensor *x)
{
    Tensor t = {.dtype = x->dtype, .ndim = x->ndim - 2, .data = x->data};
    t.n[0] = x->n[0] * x->n[1], t.stride[0] = x->stride[1];
    t.n[1] = x->n[3], t.stride[1] = x->stride[3];
    if (x->ndim == 5) t.n[2] = x->n[4], t.stride[2] = x->stride[4];
    return t;
}

/* True if groups of one place follow each other in storage. */
static bool joins(const Call *call)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    bool yes = q->n[2] == 1 && q->n[0] * q->n[1] < INT32_MAX / 2;
    yes = yes && q->n[0] * k->n[1] < INT32_MAX / 2;
    for (int i = 0; i < call->n_in; i++)
        yes = yes && call->in[i].stride[0] == call->in[i].n[1] * call->in[i].stride[1];
    for (int i = 0; i < call->n_out; i++)
        yes = yes && call->out[i].stride[0] == call->out[i].n[1] * call->out[i].stride[1];
    return yes;
}

/* x[e,b,a,h,..]: `n` sequences from (at, first) on as heads of [b,(n h),..]. The sequences are the
 * places of group `at`, or with `groups` the groups of place `at`. */
static Tensor part_of(const Tensor *x, bool groups, int64_t at, int64_t first, int64_t n)
{
    const int64_t across = x->stride[groups ? 0 : 2], down = x->stride[groups ? 2 : 0];
    Tensor part = {.dtype = x->dtype, .ndim = x->ndim - 2};
    part.data = (char *)x->data + (at * down + first * across) * (int64_t)dtype_bytes(x->dtype);
    part.n[0] = x->n[1], part.stride[0] = x->stride[1];
    part.n[1] = n * x->n[3], part.stride[1] = x->stride[3];
    if (x->ndim == 5) part.n[2] = x->n[4], part.stride[2] = x->stride[4];
    part.n[3] = x->n[3], part.stride[3] = across;
    return part;
}

static Call begin_part(const Call *call)
{
    Call part = *call;
    part.attr.attention.key_at = part.attr.attention.causal = 0;
    part.n_in = 0;
    return part;
}

static Err run_joined(const Call *call, Kernel attention)
{
    Call part = begin_part(call);
    for (int i = 0; i < call->n_in; i++) {
        part.in[part.n_in++] = joined(&call->in[i]);
        if (i == 2) part.in[part.n_in++] = along_ranges(call->in[0].n[1], call->in[1].n[1]);
    }
    for (int i = 0; i < call->n_out; i++) part.out[i] = joined(&call->out[i]);
    return attention(&part);
}

/* As many sequences at a time as a launch has room for. */
static Err run_heads(const Call *call, Kernel attention)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    const int64_t heads = q->n[3] > k->n[3] ? q->n[3] : k->n[3];
    const bool groups = q->n[0] > q->n[2];
    const int64_t calls = q->n[groups ? 2 : 0], sequences = q->n[groups ? 0 : 2];
    const int64_t room = heads > 0 && heads < MAX_ATTENTION_HEADS ? MAX_ATTENTION_HEADS / heads : 1;
    for (int64_t at = 0; at < calls; at++)
        for (int64_t first = 0; first < sequences; first += room) {
            const int64_t n = sequences - first < room ? sequences - first : room;
            Call part = begin_part(call);
            for (int i = 0; i < call->n_in; i++) {
                part.in[part.n_in++] = part_of(&call->in[i], groups, at, first, n);
                if (i == 2) part.in[part.n_in++] = along_ranges(q->n[1], k->n[1]);
            }
            for (int i = 0; i < call->n_out; i++)
                part.out[i] = part_of(&call->out[i], groups, at, first, n);
            TRY(attention(&part));
        }
    return OK;
}

Err cuda_attention_along(const Call *call)
{
    if (is_short(call, false)) return cuda_along_short(call);
    if (joins(call)) return run_joined(call, cuda_attention);
    return run_heads(call, cuda_attention_sequences);
}

Err cuda_attention_along_dx(const Call *call)
{
    if (is_short(call, true)) return cuda_along_short_dx(call);
    if (joins(call)) return run_joined(call, cuda_attention_dx);
    return run_heads(call, cuda_attention_sequences_dx);
}
