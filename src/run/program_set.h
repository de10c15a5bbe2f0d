/* program_set.h -- several linked programs over one state, which take turns on a rank.
 *
 *     arena      memory of the set
 *     state      one: all programs have the same homes
 *     session    one
 *     work       the largest: nothing in it outlives a step or a call
 *     host       the largest
 *     step       one for each program: gradient sums, inputs, losses
 *
 * Program 0 is the owner: its rank allocates everything but the step arenas of the others, and is
 * opened first. Training and validation are a set, as are the calls of many and of few rows of a
 * session. A run that links its step in several ways opens a rank for each of them:
 *
 *     ProgramSet set = {2, {&job.linked, &valid.linked}};
 *     rank_open(&owner, &(RankSettings){.set = &set, ...});
 *     rank_open(&other, &(RankSettings){.set = &set, .number = 1, .state_of = &owner, ...}); */
#ifndef RUN_PROGRAM_SET_H
#define RUN_PROGRAM_SET_H

#include "schedule/link/link.h"

/* The arenas of all programs of a set are registered with one comm. */
enum { MAX_PROGRAMS = MAX_PROGRAM_ARENAS / (N_ARENAS + 1) };

typedef struct {
    int n;
    const LinkedProgram *program[MAX_PROGRAMS];
} ProgramSet;

/* Local. ERR_CHECK, with the difference, unless all programs have the ranks, parameters and state
 * of the first. */
Err program_set_check(const ProgramSet *s);
/* Local. Bytes of an arena that the rank of program `number` allocates. */
size_t program_set_own_bytes(const ProgramSet *s, int number, ArenaId a);
/* Local. Bytes of an arena that the ranks of all programs allocate together. */
size_t program_set_bytes(const ProgramSet *s, ArenaId a);
/* Local. Bytes that the set allocates in all arenas, beyond those of program 0 alone. */
size_t program_set_extra_bytes(const ProgramSet *s);

#endif
