/* pointwise.c -- add, scale, cast, gelu, swiglu and their gradients: a formula per element.
 *
 * All tensors of a call are split alike, into pieces of at most REF_CHUNK elements of a row; a tile
 * is a run of pieces. A piece is read whole before it is written, so outputs may be inputs. */
#include "device/ref/pointwise.h"

#include <math.h>

enum { PIECES = 16 }; /* per tile: a row of a head may be short */

typedef struct {
    const Call *call;
    Formula formula;
    PointMode mode;
    int64_t per_row, pieces; /* pieces of a row, of all rows */
} PointwiseWalk;

static void point_piece(const PointwiseWalk *w, int64_t row, int64_t from, int64_t n)
{
    const Call *call = w->call;
    double x[MAX_POINT][REF_CHUNK], y[MAX_POINT][REF_CHUNK];
    for (int k = 0; k < call->n_in; k++) row_load(tensor_row(&call->in[k], row), from, n, x[k]);
    if (w->mode == UPDATE)
        for (int o = 0; o < call->n_out; o++)
            row_load(tensor_row(&call->out[o], row), from, n, y[o]);
    w->formula(call, n, x, y);
    for (int o = 0; o < call->n_out; o++) row_store(tensor_row(&call->out[o], row), from, n, y[o]);
}

static void point_tile(void *work, int64_t tile)
{
    const PointwiseWalk *w = work;
    const int64_t length = row_length(&w->call->out[0]);
    const int64_t end = min_i64((tile + 1) * PIECES, w->pieces);
    for (int64_t p = tile * PIECES; p < end; p++) {
        const int64_t from = p % w->per_row * REF_CHUNK;
        point_piece(w, p / w->per_row, from, min_i64(length - from, REF_CHUNK));
    }
}

void pointwise(const Call *call, Formula formula, PointMode mode)
{
    const Tensor *y = &call->out[0];
    PointwiseWalk w = {call, formula, mode, blocks_of(row_length(y), REF_CHUNK), 0};
    MUST(call->n_in <= MAX_POINT && call->n_out <= MAX_POINT, "%d inputs, %d outputs", call->n_in,
         call->n_out);
    w.pieces = w.per_row * row_count(y);
    if (w.pieces > 0) team_run(call->team, blocks_of(w.pieces, PIECES), point_tile, &w);
}

static void add_formula(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK])
{
    (void)call;
    for (int64_t i = 0; i < n; i++) y[0][i] = x[0][i] + x[1][i];
}

Err ref_add(const Call *call)
{
    pointwise(call, add_formula, ASSIGN);
    return OK;
}

static void add_to_formula(const Call *call, int64_t n, double x[][REF_CHUNK],
                           double y[][REF_CHUNK])
{
    for (int64_t i = 0; i < n; i++) y[0][i] = call->number[0] * y[0][i] + x[0][i];
}

Err ref_add_to(const Call *call)
{
    if (call->number[0] == 0) return ref_cast(call); /* the old content may be NaN */
    pointwise(call, add_to_formula, UPDATE);
    return OK;
}

static void scale_formula(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK])
{
    for (int64_t i = 0; i < n; i++) y[0][i] = call->attr.scale.factor * x[0][i];
}

Err ref_scale(const Call *call)
{
    pointwise(call, scale_formula, ASSIGN);
    return OK;
}

static void cast_formula(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK])
{
    (void)call;
    for (int64_t i = 0; i < n; i++) y[0][i] = x[0][i];
}

Err ref_cast(const Call *call)
{
    pointwise(call, cast_formula, ASSIGN);
    return OK;
}

static void gelu_formula(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK])
{
    (void)call;
    for (int64_t i = 0; i < n; i++) y[0][i] = gelu_at(x[0][i]);
}

Err ref_gelu(const Call *call)
{
    pointwise(call, gelu_formula, ASSIGN);
    return OK;
}

/* in: dy, x */
static void gelu_dx_formula(const Call *call, int64_t n, double x[][REF_CHUNK],
                            double y[][REF_CHUNK])
{
    (void)call;
    for (int64_t i = 0; i < n; i++) y[0][i] = x[0][i] * gelu_slope_at(x[1][i]);
}

Err ref_gelu_dx(const Call *call)
{
    pointwise(call, gelu_dx_formula, ASSIGN);
    return OK;
}

/* in: gate, up */
static void swiglu_formula(const Call *call, int64_t n, double x[][REF_CHUNK],
                           double y[][REF_CHUNK])
{
    (void)call;
    for (int64_t i = 0; i < n; i++) y[0][i] = x[0][i] / (1 + exp(-x[0][i])) * x[1][i];
}

Err ref_swiglu(const Call *call)
{
    pointwise(call, swiglu_formula, ASSIGN);
    return OK;
}

/* in: dy, gate, up   out: dgate, dup */
static void swiglu_dx_formula(const Call *call, int64_t n, double x[][REF_CHUNK],
                              double y[][REF_CHUNK])
{
    (void)call;
    for (int64_t i = 0; i < n; i++) swiglu_dx_at(x[0][i], x[1][i], x[2][i], &y[0][i], &y[1][i]);
}

Err ref_swiglu_dx(const Call *call)
{
    pointwise(call, swiglu_dx_formula, ASSIGN);
    return OK;
}
