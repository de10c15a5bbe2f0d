/* experts.c -- rows of tokens to the rows of their experts, and back.
 *
 *     token   choices        rows of experts, sorted by expert, then token    offsets 0 2 3 5
 *     0       0 2            0.0 1.0 | 2.1 | 0.2 1.2
 *     1       2 0            at: token 0 -> 0 3, token 1 -> 4 1, token 2 -> 2 ..
 *
 * A token's choices are summed in pairs, pairs of pairs, and so on by rising k, so the bits do not
 * depend on rows, and 1, 2, 4 or 8 equal summands are exact. */
#include "device/ref/ref.h"

#include <string.h>
#include "device/route.h"

enum { TOKENS = 16, LEVELS = 11 };
_Static_assert(1 << (LEVELS - 1) >= MAX_EXPERTS, "a level for each bit of the choices");

static int64_t choice(const Tensor *t, int64_t token, int64_t k)
{
    return ((const int32_t *)t->data)[token * t->stride[0] + k * t->stride[1]];
}

static int32_t *choice_at(const Tensor *t, int64_t token, int64_t k)
{
    return (int32_t *)t->data + token * t->stride[0] + k * t->stride[1];
}

Err ref_assign_rows(const Call *call)
{
    const Tensor *expert = &call->in[0], *at = &call->out[0], *offsets = &call->out[1];
    const int64_t n = offsets->n[0] - 1;
    int64_t row[MAX_EXPERTS] = {0}, next = 0;
    MUST(n <= MAX_EXPERTS, "%lld experts", (long long)n);
    for (int64_t t = 0; t < expert->n[0]; t++)
        for (int64_t k = 0; k < expert->n[1]; k++)
            if (choice(expert, t, k) >= 0) row[choice(expert, t, k)]++;
    for (int64_t e = 0; e <= n; e++) {
        ((int32_t *)offsets->data)[e * offsets->stride[0]] = (int32_t)next;
        const int64_t rows = e < n ? row[e] : 0;
        if (e < n) row[e] = next;
        next += rows;
    }
    for (int64_t t = 0; t < expert->n[0]; t++)
        for (int64_t k = 0; k < expert->n[1]; k++) {
            const int64_t e = choice(expert, t, k);
            *choice_at(at, t, k) = e < 0 ? -1 : (int32_t)row[e]++;
        }
    return OK;
}

static double gate_of(const Call *call, int64_t t, int64_t k)
{
    const Tensor *gate = &call->in[2];
    return call->n_in > 2 ? tensor_get(gate, t * gate->n[1] + k) : 1;
}

static void permute_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *at = &call->in[1], *y = &call->out[0];
    const int64_t end = min_i64((tile + 1) * TOKENS, x->n[0]);
    double row[REF_CHUNK], scaled[REF_CHUNK];
    for (int64_t t = tile * TOKENS; t < end; t++)
        for (int64_t from = 0; from < x->n[1]; from += REF_CHUNK) {
            const int64_t n = min_i64(x->n[1] - from, REF_CHUNK);
            row_load(tensor_row(x, t), from, n, row);
            for (int64_t k = 0; k < at->n[1]; k++) {
                if (choice(at, t, k) < 0) continue;
                const double gate = gate_of(call, t, k);
                for (int64_t i = 0; i < n; i++) scaled[i] = gate * row[i];
                row_store(tensor_row(y, choice(at, t, k)), from, n, scaled);
            }
        }
}

Err ref_permute(const Call *call)
{
    ref_tiles(call, blocks_of(call->in[0].n[0], TOKENS), permute_tile);
    return OK;
}

/* Gates times n elements of the row of choice k; zeros if it has none. */
static void load_choice(const Call *call, int64_t t, int64_t k, int64_t from, int64_t n, double *x)
{
    const Tensor *at = &call->in[0], *y = &call->in[1];
    memset(x, 0, (size_t)n * sizeof *x);
    if (choice(at, t, k) < 0) return;
    row_load(tensor_row(y, choice(at, t, k)), from, n, x);
    const double gate = gate_of(call, t, k);
    for (int64_t i = 0; i < n; i++) x[i] *= gate;
}

/* sum[level] waits for its pair, 2^level choices each. */
static void sum_choices(const Call *call, int64_t t, int64_t from, int64_t n, double *out)
{
    const int64_t choices = call->in[0].n[1];
    double sum[LEVELS][REF_CHUNK];
    for (int64_t k = 0; k < choices; k++) {
        int level = 0;
        load_choice(call, t, k, from, n, out);
        for (; k >> level & 1; level++)
            for (int64_t i = 0; i < n; i++) out[i] += sum[level][i];
        memcpy(sum[level], out, (size_t)n * sizeof *out);
    }
    memset(out, 0, (size_t)n * sizeof *out);
    for (int level = 0; level < LEVELS; level++)
        for (int64_t i = 0; choices >> level & 1 && i < n; i++) out[i] += sum[level][i];
}

static void unpermute_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *x = &call->out[0];
    const int64_t end = min_i64((tile + 1) * TOKENS, x->n[0]);
    double sum[REF_CHUNK];
    for (int64_t t = tile * TOKENS; t < end; t++)
        for (int64_t from = 0; from < x->n[1]; from += REF_CHUNK) {
            const int64_t n = min_i64(x->n[1] - from, REF_CHUNK);
            sum_choices(call, t, from, n, sum);
            row_store(tensor_row(x, t), from, n, sum);
        }
}

Err ref_unpermute(const Call *call)
{
    ref_tiles(call, blocks_of(call->out[0].n[0], TOKENS), unpermute_tile);
    return OK;
}

static void dgate_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *dx = &call->in[0], *at = &call->in[1], *y = &call->in[2];
    const int64_t end = min_i64((tile + 1) * TOKENS, dx->n[0]);
    double a[REF_CHUNK], b[REF_CHUNK];
    for (int64_t t = tile * TOKENS; t < end; t++)
        for (int64_t k = 0; k < at->n[1]; k++) {
            double sum = 0;
            for (int64_t from = 0; from < dx->n[1] && choice(at, t, k) >= 0; from += REF_CHUNK) {
                const int64_t n = min_i64(dx->n[1] - from, REF_CHUNK);
                row_load(tensor_row(dx, t), from, n, a);
                row_load(tensor_row(y, choice(at, t, k)), from, n, b);
                for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
            }
            tensor_set(&call->out[0], t * at->n[1] + k, sum);
        }
}

Err ref_permute_dgate(const Call *call)
{
    ref_tiles(call, blocks_of(call->in[0].n[0], TOKENS), dgate_tile);
    return OK;
}
