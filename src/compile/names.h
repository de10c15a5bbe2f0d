/* names.h -- values chosen by patterns of their names: "mlp.*,attn.in". */
#ifndef COMPILE_NAMES_H
#define COMPILE_NAMES_H

#include "ir/program.h"

/* Local. True for a list of exceptions: "full,-attn.out,-attn.lse", all values but these. */
bool names_all_but(const char *patterns);
/* Local. True if the name matches one of the patterns. NULL is no pattern; "" is no name. */
bool names_listed(const char *patterns, const char *name);
/* Local. The same, and of a copy in 8 bits if that of its value does: attn.in matches
 * attn.in.fp8.t, which F keeps instead. */
bool names_listed_copy(const char *patterns, const char *name);
/* Local. ERR_CONFIG if a pattern matches no value that the units keep for their backward phases;
 * names `key`, the pattern, and the possible values. `kind` has the graphs as they were built. */
Err names_check(const char *key, const char *patterns, const Graph *kind, int n_kinds, Arena *temp);

/* Local. The same for a list of names. */
Err names_check_in(const char *key, const char *patterns, const char *const *name, int n,
                   Arena *temp);

typedef enum { NAMES_RECOMPUTED, NAMES_OFFLOAD } NamesEffect;
typedef struct {
    const Program *program; /* [n], one per unit kind */
    int n;
    const char *recompute; /* parallel.recompute of these programs, as it is written */
} NamesTarget;
/* Local. ERR_CONFIG if a pattern changed none of the programs: no value of that name is kept, so
 * nothing is recomputed or offloaded for it. Lists the values that are kept, or names the
 * recomputation that keeps none. */
Err names_check_effect(const char *key, const char *patterns, NamesEffect effect,
                       const NamesTarget *target, Arena *temp);

#endif
