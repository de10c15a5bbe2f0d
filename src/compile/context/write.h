/* write.h -- the nodes of one attention by a plan, for one rank: compile/context.c finds the
 * values, rows.c the tokens of each block; write.c appends the nodes of moves, visit.c those of
 * visits. */
#ifndef COMPILE_CONTEXT_WRITE_H
#define COMPILE_CONTEXT_WRITE_H

#include "compile/context/plan.h"
#include "ir/graph.h"

enum { MAX_PIECES = 2 };

/* Tokens of a block or of one half of it: as rows of the micro-batch, and as rows of the block. */
typedef struct {
    int64_t count;
    Dim rows;
    int n_spans;
    Span *of_micro, *of_block; /* [n_spans], ascending */
} ContextRows;

/* The tokens of one rank. */
typedef struct {
    ContextRows all, piece[MAX_PIECES];
    const int64_t *span; /* of `all`, as device/row_spans.h has them; NULL: one run of rows */
} ContextTokens;

/* Queries of a piece, and partial results for them, on this rank; NO_VALUE: not here. */
typedef struct {
    Value q, ranges, dout, lse, delta;
    Value o, o_lse, dq;
} QueryValues;

/* The values of a block on this rank. In passes also what is kept of this rank's queries with its
 * keys: scores, and their gradients. */
typedef struct {
    Value k, v, dk, dv;
    Value scores, ds;
    QueryValues piece[MAX_PIECES];
} BlockValues;

/* A partial result that was received, and is added after the next visit. */
typedef struct {
    ContextPayload payload;
    int block, piece;
    Value value[2];
} Arrival;

typedef struct {
    Graph *g;
    const TransferPart *gather; /* of the keys, before the pass: its group and axes */
    int me, ranks;              /* this rank's place in the group */
    bool backward;
    int n_pieces;          /* of the queries of a block: 2 if the plan moves halves */
    int32_t number;        /* of the first transfer of this attention */
    ContextTokens *tokens; /* [ranks] */
    bool sliced;           /* keys are those of all slices so far */
    Dim all_rows;          /* this rank's rows of all slices */
    Value all_ranges;      /* of the whole micro-batch, if queries move; else NO_VALUE */
    BlockValues *at;       /* [ranks] */
    Value last;            /* made by the visit before: moves begin after it */
    Value *sent;           /* sends that were begun */
    int n_sent;
    Arrival *arrival;
    int n_arrivals;
} ContextWriter;

/* Local. The numbers that transfers of one attention over so many ranks may have. */
#define CONTEXT_NUMBERS(ranks) ((ranks)*N_PAYLOADS * MAX_PIECES * 4)

/* Local. The tokens of a rank that holds `h`, with sequences of seq_len. Pieces are the chunks of a
 * zigzag map over `ranks`: those before the middle of a sequence, and those after. */
Err context_rows_find(const HeldSpans *h, Dim all, int64_t seq_len, int ranks, Arena *arena,
                      ContextTokens *out);
/* Local. These rows of x, whose rows are those of the micro-batch or of the block. */
Value context_rows_take(Graph *g, Value x, const ContextRows *rows, const Span *span);
/* Local. The value with the rows of a block whose pieces, back to back, are the rows of x. */
Value context_rows_merge(Graph *g, Value x, const ContextTokens *t);
/* Local. True if the pieces back to back are the block. */
bool context_rows_ascend(const ContextTokens *t);

/* Local. Appends a visit of a piece of queries, and replaces the values that it makes. */
void context_write_visit(ContextWriter *w, const Node *whole, const ContextStep *s, int piece);
/* Local. a + b; either may be NO_VALUE. */
Value context_sum_of(Graph *g, Value a, Value b);
/* Local. Appends the steps of the plan for an attention node, whose outputs are made by the last
 * ones. */
Err context_write_forward(ContextWriter *w, const ContextPlan *p, const Node *whole);
/* Local. The same for attention_dx. `into`: the gradients of q, k and v of this rank. */
Err context_write_backward(ContextWriter *w, const ContextPlan *p, const Node *whole,
                           const Value into[3]);

#endif
