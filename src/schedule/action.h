/* action.h -- what the ranks do in one step, as lists.
 *
 * A schedule holds a list of actions for each rank. Generators write RUNs over chunks (runs of
 * units); passes expand chunks to units and add the rest. Nothing else decides the order of work.
 *
 *     rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2 norm update.0
 *             | | |
 *             | | micro-batch        a slice follows after another dot: F0.1.3
 *             | chunk, or unit once expanded
 *             phase
 *
 * B is I (gradients of inputs) and W (gradients of parameters) ordered together. */
#ifndef SCHEDULE_ACTION_H
#define SCHEDULE_ACTION_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "ir/phase.h"

typedef enum {
    A_RUN,    /* phase of (unit, micro, slice) */
    A_SEND,   /* to peer: the output of F, or the input gradient of I or B, of (unit, micro, slice) */
    A_RECV,   /* from peer: the same value; (unit, micro, slice) and phase name its producer */
    A_GATHER, /* the unit's parameters, home to use */
    A_DROP,   /* the gathered parameters */
    A_REDUCE, /* the unit's gradients, over the axes where they are partial; micro -1: the step's sum */
    A_NORM,   /* of all gradients; everything before it is finished */
    A_UPDATE, /* the unit's parameters */
    A_EVICT,  /* the frame of (unit, micro, slice) to peer, or to the host when peer is -1 */
    A_FETCH,  /* and back */
    A_BIND,   /* the step's sub-program into slot `unit` */
    N_ACTION_KINDS
} ActionKind;

typedef struct {
    uint8_t kind, phase;
    int16_t unit, micro, slice, peer; /* peer -1: none */
} Action;

typedef enum { OVER_CHUNKS, OVER_UNITS } Grain;

typedef struct {
    Grain grain;
    int ranks, chunks, micros, slices;
    const int16_t *rank_of;    /* [chunks]: the pipeline rank that holds the chunk */
    const int16_t *first_unit; /* [chunks + 1]: chunk c is units first_unit[c] .. first_unit[c+1]-1 */
    int *n;                    /* [ranks] */
    Action **list;             /* [ranks][n[rank]] */
} Schedule;

static inline Action action_run(Phase phase, int unit, int micro, int slice)
{
    return (Action){A_RUN, (uint8_t)phase, (int16_t)unit, (int16_t)micro, (int16_t)slice, -1};
}

static inline Action action_of(ActionKind kind, int unit)
{
    return (Action){(uint8_t)kind, PHASE_F, (int16_t)unit, -1, 0, -1};
}

static inline int schedule_units(const Schedule *s)
{
    return s->first_unit[s->chunks];
}

#endif
