/* switches.h -- per pack: when parameters are gathered, how long they stay, when gradients are
 * reduced, and where they are stored.
 *
 *     zero   gather   keep   reduce       the pack is stored
 *     0      step     step   last         whole on every rank: nothing to gather
 *     1      step     step   last         sharded over the shard axes
 *     2      step     step   each         sharded
 *     3      use      no     each         sharded
 *
 * ZeRO levels are names of four rows. Each pack has its own row, and the passes (gather.h,
 * reduce.h) read rows: a table with some packs whole and others gathered per use needs no other
 * code. */
#ifndef SCHEDULE_SWITCHES_H
#define SCHEDULE_SWITCHES_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    GATHER_STEP, /* once, before the step's first use */
    GATHER_USE   /* before each use for which the pack is not still gathered */
} GatherWhen;

typedef enum {
    KEEP_STEP,        /* to the step's last use */
    KEEP_TO_BACKWARD, /* from F to the last backward phase of that micro-batch that reads it */
    KEEP_NO           /* to the end of the use, and longer while the limit `live` allows */
} KeepUntil;

typedef enum {
    REDUCE_AFTER_LAST, /* after the last micro-batch: the step's sum */
    REDUCE_AFTER_EACH
} ReduceWhen;

/* The memory of a pack's home. */
typedef enum {
    PLACE_DEVICE,
    PLACE_HOST /* not yet: linking refuses it */
} PackPlace;

typedef struct {
    uint8_t gather, keep, reduce;
    bool sharded; /* the pack is sharded over the shard axes of its view */
    uint8_t place;
} PackSwitches;

/* The row of a ZeRO level, 0 to 3. Levels 2 and 3 reduce after each micro-batch in any case. */
static inline PackSwitches switches_of_zero(int zero, bool reduce_each)
{
    return (PackSwitches){.gather = zero == 3 ? GATHER_USE : GATHER_STEP,
                          .keep = zero == 3 ? KEEP_NO : KEEP_STEP,
                          .reduce =
                              zero >= 2 || reduce_each ? REDUCE_AFTER_EACH : REDUCE_AFTER_LAST,
                          .sharded = zero >= 1};
}

/* The number of micro-batches that are summed on the rank before a REDUCE. */
static inline int switches_group(PackSwitches row, int micros)
{
    return row.reduce == REDUCE_AFTER_EACH ? 1 : micros;
}

#endif
