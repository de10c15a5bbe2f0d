/* action.h -- what the stages do in one step, as lists.
 *
 * A schedule holds a list of actions for each stage. Generators write RUNs over chunks (runs of
 * units); passes expand chunks to units and add the rest. Nothing else decides the order of work.
 *
 *     stage 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2 norm update.0
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
    A_SEND,   /* to peer: the output of F, or the input gradient of I or B */
    A_RECV,   /* from peer: the same; phase, unit, micro and slice name the producer in both */
    A_GATHER, /* the unit's parameters, home to use */
    A_DROP,   /* the gathered parameters */
    A_REDUCE, /* the unit's gradients, where they are partial; micro -1: the step's sum */
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
    int stages, chunks, micros, slices;
    const int16_t *stage_of;   /* [chunks]: the pipeline stage that holds the chunk */
    const int16_t *first_unit; /* [chunks + 1]: chunk c is first_unit[c] .. first_unit[c+1]-1 */
    int *n;                    /* [stages] */
    Action **list;             /* [stages][n[stage]] */
} Schedule;

static inline Action action_run(Phase phase, int unit, int micro, int slice)
{
    return (Action){A_RUN, (uint8_t)phase, (int16_t)unit, (int16_t)micro, (int16_t)slice, -1};
}

static inline Action action_of(ActionKind kind, int unit)
{
    return (Action){(uint8_t)kind, PHASE_F, (int16_t)unit, -1, 0, -1};
}

/* The value that `phase` of (unit, micro, slice) makes, on its way to or from another stage. */
static inline Action action_move(ActionKind kind, Phase phase, int unit, int micro, int slice,
                                 int peer)
{
    return (Action){(uint8_t)kind,  (uint8_t)phase, (int16_t)unit,
                    (int16_t)micro, (int16_t)slice, (int16_t)peer};
}

/* The direction in which a RUN's value travels: F makes one for the next item, I and B for the
 * item before. */
enum { DIRECTION_FORWARD, DIRECTION_BACKWARD, N_DIRECTIONS };

static inline int action_direction(const Action *a)
{
    return a->phase == PHASE_F ? DIRECTION_FORWARD : DIRECTION_BACKWARD;
}

/* Counts and indices are int16_t in an Action: stages, chunks, units, micros and slices alike. */
enum { MAX_SCHEDULE = 32767 };

static inline int schedule_units(const Schedule *s) { return s->first_unit[s->chunks]; }

/* What `unit` of an action counts: chunks before the expansion, units after it. */
static inline int schedule_items(const Schedule *s)
{
    return s->grain == OVER_UNITS ? schedule_units(s) : s->chunks;
}

/* (item, micro, slice) as one index below schedule_cells: how tables over it are laid out. */
static inline int64_t schedule_cell(const Schedule *s, int item, int micro, int slice)
{
    return ((int64_t)item * s->micros + micro) * s->slices + slice;
}

static inline int64_t schedule_cells(const Schedule *s)
{
    return (int64_t)schedule_items(s) * s->micros * s->slices;
}

/* Is this RUN the one that adds to its item's gradients? W, or B; but F in the last unit, where
 * loss and head are one operation and the gradient above them is 1. (The last chunk does both.) */
static inline bool schedule_writes(const Schedule *s, const Action *a)
{
    if (s->grain == OVER_UNITS && a->unit == schedule_units(s) - 1) return a->phase == PHASE_F;
    return a->phase == PHASE_W || a->phase == PHASE_B;
}

/* "run", "send", ...: the words of the text form. */
const char *action_kind_name(ActionKind kind);
/* The item's chunk, and the stage that holds it. O(log chunks). */
int schedule_chunk_of(const Schedule *s, int item);
int schedule_stage_of(const Schedule *s, int item);
/* Has it sends or receives? Then every value that crosses stages must have both. */
bool schedule_has_moves(const Schedule *s);
/* All actions of all stages. */
int64_t schedule_length(const Schedule *s);
bool schedule_equal(const Schedule *a, const Schedule *b);
/* Local. `code`, naming the count, when one is not in 1..MAX_SCHEDULE. */
Err schedule_check_counts(const Schedule *s, Err code);
/* Local. Empty lists with room for room[stage] actions each (NULL: no room yet); stage_of and
 * first_unit are copied (NULL: chunk c on stage c % stages; one unit a chunk). ERR_CONFIG when a
 * count is not in 1..MAX_SCHEDULE. */
Err schedule_init(const Schedule *shape, const int *room, Arena *arena, Schedule *out);

#endif
