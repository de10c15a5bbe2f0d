/* action.h -- a schedule: the list of actions that every pipeline stage executes in one step.
 *
 * Generators write RUNs over chunks (consecutive units). Passes expand chunks to units and add all
 * other actions. Nothing else decides the order of work.
 *
 *     stage 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2 norm update.0
 *              | | |
 *              | | micro-batch        a slice follows after another dot: F0.1.3
 *              | chunk, or unit once expanded
 *              phase
 *
 * Phase F is the forward, I the gradients of inputs, W the gradients of parameters. B is I and W,
 * ordered together in one program. */
#ifndef SCHEDULE_ACTION_H
#define SCHEDULE_ACTION_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "ir/phase.h"

typedef enum {
    A_RUN,    /* executes `phase` of (unit, micro, slice) */
    A_SEND,   /* sends the output of F, or the input gradient of I or B, to stage `peer` */
    A_RECV,   /* receives it from `peer`; phase, unit, micro and slice name the producer in both */
    A_GATHER, /* gathers the pack's parameters from their home layout to the use layout */
    A_DROP,   /* frees the gathered parameters */
    A_REDUCE, /* reduces the pack's gradients where they are partial; micro -1: the step's sum */
    A_NORM,   /* computes the norm of all gradients; every action before it has finished */
    A_UPDATE, /* updates the pack's parameters by the optimizer */
    A_EVICT,  /* moves the frame of (unit, micro, slice) to stage `peer`; -1: to the host */
    A_FETCH,  /* moves an evicted frame back */
    A_QUANTIZE, /* makes the codes and scales of all coded weights of the stage */
    A_BIND,     /* binds a sub-program to slot `unit`; no generator writes it, only tests do */
    N_ACTION_KINDS
} ActionKind;

typedef struct {
    uint8_t kind, phase;
    /* unit: of GATHER, DROP, REDUCE and UPDATE, the pack; peer -1: none */
    int16_t unit, micro, slice, peer;
} Action;

/* True if the action names a pack. */
static inline bool action_names_pack(const Action *a)
{
    return a->kind == A_GATHER || a->kind == A_DROP || a->kind == A_REDUCE || a->kind == A_UPDATE;
}

typedef enum { OVER_CHUNKS, OVER_UNITS } ScheduleLevel;

typedef struct {
    ScheduleLevel level;
    int stages, chunks, micros, slices;
    const int16_t *stage_of;   /* [chunks]: the pipeline stage that holds the chunk */
    const int16_t *first_unit; /* [chunks + 1]: chunk c is first_unit[c] .. first_unit[c+1]-1 */
    /* [units + 1]: the packs of unit u are first_pack[u] .. first_pack[u+1]-1. NULL: one each, with
     * the number of the unit. Of schedules over units. */
    const int16_t *first_pack;
    int *n;        /* [stages]: actions in each list */
    Action **list; /* [stages][n[stage]] */
    /* Of a schedule that has the list of one stage only (schedule/expand.h): [units], the row of
     * each unit in tables over cells. Units that the list does not name share the last row. NULL:
     * the lists of all stages, and the row of an item is its number. */
    const int16_t *row;
    int rows;
} Schedule;

static inline Action action_run(Phase phase, int unit, int micro, int slice)
{
    return (Action){A_RUN, (uint8_t)phase, (int16_t)unit, (int16_t)micro, (int16_t)slice, -1};
}

static inline Action action_of(ActionKind kind, int unit)
{
    return (Action){(uint8_t)kind, PHASE_F, (int16_t)unit, -1, 0, -1};
}

/* A transfer of the value that `phase` of (unit, micro, slice) makes, to or from stage `peer`. */
static inline Action action_move(ActionKind kind, Phase phase, int unit, int micro, int slice,
                                 int peer)
{
    return (Action){(uint8_t)kind,  (uint8_t)phase, (int16_t)unit,
                    (int16_t)micro, (int16_t)slice, (int16_t)peer};
}

/* The direction in which a RUN's value travels: F makes one for the next item, I and B for the item
 * before. */
enum { DIRECTION_FORWARD, DIRECTION_BACKWARD, N_DIRECTIONS };

static inline int action_direction(const Action *a)
{
    return a->phase == PHASE_F ? DIRECTION_FORWARD : DIRECTION_BACKWARD;
}

