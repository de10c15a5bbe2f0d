/* exchange.c -- the rows that ranks send to the experts of other ranks; device/exchange.h draws
 * them. Rows are copied, whatever their type. */
#include "device/exchange.h"

#include <string.h>
#include "device/ref/ref.h"

/* The part of the experts to which the row goes: first[p] <= row < first[p + 1]. */
static int64_t part_of(const Call *call, int64_t each, int64_t row)
{
    const Tensor *offsets = &call->in[1];
    int64_t lo = 0, hi = call->attr.exchange.ep - 1;
    while (lo < hi) {
        const int64_t mid = (lo + hi + 1) / 2;
        if (int_at(offsets, mid * each) <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static Err check_room(const Call *call, int64_t each)
{
    const Tensor *offsets = &call->in[1];
    for (int64_t p = 0; p < call->attr.exchange.ep && !call->attr.exchange.rounds; p++) {
        const int64_t n = int_at(offsets, (p + 1) * each) - int_at(offsets, p * each);
        if (n > call->attr.exchange.room)
            return err_fail(
                ERR_CONFIG,
                "%lld rows of this rank are for experts %lld to %lld, whose rank has "
                "room for %lld of them; raise parallel.expert_rows at least %.2f times, or "
                "set parallel.overflow=rounds",
                (long long)n, (long long)(p * each), (long long)((p + 1) * each - 1),
                (long long)call->attr.exchange.room,
                (double)n / (double)call->attr.exchange.room + 0.005);
    }
    return OK;
}

Err ref_send_rows(const Call *call)
{
    const Tensor *at = &call->in[0], *offsets = &call->in[1], *to = &call->out[0];
    const int64_t each = exchange_experts(call, offsets->n[0]);
    TRY(check_room(call, each));
    for (int64_t t = 0; t < at->n[0]; t++)
        for (int64_t k = 0; k < at->n[1]; k++) {
            const int32_t row = ((const int32_t *)at->data)[t * at->stride[0] + k * at->stride[1]];
            int32_t *out = (int32_t *)to->data + t * to->stride[0] + k * to->stride[1];
            const int64_t p = row < 0 ? 0 : part_of(call, each, row);
            const int64_t at_part = row - int_at(offsets, p * each),
                          room = call->attr.exchange.room;
            const bool goes = row >= 0 && at_part / room == call->attr.exchange.round;
            *out = goes ? (int32_t)(p * room + at_part % room) : -1;
        }
    return OK;
}

Err ref_sum_offsets(const Call *call)
{
    const Tensor *all = &call->in[0], *offsets = &call->out[0];
    for (int64_t e = 0; e < offsets->n[0]; e++) {
        /* Rows of the experts before e: where the first rank's rows of e begin. */
        int64_t sum = 0;
        const int64_t first = call->attr.exchange.part * (offsets->n[0] - 1);
        for (int64_t s = 0; s < all->n[0]; s++) sum += exchange_before(call, all, s, first + e);
        ((int32_t *)offsets->data)[e * offsets->stride[0]] = (int32_t)sum;
    }
    return OK;
}

/* Copies the rows of one piece between the rooms and the rows of the experts. */
static void copy_piece(const Call *call, int64_t tile, bool collect)
{
    const Tensor *x = &call->in[0], *all = &call->in[1], *y = &call->out[0];
    const int64_t each = exchange_experts(call, all->n[1]);
    const ExchangePiece p = exchange_piece(call, all, tile / each, tile % each);
    const int64_t from = collect ? p.in_room : p.at, to = collect ? p.at : p.in_room;
    const size_t element = dtype_bytes(x->dtype), bytes = (size_t)x->n[1] * element;
    MUST(x->stride[1] == 1 && y->stride[1] == 1, "rows of strides %lld and %lld",
         (long long)x->stride[1], (long long)y->stride[1]);
    for (int64_t i = 0; i < p.n; i++)
        memcpy((char *)y->data + (size_t)((to + i) * y->stride[0]) * element,
               (const char *)x->data + (size_t)((from + i) * x->stride[0]) * element, bytes);
}

static void collect_tile(void *work, int64_t tile) { copy_piece(work, tile, true); }
static void spread_tile(void *work, int64_t tile) { copy_piece(work, tile, false); }

static int64_t pieces(const Call *call)
{
    const Tensor *all = &call->in[1];
    return all->n[0] * exchange_experts(call, all->n[1]);
}

Err ref_collect_rows(const Call *call)
{
    ref_tiles(call, pieces(call), collect_tile);
    return OK;
}

Err ref_spread_rows(const Call *call)
{
    ref_tiles(call, pieces(call), spread_tile);
    return OK;
}

/* The rows of one part that have returned in the round, to their places among the rank's rows. */
static void return_tile(void *work, int64_t part)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *offsets = &call->in[1], *y = &call->out[0];
    const int64_t each = exchange_experts(call, offsets->n[0]), room = call->attr.exchange.room;
    const int64_t first = int_at(offsets, part * each), end = int_at(offsets, (part + 1) * each);
    const int64_t n = exchange_clip(call, end - first);
    const size_t element = dtype_bytes(x->dtype), bytes = (size_t)x->n[1] * element;
    MUST(x->stride[1] == 1 && y->stride[1] == 1, "rows of strides %lld and %lld",
         (long long)x->stride[1], (long long)y->stride[1]);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)y->data +
                   (size_t)((first + call->attr.exchange.round * room + i) * y->stride[0]) *
                       element,
               (const char *)x->data + (size_t)((part * room + i) * x->stride[0]) * element, bytes);
}

Err ref_return_rows(const Call *call)
{
    ref_tiles(call, call->attr.exchange.ep, return_tile);
    return OK;
}
