/* rope.c -- rotary position embedding.
 *
 * Channels i and i + c/2 of a head, i < c/2, are a point in the plane, which is rotated by pos *
 * frequency(i). So q.k depends only on the distance of their positions. The gradient is the inverse
 * rotation, which is also the transpose.
 *
 * Frequencies are tabulated once per call, in revolutions per position. Whole revolutions of pos *
 * frequency are removed in f64, so large positions are as accurate as small ones. The sines and
 * cosines of a token are shared by all its heads. */
#include "device/cpu/simd/math.h"
#include "device/cpu/simd/simd.h"
#include "device/rope.h"

enum { PAIRS = 512 }; /* for heads of at most 1024 channels */

typedef struct {
    const Call *call;
    double turns[PAIRS]; /* revolutions per position */
} RopeWork;

static void rotate_head(RowRef x, RowRef y, int64_t half, const float *cosine, const float *sine)
{
    float buffer[2][2 * PAIRS];
    const float *from = read_piece(x, 0, 2 * half, buffer[0]);
    float *to = write_piece(y, 0, buffer[1]);
    for (int64_t i = 0; i < half; i += W) {
        const int64_t n = half - i;
        const V re = v_load_to(from + i, n), im = v_load_to(from + half + i, n);
        const V c = v_load_to(cosine + i, n), s = v_load_to(sine + i, n);
        v_store_to(to + i, n, re * c - im * s);
        v_store_to(to + half + i, n, im * c + re * s);
    }
    end_piece(y, 0, 2 * half, to);
}

static void rotate_token(const void *work, int64_t token)
{
    const RopeWork *r = work;
    const Tensor *x = &r->call->in[0], *y = &r->call->out[0];
    const double pos = (double)int_at(&r->call->in[1], token);
    const double rounder = 6755399441055744.0; /* 1.5 * 2^52: rounds to the nearest integer */
    const int64_t half = x->n[2] / 2;
    const float sign = r->call->attr.rope.back ? -1.0f : 1.0f;
    float cosine[PAIRS + W], sine[PAIRS + W], turns[PAIRS + W];
    for (int64_t i = 0; i < half; i++) {
        const double t = pos * r->turns[i];
        turns[i] = (float)(t - ((t + rounder) - rounder));
    }
    for (int64_t i = 0; i < half; i += W) {
        V s, c;
        v_sine_cosine(v_load_to(turns + i, half - i), &s, &c);
        v_store(sine + i, sign * s);
        v_store(cosine + i, c);
    }
    for (int64_t h = 0; h < x->n[1]; h++) {
        const int64_t row = token * x->n[1] + h;
        rotate_head(tensor_row(x, row), tensor_row(y, row), half, cosine, sine);
    }
}

Err CPU_NAME(rope)(const Call *call)
{
    const Tensor *x = &call->in[0];
    const int64_t half = x->n[2] / 2;
    if (half > PAIRS) return ref_rope(call); /* correct but slow; no known model has such heads */
    RopeWork r = {.call = call};
    const double whole = 2 * acos(-1.0);
    for (int64_t i = 0; i < half; i++) r.turns[i] = rope_frequency(&call->attr, i, x->n[2]) / whole;
    if (half > 0) run_rows(call->team, x->n[0], x->n[1] * x->n[2], rotate_token, &r);
    return OK;
}
