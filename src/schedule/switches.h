/* switches.h -- when a unit's parameters come, how long they stay, when its gradients leave.
 *
 *     zero   gather   keep   reduce       the pack lies
 *     0      step     step   last         whole on every rank: nothing to gather
 *     1      step     step   last         cut over the shard axes
 *     2      step     step   each         cut
 *     3      use      no     each         cut
 *
 * These are names for four rows. Each unit has a row of its own, and the passes (gather.h,
 * reduce.h) read rows: some units whole and others gathered for each use is one more table. */
#ifndef SCHEDULE_SWITCHES_H
#define SCHEDULE_SWITCHES_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    GATHER_STEP, /* once, before the step's first use */
    GATHER_USE   /* before each use that does not find it there */
} GatherWhen;

typedef enum {
    KEEP_STEP,        /* to the step's last use */
    KEEP_TO_BACKWARD, /* from F to the last backward phase of that micro-batch that reads it */
    KEEP_NO           /* to the end of the use, and beyond as far as `live` has room */
} KeepUntil;

typedef enum {
    REDUCE_AFTER_LAST, /* micro-batch: the step's sum */
    REDUCE_AFTER_EACH
} ReduceWhen;

typedef struct {
    uint8_t gather, keep, reduce;
    bool sharded; /* the pack is cut over the shard axes */
} UnitSwitches;

/* The row of a level, 0 to 3; levels 2 and 3 reduce after each micro-batch in any case. */
static inline UnitSwitches switches_of_zero(int zero, bool reduce_each)
{
    return (UnitSwitches){.gather = zero == 3 ? GATHER_USE : GATHER_STEP,
                          .keep = zero == 3 ? KEEP_NO : KEEP_STEP,
                          .reduce =
                              zero >= 2 || reduce_each ? REDUCE_AFTER_EACH : REDUCE_AFTER_LAST,
                          .sharded = zero >= 1};
}

/* How many micro-batches are summed on the rank before a REDUCE. */
static inline int switches_group(UnitSwitches row, int micros)
{
    return row.reduce == REDUCE_AFTER_EACH ? 1 : micros;
}

#endif
