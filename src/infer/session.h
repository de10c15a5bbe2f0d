/* session.h -- inference sessions: sequences that grow by calls, on ranks that share one model.
 *
 *     call     rows (sequence, position, token); returns the logits of the requested rows
 *
 *     prefill  (0,0) (0,1) (0,2) (1,0) (1,1)      prompts, as many rows as a call has
 *     decode   (0,3) (1,2)                        one row per sequence
 *
 * Both run the same graph. It is compiled twice, for calls of many rows and for calls of few,
 * because transfers have full extents. Both programs share the weights and the KV cache
 * (compile/session.c), whose size is known before the run. Without a KV cache a call has all rows
 * of its sequences; that is slow, and meant for comparison. */
#ifndef INFER_SESSION_H
#define INFER_SESSION_H

#include "job/job.h"
#include "world/world.h"

/* Index of a session's programs; [0] owns the weights and the KV cache. */
enum { CALL_FEW, CALL_MANY, N_CALLS };

typedef struct {
    SessionShape shape;
    Job call[N_CALLS];
    int n; /* 1: one program is enough, since all calls are short or there is no KV cache */
} SessionJobs;

/* Local. Compiles the programs of a session with the model, type and mesh of `base`. ERR_CONFIG if
 * the mesh has dp without expert parallelism. `jobs` must not move. */
Err session_compile(const JobSettings *base, const SessionShape *shape, Arena *arena,
                    SessionJobs *jobs);
/* Local. Bytes that the rank allocates; bytes of the KV cache. */
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
    ProgramSet programs;
    Rank rank[N_CALLS];
    int sampling_rank; /* the rank that samples: the first of the last stage, which has logits */
} Session;

typedef struct {
    int64_t sequence, position;
    int32_t token;
    bool needs_logits; /* its logits are requested */
} SessionRow;

/* Local. Does not load weights; the caller loads them into rank[0]. */
Err session_open(Session *s, const SessionSettings *settings);
void session_close(Session *s);
/* Collective over all ranks, with the same rows. Positions of a sequence must be consecutive over
 * all calls; position 0 starts a new sequence. *logits is [requested rows, vocabulary], in the
 * order of the rows, valid until the next call; its data is NULL on ranks outside the last
 * stage. */
Err session_call(Session *s, const SessionRow *row, int64_t n, Tensor *logits);

#endif
