/* choices.h -- the experts that a trial chooses: recorded under any layout, replayed on one rank in
 * f64, and judged.
 *
 * A router takes the K largest of E values. Near a tie rounding decides, so two layouts in bf16 may
 * choose other experts for a token and both be right. A change of expert is no error of arithmetic.
 * So a trial in bf16 is compared with f64 that is given its choices, and the choices are judged by
 * themselves:
 *
 *     token         0       1       2
 *     bf16          0 3 5   1 2 6   0 4 7     recorded
 *     f64           0 3 5   1 2 5   0 4 7     what f64 chooses after the same choices in the layers
 *                               ^             before: 5 and 6 are 3e-3 apart there, a tie of 3e-3
 *     f64, given    0 3 5   1 2 6   0 4 7     what f64 computes on with
 *
 * Rounding explains a tie of up to 8 sqrt(2) times the error of one value. That error is the root
 * mean square by which values of one rank in bf16 deviate from f64 in that layer. The difference of
 * two values has sqrt(2) of it, if their errors are independent, and the factor 8 is that of
 * trial.h. Choices that a capacity drops are judged in the same way, by gates. If position decides,
 * they must be those of f64.
 *
 * Not judged: the number of ties. A fault that moves values by less than the bound passes: a
 * selection bias of the step before, if it changes by less. So does one that is the same on one
 * rank, whose error is the measure. Grade f64 has neither gap. */
#ifndef VERIFY_CHOICES_H
#define VERIFY_CHOICES_H

#include <pthread.h>
#include "verify/trial.h"
#include "world/world.h"

/* The sequences of the step, and those of validation. */
typedef enum { ROUTED_STEP, ROUTED_VALID, N_ROUTED } Routed;

/* Deviations of a trial from f64 that was given its choices. */
typedef struct {
    double value_squares, n_values; /* values by which experts are chosen */
    double gate_squares, n_gates;
    double ties;      /* tokens with other experts, and choices that only one of the two drops */
    double tie, drop; /* the widest, in values and in gates */
} ChoiceErrors;

/* The choices of one step, and of one of validation. */
struct ExpertChoices {
    int units;
    int64_t global, seq_len; /* sequences of a step */
    int64_t experts, chosen;
    /* [N_ROUTED, units, tokens, 3 chosen + experts]: experts, gates, whether they are kept, values
     * of all experts; -infinity: nothing is recorded. */
    double *cell;
    bool differs; /* two ranks have chosen differently for a token */
    pthread_mutex_t lock;
    const ExpertChoices *given; /* the choices to replay: one rank, F64, on the host; or NULL */
    ChoiceErrors *unit;         /* [units]; with `given` */
};

/* The part of a rank, with one program. */
typedef struct {
    ExpertChoices *to;
    const Job *job;
    Routed which;
    Arena *temp;
} ChoiceRank;

/* Local. Opens the record of a trial, of a model of so many units. */
Err choices_open(const TrialSettings *s, int units, Arena *arena, ExpertChoices *out);
/* Local. RankSettings.observer of a rank that records, or replays. */
RankObserver choices_observer(ChoiceRank *r);
/* Collective over the processes of the world: gives the records of all to all. */
Err choices_merge(WorldRank *w, ExpertChoices *r);
/* Local. True if both have the same experts, and drop the same. */
bool choices_same(const ExpertChoices *a, const ExpertChoices *b);

typedef struct {
    int64_t ties;      /* tokens in layers, see ChoiceErrors */
    double tie, bound; /* the widest tie for its bound, and that bound */
    int unit;          /* of that tie */
} ChoiceTies;
/* Local. True if tie a is wider for its bound than b. */
bool choices_wider(const ChoiceTies *a, const ChoiceTies *b);
/* Local. Ties of a trial whose choices were replayed in `exact`; `one` has replayed those of one
 * rank, whose errors give the bounds. */
ChoiceTies choices_ties(const ExpertChoices *exact, const ExpertChoices *one);

#endif
