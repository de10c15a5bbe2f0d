/* rank_parts.h -- between rank.c, which walks the list, and the files that do its actions. */
#ifndef RUN_RANK_PARTS_H
#define RUN_RANK_PARTS_H

#include "run/rank.h"

/* Collective where the program has transfers. Runs the instructions of a RUN. */
Err execute_run(Rank *r, const Linked *l);
/* Local. To the desk of a rank on a device: the numbers that are the step's own. */
void execute_numbers(Rank *r);
/* Collective over all ranks, each of them once a step: live tokens and loss. The first call of a
 * step adds them up, and sets the factor on gradients. */
Err execute_tally(Rank *r);
/* Collective over all ranks. The norm of all gradients, and with it the factor on gradients, and whether
 * the step updates anything. */
Err execute_norm(Rank *r);
/* Local. The optimizer on what the rank has at home of the unit's pack; nothing in a step that is
 * skipped. */
Err execute_update(Rank *r, int unit);
/* Local. The home's weights as programs use them, from its master; nothing to do where they are
 * one. */
Err execute_publish(Rank *r, int unit);
/* Local. ERR_CONFIG unless every call and every BIND names a slot that there is. */
Err execute_check_calls(const LinkedProgram *lp);

/* steps.c. Collective over the groups of its steps: begins what stands at a position;
 * ends it. */
Err steps_begin(Rank *r, int at);
Err steps_end(Rank *r, int at);
/* Local. Moves what is in flight on, if anything is. */
Err steps_poll(Rank *r);
/* Collective over the scalar's group. */
Err steps_scalar(Rank *r, int which);
/* Local. Does the program need other ranks? */
bool steps_sends(const LinkedProgram *lp);
/* Local. ERR_CHECK when the program needs a comm and it is not there, or another rank's. */
Err steps_check(const Rank *r);
/* groups.c. Collective over all ranks of the program: before its first step, tells the comm which
 * groups it will move memory of the device over. */
Err steps_prepare(Rank *r);

/* poison.c. Local. Where settings ask for it: NaN in everything that begins to live in a RUN; where a
 * gather or a receive will write, all of it but what is in place; in what is over at a position. */
Err poison_run(const Rank *r, const Linked *l);
Err poison_steps(const Rank *r, const Linked *l);
Err poison_freed(const Rank *r, const Linked *l);

/* memory.c. Local. The arenas, the context and the desk; gives them back. */
Err memory_open(Rank *r);
void memory_close(Rank *r);
/* The host waits for the queue of computing. What is in it may wait for other ranks, one of which may
 * have failed: then so does this. */
Err memory_sync(const Rank *r);
/* Pinned memory for what goes to the device between steps: a detour of the driver's is slower. */
enum { MEMORY_STAGE_BYTES = 16 << 20 };
Err memory_stage(Rank *r, void **out);
/* Inputs and the step's numbers from the desk to where the device reads them; losses and cells to the
 * desk, which waits for all that is in the compute queue. */
Err desk_send(Rank *r);
Err desk_fetch(Rank *r);
/* What `step` holds behind all that was linked; on the desk, and where the device has it. */
typedef struct {
    double factor, norm; /* on gradients, of gradients: of one rank alone the device makes them */
    double mean;         /* 1 / the rank's live tokens; this and what follows desk_send sends */
    UpdateRates rates;
} Verdict;
Verdict *desk_verdict(const Rank *r);
Verdict *step_verdict(const Rank *r);
Err desk_send_verdict(Rank *r); /* factor and norm */
/* The host's address of an offset of the step arena that is on the desk. */
static inline char *desk_of(const Rank *r, size_t offset)
{
    return r->desk + (offset - r->desk_at);
}
/* A copy in a queue of its own, behind what is in the compute queue; *done is recorded after it. */
Err memory_copy(Rank *r, Queue queue, const Call *c, DeviceEvent **done);
/* Compute waits for it. */
Err memory_await(const Rank *r, DeviceEvent *done);

/* lists.c. Local. Of a rank on a device: the ends of its steps as lists; sums of squares of all that
 * it counts, to its cells; the factor and the norm, from those alone; the update of a unit. */
Err lists_open(Rank *r);
void lists_close(Rank *r);
Err lists_squares(Rank *r);
Err lists_clip(Rank *r);
Err lists_update(Rank *r, int unit);

/* capture.c. Collective as the walk is. Does what `walk` puts into queues: by calling it, or by a graph
 * of it. */
typedef Err RankWalk(Rank *r);
Err capture_open(Rank *r);
void capture_close(Rank *r);
Err capture_run(Rank *r, RankWalk *walk);

/* Local. arrange.c: where a weight of the unit lies in the order of products, or NULL; makes it, of the
 * weight itself; ERR_CHECK unless the device is the one that programs were compiled for. */
char *prepacked_at(const Rank *r, int unit, int which);
Err prepack_weight(Rank *r, const Linked *l, int which, Tensor w);
Err prepack_check(const Rank *r);

/* Local. One instruction of a RUN by itself: execute_begin before the first, then kernels; `keep` is for
 * all sums over micro-batches. */
void execute_begin(Rank *r, const Linked *l, double keep);
Err execute_kernel(Rank *r, const Linked *l, const Instr *in);

/* Local. noise.c: the work arena of a device holds numbers, none of which is infinite or NaN; again. */
Err random_fill_make(Rank *r);
Err random_fill_spread(Rank *r);

/* Local. marks.c: when the device did what the trace tells. Put behind each event; event -1 begins a
 * step. Settled when the queue is empty. */
Err timestamps_open(Rank *r);
void timestamps_close(Rank *r);
Err timestamps_put(Rank *r, int64_t event);
Err timestamps_settle(Rank *r, double now_s);

/* Local. watch.c: tell who looks on. Around an action (TRACE_ACTION) and around each instruction of its
 * program; watch_end gets what watch_begin returned. Step 0: none. */
Err watch_step(Rank *r, int64_t step);
double watch_begin(Rank *r, const Linked *l, int instr);
Err watch_end(Rank *r, const Linked *l, int instr, double begin_s);

/* Local. nap.c: sleeps here, if it is to. */
void nap(Rank *r);

#endif
