/* pointwise.c -- the elementwise loop, and add, scale, cast, swiglu: one pass over memory each.
 * gelu is in pointwise_gelu.c. */
#include "device/cpu/simd/pointwise.h"

#include "device/cpu/simd/math.h"

typedef struct {
    Call call;
    VectorFormula formula;
    DirectFormula direct;
    PointwiseMode mode;
    int64_t per_row, pieces, per_tile;
} PointwiseWork;

/* Runs the direct formula if the pieces allow it; returns the number of elements done. */
static int64_t direct_part(const PointwiseWork *w, int64_t row, int64_t from, int64_t n)
{
    const Call *c = &w->call;
    const ElementForm form = form_of_type(c->out[0].dtype);
    const void *x[MAX_POINTWISE];
    void *y[MAX_POINTWISE];
    if (!w->direct || form == AS_OTHER) return 0;
    for (int k = 0; k < c->n_in + c->n_out; k++) {
        const bool in = k < c->n_in;
        const RowRef r = tensor_row(in ? &c->in[k] : &c->out[k - c->n_in], row);
        if (!piece_is_contiguous(r, c->out[0].dtype)) return 0;
        *(in ? &x[k] : (const void **)&y[k - c->n_in]) = piece_at(r, from);
    }
    return w->direct(form, n, x, y);
}

static void point_piece(const PointwiseWork *w, int64_t row, int64_t from, int64_t n)
{
    _Alignas(64) float buffer[2 * MAX_POINTWISE][PIECE];
    const float *x[MAX_POINTWISE];
    float *y[MAX_POINTWISE];
    const Call *c = &w->call;
    for (int k = 0; k < c->n_in; k++)
        x[k] = read_piece(tensor_row(&c->in[k], row), from, n, buffer[k]);
    for (int o = 0; o < c->n_out; o++) {
        const RowRef r = tensor_row(&c->out[o], row);
        y[o] = write_piece(r, from, buffer[MAX_POINTWISE + o]);
        if (w->mode == UPDATE) (void)read_piece(r, from, n, buffer[MAX_POINTWISE + o]);
    }
    w->formula(c, n, x, y);
    for (int o = 0; o < c->n_out; o++) end_piece(tensor_row(&c->out[o], row), from, n, y[o]);
}

static void point_tile(void *work, int64_t tile)
{
    const PointwiseWork *w = work;
    const int64_t length = row_length(&w->call.out[0]);
    const int64_t end = min_i64((tile + 1) * w->per_tile, w->pieces);
    for (int64_t p = tile * w->per_tile; p < end; p++) {
        const int64_t row = p / w->per_row, from = p % w->per_row * PIECE;
        const int64_t n = min_i64(length - from, PIECE), done = direct_part(w, row, from, n);
        if (done < n) point_piece(w, row, from + done, n - done);
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

/* Turns tensors into one long row each if all of them are dense. */
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

static void pointwise_run(PointwiseWork *w)
{
    MUST(w->call.n_in <= MAX_POINTWISE && w->call.n_out <= MAX_POINTWISE, "%d inputs, %d outputs",
         w->call.n_in, w->call.n_out);
    flatten(&w->call);
    const Tensor *y = &w->call.out[0];
    w->per_row = blocks_of(row_length(y), PIECE);
    w->pieces = w->per_row * row_count(y);
    if (w->pieces == 0) return;
    w->per_tile = max_i64(TILE_WORK / min_i64(row_length(y), PIECE), 1);
    team_run(w->call.team, blocks_of(w->pieces, w->per_tile), point_tile, w);
}

void pointwise(const Call *call, VectorFormula formula, PointwiseMode mode)
{
    pointwise_run(&(PointwiseWork){.call = *call, .formula = formula, .mode = mode});
}

void pointwise_direct(const Call *call, VectorFormula formula, DirectFormula direct)
{
    pointwise_run(
        &(PointwiseWork){.call = *call, .formula = formula, .direct = direct, .mode = ASSIGN});
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

static void add_to_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    const float keep = (float)call->number[0];
    for (int64_t i = 0; i < n; i += W)
        v_store_to(y[0] + i, n - i, keep * v_load_to(y[0] + i, n - i) + v_load_to(x[0] + i, n - i));
}

Err CPU_NAME(add_to)(const Call *call)
{
    if (call->number[0] == 0) return CPU_NAME(cast)(call); /* the old content may be NaN */
    pointwise(call, add_to_formula, UPDATE);
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

/* f64 is left to the reference device: no training step on device cpu uses it. */
Err CPU_NAME(cast)(const Call *call)
{
    if (call->in[0].dtype == F64 || call->out[0].dtype == F64) return ref_cast(call);
    pointwise(call, cast_formula, ASSIGN);
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

/* in: dy, gate, up out: dgate, dup. silu' = s (1 + gate (1 - s)), s the logistic of gate */
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
