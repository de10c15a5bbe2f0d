/* verify.h -- checks that a layout computes the same model, in four grades.
 *
 *     grade     device        reference                                  bound
 *     f64       ref           one rank: one SGD step, some of AdamW      1e-10
 *     exact     the run's     a layout with the same order of sums:      equal bits
 *                             ZeRO 0 on the same mesh, one stage, or
 *                             one rank with numerics.fold
 *     bounded   the run's     one rank: loss, gradients, one SGD step    derived: see trial.h
 *     bf16      the run's     the same; errors of both against f64       1.5 times that of one rank
 *
 * A run in bf16 has grade bf16 in place of bounded: bf16 has 8 bits, so the derived bound is near 1
 * and no fault exceeds it. Deviations of grade bf16 are multiples of the error of one rank. With
 * experts f64 computes with the choices of each trial in bf16, and those are judged by themselves:
 * another expert than that of f64 is right only at a tie that rounding explains (choices.h).
 *
 * Compared are the loss, the norm and all elements of the gradient, the weights and the loss of
 * validation; in grade f64 also the tokens that the trained weights generate.
 *
 * AdamW in f32 divides rounding by rounding where a gradient is nearly zero; so AdamW is compared
 * in f64; in f32 only its loss curve is. Bytes sent are compared with the prediction and must be
 * equal. */
#ifndef VERIFY_VERIFY_H
#define VERIFY_VERIFY_H

#include "verify/layouts.h"
#include "verify/trial.h"

typedef enum { GRADE_F64, GRADE_EXACT, GRADE_BOUNDED, GRADE_BF16, N_GRADES } Grade;

typedef struct {
    const ModelConfig *config;
    BatchShape batch;
    int64_t global; /* sequences a step; 0: two micro-batches per dp rank, the last one short */
    const Device *device; /* of all grades but f64 */
    /* Of device memory, in these grades; NULL: ranks copy it themselves. */
    const TransportSettings *transport;
    CommWorld *processes; /* as launched: layouts of as many ranks; NULL: ranks are threads */
    bool own_order;       /* the transport may choose the order of its sums */
    bool on_device_only;  /* without grade f64 */
    DType dtype;
    CompileOptions compile;      /* recompute and offload */
    const StageRecompute *stage; /* [n_stage_rules]: as in JobSettings, for every layout */
    int n_stage_rules;
    PatternOrigins origin; /* as in JobSettings */
    const char *schedule;
    OptimSettings optim;
    double lr;
    uint64_t seed;
    int steps;      /* of AdamW */
    bool is_plain;  /* grade f64 only */
    bool documents; /* sequences are packed documents */
    bool blank;     /* the second half of each step's sequences has no live tokens */
} VerifySettings;

/* The result of one layout in one grade. */
typedef struct {
    ParallelSettings layout, reference; /* reference: the layout to compare with */
    Grade grade;
    double loss, norm, valid; /* greatest deviations of the loss, gradient norm, validation loss */
    double gradient, weight, bound; /* greatest deviations; weight: after all steps */
    bool same_text;  /* greedy generation gives the same tokens; true in grades without it */
    double copies;   /* greatest difference between copies on different ranks */
    char worst[128]; /* parameter whose gradient deviates most */
    int64_t sent_bytes, predicted_bytes; /* in all steps */
    /* Grade bf16 with experts (choices.h): choices of a token in a layer that are not those of f64,
     * the widest tie for its bound, and its unit. */
    int64_t ties, one_ties; /* one_ties: of one rank */
    double tie, tie_bound;
    char tie_at[64];
    bool same_choices; /* ranks that choose for the same token agree */
    bool ok;
} VerifyLine;

enum { MAX_VERIFY_LINES = 3 };

/* Checks one layout in all grades that apply to it. A deviation is a line that is not ok, not an
 * error. Collective over the processes, if there are any; then the first one has the result, and
 * lines of the others are ok. */
Err verify_layout(const VerifySettings *s, const ParallelSettings *layout, Arena *arena,
                  VerifyLine *line, int *n);

const char *grade_name(Grade g);

/* Local. A smaller model of the same kind: fewer layers, narrow heads; the ratio of query to key
 * heads and tied weights are kept. False if the model is that small already. */
bool verify_shrink(const ModelConfig *config, ModelConfig *out);

#endif
