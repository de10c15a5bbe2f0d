/* programs.h -- the programs of a rank, and the one that each RUN executes.
 *
 *     class   units                  variant 0 (19 rows)   variant 1 (14 rows)
 *     0       embed                  program               program
 *     1       layer.0 .. layer.7     program               program      recomputes everything
 *     2       layer.8 .. layer.15    program               program      recomputes the mlp
 *     3       head                   program               program
 *
 * A class is a set of units of one kind that are compiled with the same options. A variant is for
 * some micro-batches, or slices of them: slices of another length, for example. A RUN executes the
 * program of its unit's class and of the variant of its (micro-batch, slice).
 *
 * Variants may mix within a step: the programs of a class have the same ports, so a unit's
 * gradients are reduced once for all of them. Variant 0 is the one with most rows. */
#ifndef SCHEDULE_PROGRAMS_H
#define SCHEDULE_PROGRAMS_H

#include "ir/program.h"
#include "ir/unit.h"

typedef struct {
    int n_classes, n_variants;
    const int16_t *class_of; /* [units] */
    const int16_t *kind_of;  /* [n_classes]: of Model.kind; ascending */
    int micros, slices;
    const int16_t *variant_of; /* [micros][slices] */
    const Program *program;    /* [n_variants][n_classes] */
} ProgramTable;

/* Local. A class per kind and one variant. program: [kinds]. */
Err programs_by_kind(const Model *m, const Program *program, int micros, Arena *arena,
                     ProgramTable *out);
/* Local. ERR_CHECK if a class has units of another kind, if the variants of a class have other
 * ports, or if a unit reads its x in another layout than the unit before writes its y. */
Err programs_check(const ProgramTable *t, const Model *m);

/* Local. The program that runs a unit's phases for a slice of a micro-batch. */
static inline const Program *programs_at(const ProgramTable *t, int unit, int micro, int slice)
{
    const int variant = t->variant_of[micro * t->slices + slice];
    return &t->program[variant * t->n_classes + t->class_of[unit]];
}
/* Local. The program of variant 0. */
static inline const Program *programs_of_unit(const ProgramTable *t, int unit)
{
    return &t->program[t->class_of[unit]];
}

#endif
