/* session.h -- sequences that grow, a call at a time, on ranks that hold a model together.
 *
 *     call     rows (sequence, position, token), any of them; the logits of those that are asked for
 *
 *     prefill  (0,0) (0,1) (0,2) (1,0) (1,1)      prompts, in pieces of as many rows as a call has
 *     decode   (0,3) (1,2)                        one row a sequence
 *
 * Both are one graph, compiled for calls of many rows and for calls of few, since transfers are of
 * full extents. They share weights and the cache of keys and values (compile/session.c), whose
 * bytes are known before the run like all others. Without a cache a call has all rows of its
 * sequences, from the first on; that is slow, and for comparing. */
#ifndef INFER_SESSION_H
#define INFER_SESSION_H

#include "job/job.h"
#include "world/world.h"

/* [0] owns the state. */
enum { CALL_FEW, CALL_MANY, N_CALLS };

typedef struct {
    SessionShape shape;
    Job call[N_CALLS];
    int n; /* 1: calls of few rows are as long as those of many, or there is no cache */
} SessionJobs;

/* Local. `base` says what model, type and mesh. ERR_CONFIG when it asks for what a session has not:
 * dp, micro-batches. `jobs` must stay where it is. */
Err session_compile(const JobSettings *base, const SessionShape *shape, Arena *arena,
                    SessionJobs *jobs);
/* Local. All that the rank allocates; of these the cache. */
int64_t session_bytes(const SessionJobs *jobs);
int64_t session_cache_bytes(const SessionJobs *jobs);

typedef struct {
    const SessionJobs *jobs;
    const Device *device;
    WorldRank *world;
    Team *team;
} SessionSettings;

typedef struct {
    SessionSettings settings;
    Rank rank[N_CALLS];
    int chooser; /* the rank that has logits and says what comes of them: the first of the last stage */
} Session;

typedef struct {
    int64_t sequence, position;
    int32_t token;
    bool asked;
} SessionRow;

/* Local. Weights are not there yet: load them into rank[0]. */
Err session_open(Session *s, const SessionSettings *settings);
void session_close(Session *s);
/* Collective over all ranks, with the same rows. Positions of a sequence come in order and without
 * a gap, over all calls; a sequence starts anew with position 0. The logits, [asked, vocabulary], in
 * the order of the rows; without data where the last stage is not. Good until the next call. */
Err session_call(Session *s, const SessionRow *row, int64_t n, Tensor *logits);

#endif
