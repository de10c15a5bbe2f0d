/* pointwise.c -- add, scale, cast, copy, gelu, swiglu: one pass over memory each. */
#include "device/cpu/simd/pointwise.h"

#include "device/cpu/simd/math.h"

typedef struct {
    Call call;
    Formula formula;
    PointMode mode;
    int64_t per_row, pieces, per_tile;
} Walk;

static void point_piece(const Walk *w, int64_t row, int64_t from, int64_t n)
{
    _Alignas(64) float buffer[2 * MAX_POINT][PIECE];
    const float *x[MAX_POINT];
    float *y[MAX_POINT];
    const Call *c = &w->call;
    for (int k = 0; k < c->n_in; k++)
        x[k] = read_piece(tensor_row(&c->in[k], row), from, n, buffer[k]);
    for (int o = 0; o < c->n_out; o++) {
        const Row r = tensor_row(&c->out[o], row);
        y[o] = write_piece(r, from, buffer[MAX_POINT + o]);
        if (w->mode == UPDATE) (void)read_piece(r, from, n, buffer[MAX_POINT + o]);
    }
    w->formula(c, n, x, y);
    for (int o = 0; o < c->n_out; o++) end_piece(tensor_row(&c->out[o], row), from, n, y[o]);
}

static void point_tile(void *work, int64_t tile)
{
    const Walk *w = work;
    const int64_t length = row_length(&w->call.out[0]);
    const int64_t end = least((tile + 1) * w->per_tile, w->pieces);
    for (int64_t p = tile * w->per_tile; p < end; p++) {
        const int64_t from = p % w->per_row * PIECE;
        point_piece(w, p / w->per_row, from, least(length - from, PIECE));
    }
}

static bool is_dense(const Tensor *t)
{
    int64_t step = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->n[d] != 1 && t->stride[d] != step) return false;
        step *= t->n[d];
    }
    return true;
}

/* Tensors that are all dense are one long row. */
static void flatten(Call *c)
{
    for (int k = 0; k < c->n_in; k++)
        if (!is_dense(&c->in[k])) return;
    for (int o = 0; o < c->n_out; o++)
        if (!is_dense(&c->out[o])) return;
    for (int k = 0; k < c->n_in + c->n_out; k++) {
        Tensor *t = k < c->n_in ? &c->in[k] : &c->out[k - c->n_in];
        t->n[0] = tensor_count(t);
        t->stride[0] = 1;
        t->ndim = 1;
    }
}

void pointwise(const Call *call, Formula formula, PointMode mode)
{
    MUST(call->n_in <= MAX_POINT && call->n_out <= MAX_POINT, "%d inputs, %d outputs", call->n_in,
         call->n_out);
    Walk w = {.call = *call, .formula = formula, .mode = mode};
    flatten(&w.call);
    const Tensor *y = &w.call.out[0];
    w.per_row = blocks_of(row_length(y), PIECE);
    w.pieces = w.per_row * row_count(y);
    if (w.pieces == 0) return;
    w.per_tile = most(TILE_WORK / least(row_length(y), PIECE), 1);
    team_run(call->team, blocks_of(w.pieces, w.per_tile), point_tile, &w);
}

static void add_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    (void)call;
    for (int64_t i = 0; i < n; i += W)
        v_store_to(y[0] + i, n - i, v_load_to(x[0] + i, n - i) + v_load_to(x[1] + i, n - i));
}

Err CPU_NAME(add)(const Call *call)
{
    pointwise(call, add_formula, ASSIGN);
    return OK;
}

static void scale_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    const float factor = (float)call->attr.scale.factor;
    for (int64_t i = 0; i < n; i += W)
        v_store_to(y[0] + i, n - i, factor * v_load_to(x[0] + i, n - i));
}

Err CPU_NAME(scale)(const Call *call)
{
    pointwise(call, scale_formula, ASSIGN);
    return OK;
}

static void cast_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    (void)call;
    if (x[0] != y[0]) memcpy(y[0], x[0], (size_t)n * sizeof **y);
}

