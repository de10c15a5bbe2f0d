/* sigmoid_gate.c -- rows scaled by the sigmoid of a number each: the gate of a shared expert. */
#include "device/ref/ref.h"

#include <math.h>

enum { ROWS = 16 };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void gate_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t end = min_i64((tile + 1) * ROWS, y->n[0]);
    double row[REF_CHUNK];
    for (int64_t t = tile * ROWS; t < end; t++) {
        const double gate = sigmoid(tensor_get(&call->in[1], t));
        for (int64_t from = 0; from < y->n[1]; from += REF_CHUNK) {
            const int64_t n = min_i64(y->n[1] - from, REF_CHUNK);
            row_load(tensor_row(x, t), from, n, row);
            for (int64_t i = 0; i < n; i++) row[i] *= gate;
            row_store(tensor_row(y, t), from, n, row);
        }
    }
}

Err ref_sigmoid_gate(const Call *call)
{
    ref_tiles(call, blocks_of(call->out[0].n[0], ROWS), gate_tile);
    return OK;
}

static void gate_dx_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *dy = &call->in[0], *x = &call->in[1], *dx = &call->out[0];
    const int64_t end = min_i64((tile + 1) * ROWS, dx->n[0]);
    double row[REF_CHUNK], other[REF_CHUNK];
    for (int64_t t = tile * ROWS; t < end; t++) {
        const double gate = sigmoid(tensor_get(&call->in[2], t));
        double sum = 0;
        for (int64_t from = 0; from < dx->n[1]; from += REF_CHUNK) {
            const int64_t n = min_i64(dx->n[1] - from, REF_CHUNK);
            row_load(tensor_row(dy, t), from, n, row);
            row_load(tensor_row(x, t), from, n, other);
            for (int64_t i = 0; i < n; i++) {
                sum += row[i] * other[i];
                row[i] *= gate;
            }
            row_store(tensor_row(dx, t), from, n, row);
        }
        tensor_set(&call->out[1], t, sum * gate * (1 - gate));
    }
}

Err ref_sigmoid_gate_dx(const Call *call)
{
    ref_tiles(call, blocks_of(call->out[0].n[0], ROWS), gate_dx_tile);
    return OK;
}
