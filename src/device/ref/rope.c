/* rope.c -- rotary positions.
 *
 * Channel i of a head, i < c/2, and channel i + c/2 are a point in the plane, which is rotated by
 * pos * frequency(i). So q.k depends on the distance of their positions alone. The inverse rotation
 * is the transpose, which is the gradient. */
#include "device/ref/ref.h"

#include <math.h>
#include "device/rope.h"

enum { TOKENS = 16 }; /* of a tile */

typedef struct {
    int64_t from, n, half; /* pairs [from, from + n) of the c/2 pairs of a head */
    double frequency[REF_CHUNK], cosine[REF_CHUNK], sine[REF_CHUNK];
} Rotation;

static void rotate_head(RowRef x, RowRef y, const Rotation *t)
{
    double a[REF_CHUNK], b[REF_CHUNK];
    row_load(x, t->from, t->n, a);
    row_load(x, t->half + t->from, t->n, b);
    for (int64_t i = 0; i < t->n; i++) {
        const double re = a[i], im = b[i];
        a[i] = re * t->cosine[i] - im * t->sine[i];
        b[i] = im * t->cosine[i] + re * t->sine[i];
    }
    row_store(y, t->from, t->n, a);
    row_store(y, t->half + t->from, t->n, b);
}

static void rotate_token(const Call *call, int64_t token, Rotation *t)
{
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const double pos = (double)int_at(&call->in[1], token);
    const double sign = call->attr.rope.back ? -1 : 1;
    for (int64_t i = 0; i < t->n; i++) {
        t->cosine[i] = cos(pos * t->frequency[i]);
        t->sine[i] = sign * sin(pos * t->frequency[i]);
    }
    for (int64_t h = 0; h < x->n[1]; h++) {
        const int64_t row = token * x->n[1] + h;
        rotate_head(tensor_row(x, row), tensor_row(y, row), t);
    }
}

static void rope_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *x = &call->in[0];
    const int64_t end = min_i64((tile + 1) * TOKENS, x->n[0]);
    Rotation t = {.half = x->n[2] / 2};
    for (t.from = 0; t.from < t.half; t.from += REF_CHUNK) {
        t.n = min_i64(t.half - t.from, REF_CHUNK);
        for (int64_t i = 0; i < t.n; i++)
            t.frequency[i] = rope_frequency(&call->attr, t.from + i, x->n[2]);
        for (int64_t token = tile * TOKENS; token < end; token++) rotate_token(call, token, &t);
    }
}

Err ref_rope(const Call *call)
{
    ref_tiles(call, blocks_of(call->in[0].n[0], TOKENS), rope_tile);
    return OK;
}
