/* card.h -- internal to the measurement of a device with memory of its own.
 *
 *     card.c          operands, and seconds by the device's own clock
 *     card_gemm.c     the grid of GEMMs, epilogues
 *     card_rates.c    launches, memory, attention, norms, the loss, the update
 *
 * A step keeps the device busy for as long as it runs, and a device at its power limit lowers its
 * clock. So kernels run back to back until the clock has settled, and are timed while they go on:
 *
 *     | HEAT x budget             | budget: batches, each between two timestamps |
 *
 * Steps are captured as graphs; so are the batches. Operands are random, since zeros need less
 * power. */
#ifndef PLAN_MEASURE_CARD_H
#define PLAN_MEASURE_CARD_H

#include "plan/measure/parts.h"

/* Work of one repetition: puts kernels into m->queue. */
typedef Err CardWork(Measurer *m, void *work);

/* Local. Sets the median seconds of the work and its spread in *row. */
Err card_seconds(Measurer *m, CardWork *enqueue, void *work, Measured *row);
/* Local. The same of one call. */
Err card_call_seconds(Measurer *m, KernelId kernel, const Call *call, double *seconds);
/* Local. A random operand in device memory; ERR_NOMEM if m->operands is full. */
Err card_tensor(Measurer *m, DType dtype, int ndim, const int64_t *n, Tensor *out);
Err card_matrix(Measurer *m, DType dtype, int64_t rows, int64_t columns, Tensor *out);
/* Local. Copies integers to a new operand. */
Err card_integers(Measurer *m, int ndim, const int64_t *n, const int32_t *value, Tensor *out);
/* Local. Appends a row of the report. */
void card_keep(Measurer *m, const char *what, const char *unit, double value, double spread);

Err card_gemms(Measurer *m);
Err card_rates(Measurer *m);

#endif
