/* context_auto.h -- parallel.context=auto: every way to spread attention over cp, with its seconds.
 *
 *     plan                     tokens      seconds     hidden   holds
 *     ring                     zigzag      1.01 ms        97%   64 MiB      the choice
 *     gather                   zigzag      1.22 ms         0%  256 MiB
 *     lightseq                 contiguous  not possible: parallel.tokens=zigzag ...
 *
 * The candidates are all-gather, Ulysses, the plans of compile/context, and each of them over the
 * ranks that Ulysses over a part of cp leaves (mesh.cp_heads). Their lists of visits and moves are
 * played with the rates of a machine (context_clock.c), so that a transfer counts only where no
 * visit hides it. The choice depends on the settings alone: all ranks make the same. */
#ifndef JOB_CONTEXT_AUTO_H
#define JOB_CONTEXT_AUTO_H

#include "compile/context/plan.h"
#include "compile/strategy.h"

typedef struct {
    ContextKind kind;
    int heads;           /* ranks that share out heads; 1: none, cp: all, with CONTEXT_ULYSSES */
    TokenMap tokens;     /* of the candidate; AUTO: it is not possible with any */
    int inner;           /* ranks of an inner ring, of double-ring */
    double seconds;      /* of attention and its transfers: all layers of a micro-batch */
    double moving_s;     /* seconds of transfers that the slowest rank takes part in, one layer */
    double hidden;       /* the part of them that it does not wait for, 0 to 1 */
    double held_bytes;   /* blocks of other ranks that a rank holds at most */
    const char *why_not; /* NULL: possible */
} ContextCandidate;

typedef struct {
    int n, best; /* n = 0: auto was not asked */
    bool heads;  /* mesh.cp_heads was open too */
    ContextCandidate *list;
} ContextSearch;

/* Local. mesh.cp_heads of the choice: 0 where it shards no heads, or all of cp. */
static inline int context_heads(const ContextSearch *s, int cp)
{
    const int heads = s->list[s->best].heads;
    return heads > 1 && heads < cp ? heads : 0;
}

#endif
