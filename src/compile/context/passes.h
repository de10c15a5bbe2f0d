/* passes.h -- the backward plan of a plan whose visits need keys and values together (backward.c),
 * from which that of a plan in passes is made (passes.c). */
#ifndef COMPILE_CONTEXT_PASSES_H
#define COMPILE_CONTEXT_PASSES_H

#include "compile/context/plan.h"

/* Local. The plan has no passes. */
Err context_backward_pass(const ContextPlan *forward, Arena *arena, ContextPlan *out);

#endif
