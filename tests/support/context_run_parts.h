/* context_run_parts.h -- state of context_run: context_run.c has the order of steps, context_rows.c
 * the values of ranks and messages, context_kernels.c the calls of kernels. */
#ifndef TESTS_SUPPORT_CONTEXT_RUN_PARTS_H
#define TESTS_SUPPORT_CONTEXT_RUN_PARTS_H

#include "support/context_run.h"

/* What a rank has, by token of the sequence. */
enum {
    RUN_Q,
    RUN_DOUT,
    RUN_LSE,
    RUN_DELTA,
    RUN_K,
    RUN_V, /* up to here NaN: not here */
    RUN_O, /* partial results: 0, and -inf for the lse of o */
    RUN_O_LSE,
    RUN_DQ,
    RUN_DK,
    RUN_DV,
    N_RUN_ARRAYS
};

typedef struct {
    double *of[N_RUN_ARRAYS];
} RankArrays;

/* Rows of a block, back to back. */
typedef struct {
    int n;
    int32_t *token;           /* [n], ascending */
    double *of[N_RUN_ARRAYS]; /* NULL: not taken */
} RunRows;

typedef struct {
    int payload;
    ContextBlock block;
    int64_t due;
    RunRows rows; /* of a send */
} RunMessage;

/* The messages from one rank to another; a receive posts its payload and block. */
typedef struct {
    RunMessage *sent, *posted;
    int n_sent, n_posted, n_met, n_done;
    int n_hidden; /* sent before the sender's last visit */
    int64_t due;  /* of the last message */
} RunChannel;

/* A partial result: message `number` from rank `from`. */
typedef struct {
    int from, number;
} RunArrival;

typedef struct {
    int at, n_arrivals;
    bool visited; /* the visit at `at` is done, and waits for arrivals */
    RunArrival *arrival;
    RankArrays has;
    double *const *kept; /* of a plan in passes: scores and gradients of weights */
} RunRank;

typedef struct {
    const Device *device;
    const ContextPlan *p;
    const AttentionCase *c;
    RandomDelays delays;
    Arena *temp;
    uint64_t random;
    int64_t now;
    int most_steps;
    double *(*kept)[2]; /* [rank]: as in RunRank; NULL: the plan has no passes */
    RunRank *rank;
    RunChannel *channel; /* [from][to] */
} ContextRun;

/* Values of the rank's own tokens; backward also lse and delta of the forward result r. */
Err run_open_rank(ContextRun *w, int rank, const AttentionResult *r);
/* Are the values of a block here? */
bool run_has(const ContextRun *w, const RunRank *r, int payload, ContextBlock b);
/* Copies the values of a message; partial results leave the rank. */
Err run_take(ContextRun *w, RunRank *r, RunMessage *m);
void run_store(ContextRun *w, RunRank *r, const RunMessage *m);
/* Adds the partial results of a message. */
Err run_add(ContextRun *w, RunRank *r, const RunMessage *m);
Err run_visit(ContextRun *w, RunRank *r, const ContextStep *s);
/* Results of all owners. */
void run_collect(const ContextRun *w, AttentionResult *r);

/* Values that a token has in an array. */
int run_width(const AttentionCase *c, int array);
/* The tokens of a block. */
Err run_rows(ContextRun *w, ContextBlock b, RunRows *out);
/* Merges (o, lse) of other rows of the same tokens into those of `rows`. */
Err kernel_merge(ContextRun *w, RunRows *rows, double *o, double *lse);
/* Attention of the queries with the keys: (o, lse), or adds to dq, dk and dv. */
Err kernel_attention(ContextRun *w, RunRows *q, const RunRows *k);
Err kernel_gradients(ContextRun *w, RunRows *q, RunRows *k);
/* A visit of one pass, by what the rank keeps: [token][head][token], NaN where nothing was kept. */
void pass_visit(const ContextRun *w, const RunRank *r, VisitPass pass, RunRows *q, RunRows *k);
Err pass_open(const AttentionCase *c, int ranks, Arena *temp, double *(**out)[2]);
/* delta of dout and o of all tokens. */
Err kernel_delta(ContextRun *w, const double *o, double *delta);

#endif
