/* tp_search.h -- the layouts of weights along tp that take the least time, by the search of place
 * with weights as choices.
 *
 *     before:  strategy_rows.c pins q_proj, up_proj, ... as Megatron has them
 *     here:    each open weight (tp_weights.h) may be whole, or along its outputs or its inputs;
 *              the search chooses these and the placements of all values together
 *
 * The seconds are those of one micro-batch: work and transfers, forward and backward, and a share
 * of what is done once a step. That is the sum over tp of gradients of which ranks have summands,
 * as those of whole weights whose tokens are sharded; and a price for each element that a rank has
 * of a weight: of its memory, its update, its reduction over data ranks. */
#ifndef COMPILE_TP_SEARCH_H
#define COMPILE_TP_SEARCH_H

#include "compile/compile.h"
#include "compile/tp_weights.h"
#include "cost/cost.h"

typedef struct {
    const CostRates *rates;
    double micros;     /* micro-batches of a step on a rank */
    double element_s;  /* seconds of a step that an element of a weight on a rank costs */
    const bool *fixed; /* [params of the unit]: weights that stay as the strategy has them; NULL:
                        * none. Those that other units hold too must be. */
} TpSearchOptions;

typedef struct {
    TpLayout *layout;  /* [params of the unit]: of open weights */
    double seconds;    /* of these layouts */
    double megatron_s; /* of Megatron's */
    bool exact;        /* no other layouts take less; else there were too many to say so */
} TpSearchResult;

/* Local. Searches a unit. o: as for compile_unit, with a strategy without rules of weights. */
Err tp_search(const Graph *unit, const CompileOptions *o, const TpSearchOptions *set, Arena *arena,
              TpSearchResult *out);
/* Local. The seconds of these layouts, by the same measure; ERR_CHECK if no placement has them. */
Err tp_search_seconds(const Graph *unit, const CompileOptions *o, const TpSearchOptions *set,
                      const TpLayout *layout, Arena *arena, double *out);

#endif
