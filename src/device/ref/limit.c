/* limit.c -- the load of experts: choices beyond their capacity are dropped, and the excess over an
 * even share is counted.
 *
 *     token   choices   capacity 2, by position: kept      by gate (.9 .5 .8): kept
 *     0       0         0                                  0
 *     1       0         0                                  -1
 *     2       0         -1                                 0
 */
#include "device/ref/ref.h"

#include <math.h>
#include <string.h>
#include "device/route.h"

static int64_t choice(const Tensor *t, int64_t token, int64_t k)
{
    return ((const int32_t *)t->data)[token * t->stride[0] + k * t->stride[1]];
}

static void keep(const Call *call, int64_t t, int64_t k, bool kept)
{
    const Tensor *out = &call->out[0];
    ((int32_t *)out->data)[t * out->stride[0] + k * out->stride[1]] =
        kept ? (int32_t)choice(&call->in[0], t, k) : -1;
}

/* Rows that an expert may have. */
static int64_t capacity_of(const Call *call)
{
    const double choices = (double)(call->in[0].n[0] * call->in[0].n[1]);
    return (int64_t)ceil(call->attr.limit.capacity * choices / (double)call->attr.limit.experts);
}

/* Gates as integers of the same order. */
static uint64_t gate_key(double gate)
{
    uint64_t bits;
    gate += 0.0; /* -0 and 0 are equal */
    memcpy(&bits, &gate, sizeof bits);
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* Sets key[e] to the cap-th largest key of each expert that has more choices, bit by bit: 64 passes
 * over the choices. Other experts keep all. */
static void find_thresholds(const Call *call, int64_t cap, int64_t n, uint64_t *key)
{
    const Tensor *expert = &call->in[0], *gate = &call->in[1];
    memset(key, 0, (size_t)n * sizeof *key);
    for (int bit = 63; bit >= 0; bit--) {
        int64_t above[MAX_EXPERTS] = {0};
        const uint64_t one = (uint64_t)1 << bit;
        for (int64_t t = 0; t < expert->n[0]; t++)
            for (int64_t k = 0; k < expert->n[1]; k++) {
                const int64_t e = choice(expert, t, k);
                above[e] += gate_key(tensor_get(gate, t * expert->n[1] + k)) >= (key[e] | one);
            }
        for (int64_t e = 0; e < n; e++)
            if (above[e] >= cap) key[e] |= one;
    }
}

/* Keeps the choices with keys above the threshold of their expert, and of equal ones the first. */
static void drop_by_gate(const Call *call, int64_t cap, int64_t n, int64_t *count)
{
    const Tensor *expert = &call->in[0], *gate = &call->in[1];
    uint64_t key[MAX_EXPERTS];
    find_thresholds(call, cap, n, key);
    for (int equal = 0; equal < 2; equal++)
        for (int64_t t = 0; t < expert->n[0]; t++)
            for (int64_t k = 0; k < expert->n[1]; k++) {
                const int64_t e = choice(expert, t, k);
                const uint64_t own = gate_key(tensor_get(gate, t * expert->n[1] + k));
                if (equal ? own != key[e] : own == key[e]) continue;
                const bool kept = own >= key[e] && count[e] < cap;
                keep(call, t, k, kept);
                count[e] += kept;
            }
}

static void drop_by_position(const Call *call, int64_t cap, int64_t *count)
{
    const Tensor *expert = &call->in[0];
    for (int64_t t = 0; t < expert->n[0]; t++)
        for (int64_t k = 0; k < expert->n[1]; k++) {
            const int64_t e = choice(expert, t, k);
            keep(call, t, k, count[e] < cap);
            count[e] += count[e] < cap;
        }
}

Err ref_limit_choices(const Call *call)
{
    const int64_t n = call->attr.limit.experts;
    int64_t count[MAX_EXPERTS] = {0};
    MUST(n <= MAX_EXPERTS, "%lld experts", (long long)n);
    if (call->attr.limit.by_gate)
        drop_by_gate(call, capacity_of(call), n, count);
    else
        drop_by_position(call, capacity_of(call), count);
    return OK;
}

Err ref_expert_excess(const Call *call)
{
    const Tensor *expert = &call->in[0], *db = &call->out[0];
    const int64_t n = db->n[0], choices = expert->n[0] * expert->n[1];
    double x[MAX_EXPERTS];
    MUST(n <= MAX_EXPERTS, "%lld experts", (long long)n);
    for (int64_t e = 0; e < n; e++) x[e] = -(double)choices;
    for (int64_t t = 0; t < expert->n[0]; t++)
        for (int64_t k = 0; k < expert->n[1]; k++) x[choice(expert, t, k)] += (double)n;
    for (int64_t from = 0; from < n; from += REF_CHUNK)
        row_keep(tensor_row(db, 0), from, min_i64(n - from, REF_CHUNK), call->number[0], x + from);
    return OK;
}
