/* link.h -- a rank's program: its list of actions, bound to the programs of its units.
 *
 *     action   program   base of each region in the work arena       sums that start here
 *     F2.0     layer     scratch 0, frame-w 4096, y 8192, x 1024      -
 *     B2.0     layer     scratch 0, frame-w 4096, dx 1024, dy 8192    parameters 0 to 8
 *
 * Offsets, peak, simulation, checks and explain walk this list and nothing else; so does run/. One
 * rank walks the same kind of list as many.
 *
 *     arena    holds                                                laid out
 *     state    parameters and moments                               back to back
 *     step     gradient sums, inputs of all micro-batches, losses   back to back
 *     work     frames, streams and scratch                          packed by when each lives
 *     host     what is offloaded                                    likewise
 */
#ifndef SCHEDULE_LINK_H
#define SCHEDULE_LINK_H

#include "ir/program.h"
#include "ir/unit.h"
#include "schedule/action.h"

typedef enum { ARENA_STATE, ARENA_STEP, ARENA_WORK, ARENA_HOST, N_ARENAS } ArenaId;

#define NO_BASE SIZE_MAX

typedef struct {
    Action action;
    const Program *program;     /* of a RUN, else NULL */
    uint64_t fresh;             /* bit p: the sum of parameter p of the unit starts anew here */
    size_t base[REGION_DY + 1]; /* own regions, x and dy; NO_BASE where the phase has none */
    uint32_t begins;            /* bit r: own region r begins to live here */
} Linked;

/* Where the state and the sums of one unit lie: element 0 of its pack. A parameter that lies in
 * another unit's pack (tied weights) has a sum of its own here, among the guests, in the order in
 * which the unit names them: so each unit's gradient is its own fold over micro-batches, whatever
 * the schedule. REDUCE adds the sums of the holders. */
typedef struct {
    size_t weights, master, moments[2]; /* master: the weights, where they are of the wide type */
    size_t grads, guests;
} UnitPlace;

typedef struct {
    const Model *model;
    const Program *program; /* [model->n_kinds] */
    int micros, n_moments;
    int n;
    Linked *list;
    UnitPlace *unit;        /* [model->n_units] */
    size_t input[N_INPUTS]; /* step arena: of micro-batch 0; the next follow input_stride later */
    size_t input_stride, loss, norm; /* loss: one cell a micro-batch */
    size_t bytes[N_ARENAS];
    size_t live[N_ARENAS];             /* the least that any packing needs */
    int peak_at;                       /* position in the list where most of the work arena lives */
    size_t peak_region[N_OWN_REGIONS]; /* and what lives there */
} LinkedProgram;

typedef struct {
    const Model *model;
    const Program *program;
    int n_moments; /* adamw 2, sgd 0 */
} LinkInput;

/* Local. Binds the list of `rank` in a schedule over units. */
Err schedule_link(const Schedule *s, int rank, const LinkInput *in, Arena *arena,
                  LinkedProgram *out);
/* Local. Offsets of everything; the second half of linking (memory.c). */
Err link_memory(LinkedProgram *lp, const Schedule *s, Arena *temp);

/* Local. Where the sum of parameter k of a unit lies in the step arena. */
size_t linked_grad(const LinkedProgram *lp, int unit, int k);

#endif