/* To and from f64 by way of the reference device: no step does that. */
Err CPU_NAME(cast)(const Call *call)
{
    if (call->in[0].dtype == F64 || call->out[0].dtype == F64) return ref_cast(call);
    pointwise(call, cast_formula, ASSIGN);
    return OK;
}

/* gelu(x) = x/2 (1 + tanh u) = x / (1 + e), e = exp(-2u), u = GELU_A (x + GELU_B x^3): the small values of
 * negative x keep their digits, since nothing is subtracted from 1. Relative error of a value: under
 * (5 |2u| + 7) 2^-24; most of it is that of 2u, which e has as often as 2u is large.
 *
 * Beyond GELU_FAR there is nothing to see: e is less than 1e-36 of 1, or 1 of it. */
#define GELU_A 0.797884560802865f /* sqrt(2 / pi) */
#define GELU_B 0.044715f
#define GELU_FAR 9.9f
#define LOG2_E 1.44269504f

/* e; |x| <= GELU_FAR */
static inline V gelu_rest(V x)
{
    return v_exp2(x * (-2 * GELU_A * LOG2_E - 2 * GELU_A * GELU_B * LOG2_E * x * x));
}

static inline V gelu_of(V x)
{
    const V v = v_max(v_set(-GELU_FAR), x);
    return v / (1 + gelu_rest(v_min(v_set(GELU_FAR), v)));
}

static void gelu_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    const float *const from = x[0];
    float *const to = y[0];
    int64_t i = 0;
    (void)call;
    for (; i + W <= n; i += W) v_store(to + i, gelu_of(v_load(from + i)));
    if (i < n) v_store_to(to + i, n - i, gelu_of(v_load_to(from + i, n - i)));
}

Err CPU_NAME(gelu)(const Call *call)
{
    pointwise(call, gelu_formula, ASSIGN);
    return OK;
}

/* With s = 1 / (1 + e): d/dx (x s) = s (1 + 2 u' x e s) */
static inline V gelu_slope(V x)
{
    const V v = v_min(v_set(GELU_FAR), v_max(v_set(-GELU_FAR), x));
    const V e = gelu_rest(v), s = 1 / (1 + e);
    const V two_du = 2 * GELU_A + 6 * GELU_A * GELU_B * v * v;
    return s * (1 + v * two_du * (e * s));
}

/* in: dy, x */
static void gelu_dx_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    const float *const dy = x[0], *const at = x[1];
    float *const dx = y[0];
    int64_t i = 0;
    (void)call;
    for (; i + W <= n; i += W) v_store(dx + i, v_load(dy + i) * gelu_slope(v_load(at + i)));
    if (i < n)
        v_store_to(dx + i, n - i, v_load_to(dy + i, n - i) * gelu_slope(v_load_to(at + i, n - i)));
}

Err CPU_NAME(gelu_dx)(const Call *call)
{
    pointwise(call, gelu_dx_formula, ASSIGN);
    return OK;
}

/* in: gate, up */
static void swiglu_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    (void)call;
    for (int64_t i = 0; i < n; i += W) {
        V rest;
        const V gate = v_load_to(x[0] + i, n - i), up = v_load_to(x[1] + i, n - i);
        v_store_to(y[0] + i, n - i, gate * v_logistic(gate, &rest) * up);
    }
}

Err CPU_NAME(swiglu)(const Call *call)
{
    pointwise(call, swiglu_formula, ASSIGN);
    return OK;
}

/* in: dy, gate, up   out: dgate, dup.   silu' = s (1 + gate (1 - s)), s the logistic of gate */
static void swiglu_dx_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    (void)call;
    for (int64_t i = 0; i < n; i += W) {
        V rest;
        const V dy = v_load_to(x[0] + i, n - i), gate = v_load_to(x[1] + i, n - i);
        const V up = v_load_to(x[2] + i, n - i), s = v_logistic(gate, &rest);
        v_store_to(y[0] + i, n - i, dy * up * s * (1 + gate * rest));
        v_store_to(y[1] + i, n - i, dy * gate * s);
    }
}

Err CPU_NAME(swiglu_dx)(const Call *call)
{
    pointwise(call, swiglu_dx_formula, ASSIGN);
    return OK;
}
