/* check_parts.h -- state of the player that checks an attention plan: check.c, check_play.c. */
#ifndef COMPILE_CONTEXT_CHECK_PARTS_H
#define COMPILE_CONTEXT_CHECK_PARTS_H

#include "compile/context/check.h"

/* Partial results: o or dq by query block, dkv by key block. Of a plan in passes: dk, and dv. */
enum { PARTIAL_QUERIES, PARTIAL_KEYS, PARTIAL_VALUES, N_PARTIALS };
/* Operands of a visit. Without passes, keys have their values with them. */
enum { HAS_QUERIES, HAS_KEYS, HAS_VALUES, N_HAS };

/* A message: posted by its sender with its contributions, and by its receiver. */
typedef struct {
    ContextPayload payload;
    ContextBlock block;
    const uint8_t *parts; /* contributions, of a partial result */
} ContextMessage;

/* The messages from one rank to another, in the order of posting. */
typedef struct {
    int n_sent, n_posted, n_met, cap;
    int n_hidden; /* sent before the sender's last visit */
    ContextMessage *sent, *posted;
} ContextChannel;

typedef struct {
    const ContextPlan *p;
    Arena *temp;
    int ranks;
    int *at;                  /* [rank]: its next step */
    bool *visits;             /* [rank]: that step is a visit, done but for the arrivals after it */
    uint8_t *has[N_HAS];      /* [rank][block]: halves of it that are here */
    uint8_t *due[N_PAYLOADS]; /* [rank][block]: receives posted and not met */
    uint8_t *made[N_PARTIALS];   /* [rank][block]: a partial result of the block is here */
    uint8_t **parts[N_PARTIALS]; /* [rank][block] -> contributions [ranks][2][2], or NULL */
    ContextChannel *channel;     /* [from][to] */
    uint8_t *visited;            /* [q][k][2][2]: bit per pass */
    int16_t *first;              /* [q][k][2][2]: the rank that made its first pass; -1 */
    int64_t *work;               /* [rank] */
    ContextSent sent;
} ContextPlayer;

static inline int64_t pair_at(const ContextPlayer *w, int a, int b)
{
    return (int64_t)a * w->ranks + b;
}

/* Local. Plays all lists. ERR_CHECK if a step cannot run, or if none of the ranks can go on. */
Err context_play(const ContextPlan *p, Arena *temp, ContextPlayer *out);

#endif