/* Largest count: stages, chunks, units, micros and slices are stored as int16_t in an Action. */
enum { MAX_SCHEDULE = 32767 };

/* The tag of a transfer: different for each (unit, phase, micro, slice, number), so that members
 * that meet in different transfers find out. */
enum { MAX_TRANSFERS = 1 << 16 }; /* numbers of one program */
static inline int64_t action_tag(const Action *a, int number)
{
    const int64_t run = (int64_t)a->unit << 2 | a->phase;
    MUST(number >= 0 && number < MAX_TRANSFERS, "transfer %d of a program", number);
    return ((run << 15 | a->micro) << 15 | a->slice) << 16 | number;
}

static inline int schedule_units(const Schedule *s) { return s->first_unit[s->chunks]; }

/* The number of packs, and the first of a unit; `unit` may be the number of units. */
static inline int schedule_first_pack(const Schedule *s, int unit)
{
    return s->first_pack ? s->first_pack[unit] : unit;
}

static inline int schedule_packs(const Schedule *s)
{
    return schedule_first_pack(s, schedule_units(s));
}

/* The number of items. The field `unit` of an action counts chunks before the expansion and units
 * after it; an item is either. */
static inline int schedule_items(const Schedule *s)
{
    return s->level == OVER_UNITS ? schedule_units(s) : s->chunks;
}

/* True if the schedule has the list of this stage. */
static inline bool schedule_has_list(const Schedule *s, int stage)
{
    return !s->row || s->n[stage] > 0;
}

/* The row of an item, below schedule_rows, in tables over items. */
static inline int64_t schedule_row(const Schedule *s, int item)
{
    return s->row ? s->row[item] : item;
}

static inline int64_t schedule_rows(const Schedule *s)
{
    return s->row ? s->rows : schedule_items(s);
}

/* The index of (item, micro, slice), below schedule_cells, in tables over all cells. */
static inline int64_t schedule_cell(const Schedule *s, int item, int micro, int slice)
{
    return (schedule_row(s, item) * s->micros + micro) * s->slices + slice;
}

static inline int64_t schedule_cells(const Schedule *s)
{
    return schedule_rows(s) * s->micros * s->slices;
}

/* True if this RUN adds to its item's parameter gradients. W and B do. In the last unit F does:
 * loss and head are one operation there, and the gradient above them is 1. (Before the expansion
 * the last chunk does both.) */
static inline bool schedule_writes(const Schedule *s, const Action *a)
{
    if (s->level == OVER_UNITS && a->unit == schedule_units(s) - 1) return a->phase == PHASE_F;
    return a->phase == PHASE_W || a->phase == PHASE_B;
}

/* True if the action is about all units of its stage. */
static inline bool action_is_whole(const Action *a)
{
    return a->kind == A_NORM || a->kind == A_QUANTIZE;
}

/* The word of the text form: "run", "send", ... */
const char *action_kind_name(ActionKind kind);
/* The item's chunk, and the stage that holds the item. O(log chunks). */
int schedule_chunk_of(const Schedule *s, int item);
int schedule_stage_of(const Schedule *s, int item);
/* The unit that owns the pack. O(log units). */
int schedule_pack_unit(const Schedule *s, int pack);
/* The unit that the action is about: of a pack, its owner. */
static inline int schedule_action_unit(const Schedule *s, const Action *a)
{
    return action_names_pack(a) ? schedule_pack_unit(s, a->unit) : a->unit;
}
/* True if there are sends or receives. Every value that crosses stages must then have both. */
bool schedule_has_moves(const Schedule *s);
/* The number of actions of all stages. */
int64_t schedule_length(const Schedule *s);
bool schedule_equal(const Schedule *a, const Schedule *b);
/* Local. Fails with `code`, naming the count, if a count is not in 1..MAX_SCHEDULE. */
Err schedule_check_counts(const Schedule *s, Err code);
/* Local. Allocates empty lists with memory for capacity[stage] actions each (NULL: none). Copies
 * stage_of (NULL: chunk c is on stage c % stages) and first_unit (NULL: one unit per chunk).
 * ERR_CONFIG if a count is not in 1..MAX_SCHEDULE. */
Err schedule_init(const Schedule *shape, const int *capacity, Arena *arena, Schedule *out);

#endif
