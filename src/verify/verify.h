/* verify.h -- is the model under a layout the same model? Three grades, each with its bound.
 *
 *     grade     on            beside                                     bound
 *     f64       ref           one rank: one SGD step, some of AdamW      1e-10
 *     exact     the device    what must give the same bits: zero 0 on    every bit
 *                             the same mesh, or one rank that folds
 *                             sums as dp ranks do
 *     bounded   the device    one rank: loss, gradients, one SGD step    derived: see trial.h
 *
 * AdamW in f32 divides rounding by rounding where a gradient is nearly zero; so it is judged in f64,
 * and in f32 by its curve. Bytes that left ranks are compared with the prediction, byte for byte. */
#ifndef VERIFY_VERIFY_H
#define VERIFY_VERIFY_H

#include "verify/layouts.h"
#include "verify/trial.h"

typedef enum { GRADE_F64, GRADE_EXACT, GRADE_BOUNDED, N_GRADES } Grade;

typedef struct {
    const ModelConfig *config;
    BatchShape batch;
    int64_t global;       /* sequences a step; 0: two micro-batches for each dp rank, one short */
    const Device *device; /* of exact and bounded */
    DType dtype;
    CompileOptions compile; /* recompute and offload */
    const char *schedule;
    OptimSettings optim;
    double lr;
    uint64_t seed;
    int steps;     /* of AdamW */
    bool is_plain; /* f64 alone */
    bool blank;    /* the last half of each step's sequences has no live tokens */
} VerifySettings;

/* One layout under one grade. */
typedef struct {
    ParallelSettings layout, beside; /* beside: what it is compared with */
    Grade grade;
    double loss, gradient, weight, bound; /* greatest deviations; weight: after all steps */
    double copies;                        /* between ranks that hold the same */
    char worst[128];                      /* the parameter whose gradient deviates most */
    int64_t sent_bytes, predicted_bytes;  /* in all steps */
    bool ok;
} VerifyLine;

enum { MAX_VERIFY_LINES = 3 };

/* Local: ranks are threads. The lines of one layout, as many grades as apply to it. An error is of the run itself; a
 * deviation is a line that is not ok. */
Err verify_layout(const VerifySettings *s, const ParallelSettings *layout, Arena *arena,
                  VerifyLine *line, int *n);

const char *grade_name(Grade g);

/* Local. A model of the same make that is quick to try: fewer layers, narrow heads; how heads, key heads and ties are is
 * kept. False when it is that small already. */
bool verify_shrink(const ModelConfig *config, ModelConfig *out);

#endif
