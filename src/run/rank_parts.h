/* rank_parts.h -- private header of run/: the functions that rank.c calls, by file. */
#ifndef RUN_RANK_PARTS_H
#define RUN_RANK_PARTS_H

#include "run/rank.h"

/* autotune.c. Local. True for the first action of the list with its program and phase: units of a
 * kind share one program. */
bool autotune_first_of_kind(const LinkedProgram *lp, int i);

/* bind.c. Local. ERR_CONFIG unless the slot of every call and every BIND exists. */
Err bind_check(const LinkedProgram *lp);

/* uncaptured.c. Local. Why no step of these settings is captured now; NULL: it may be. */
const char *capture_off(const RankSettings *s);
/* Local. True if nothing in the list prevents a capture, for as long as the rank is open. */
bool capture_possible(const RankSettings *s);
/* Local. The position of the NORM; -1: the list has none. */
int capture_norm(const LinkedProgram *lp);

/* capture.c. Local. Memory for captures, if the rank's steps may be captured. */
Err capture_open(Rank *r);
void capture_close(Rank *r);
/* Collective over all ranks if they may capture transfers, before the first step: all ranks capture
 * steps, or none. */
Err capture_settle(Rank *r);
/* Collective over all ranks if the program has transfers. *out: the step is launched as graphs,
 * which are captured first if there are none. Else it is walked, and graphs that no longer fit are
 * closed. */
Err capture_ready(Rank *r, bool *out);
/* Collective as capture_ready. Captures rank_walk(first, end) as graph `part`.
 * *captured: false if the device refuses; then nothing of it has run, and the positions are walked.
 * With transfers a refusal is an error. */
Err capture_part(Rank *r, int part, int first, int end, bool *captured);
/* Local. Puts a graph into the compute queue; `again`: its transfers are counted once more. */
Err capture_launch(Rank *r, int part, bool again);

/* rank.c. Collective. Runs the actions first .. end - 1 of the list, each after the transfers that
 * end at its position, and ends those of position `end`. */
Err rank_walk(Rank *r, int first, int end);

/* execute.c. Collective if the program has transfers. Runs the instructions of a RUN. */
Err execute_run(Rank *r, const LinkedAction *l);
/* Local. A single instruction of a RUN: execute_begin once, then execute_kernel for each. `keep` is
 * the factor on all accumulators over micro-batches. */
void execute_begin(Rank *r, const LinkedAction *l, double keep);
Err execute_kernel(Rank *r, const LinkedAction *l, const Instr *in);
/* Local. As execute_kernel for kernels of the compute queue and packs; nothing for transfers,
 * copies in other queues, waits, and calls of sub-programs. Bodies of further rounds run once. */
Err execute_alone(Rank *r, const LinkedAction *l, const Instr *in);

/* groups.c. Collective over all ranks of the program, before its first step. Announces to the comm
 * every group over which the program moves device memory. */
Err groups_prepare(Rank *r);

/* jitter.c. Local. Sleeps at random, if settings.jitter enables it. */
void jitter_sleep(Rank *r);

/* lists.c. Local. True if the device runs the end of a step as optimizer lists. */
static inline bool lists_available(const Rank *r) { return r->runtime && r->runtime->lists; }
/* Local. Makes the lists: all sums of squares, one update per pack. Nothing if there are none. */
Err lists_open(Rank *r);
void lists_close(Rank *r);
/* Local. Sums of squares into the rank's cells; factor and norm, from these cells alone; the update
 * of a unit, weights included. */
Err lists_squares(Rank *r);
Err lists_clip(Rank *r);
Err lists_update(Rank *r, int pack);

/* mailbox.c. Scalars of a step, stored behind the step arena and behind the mailbox. */
typedef struct {
    double factor, norm; /* on gradients; of the mean gradient. See ClipDecision */
    double mean;         /* 1 / live tokens of this rank; mailbox_send sends this and the rates */
    UpdateRates rates;
} StepScalars;
/* Local. Allocates the host's block of a rank on a device. */
Err mailbox_open(Rank *r);
void mailbox_close(Rank *r);
size_t mailbox_bytes(const Rank *r);
/* Local. Copies inputs, mean and rates to the device. */
Err mailbox_send(Rank *r);
/* Local. Copies factor and norm to the device. */
Err mailbox_send_factor(Rank *r);
/* Local. Copies losses, cells and StepScalars to the host, and waits for the compute queue. */
Err mailbox_fetch(Rank *r);
/* Local. StepScalars in the mailbox; in device memory. */
StepScalars *mailbox_scalars(const Rank *r);
StepScalars *device_scalars(const Rank *r);
/* Local. The host's address of an offset of the step arena, from the inputs on. */
static inline char *mailbox_at(const Rank *r, size_t offset)
{
    return r->mailbox.base + (offset - r->mailbox.start);
}

/* memory.c. Local. The device context, the arenas and the mailbox. memory_drain waits for all
 * queues before anything is closed. */
Err memory_open(Rank *r);
void memory_drain(Rank *r);
void memory_close(Rank *r);
size_t memory_arena_bytes(const Rank *r, int arena);
/* Local. The host waits for the compute queue. Its work may wait for other ranks; ERR_PEER if one
 * of them failed. */
Err memory_sync(const Rank *r);
/* Local. The rank's staging buffer, STAGING_BYTES of pinned memory for copies between steps. */
Err memory_staging(Rank *r, void **out);
/* Local. Puts a copy into a queue, behind the work in the compute queue; then records `done`. */
Err memory_copy(Rank *r, Queue queue, const Call *c, DeviceEvent *done);

/* optimize.c. Local. Writes the scalars of the step to the mailbox of a rank on a device. */
void optimize_scalars(Rank *r);
/* rounds.c. Local. The rounds of an instruction that loops, from the offsets of all ranks that
 * send; on a device the host waits for them. */
Err rounds_of(Rank *r, const Instr *in, const Tensor *all, int64_t *rounds);
/* Local. Counts one further round. */
void rounds_record(Rank *r, const LinkedAction *l, const Instr *in, const Program *body);

/* stats.c. Collective over the group of STATS, after optimize_totals. Sums the statistics. */
Err stats_sum(Rank *r);
/* Collective over all ranks, once per step: totals of live tokens and loss, and the factor 1 / live
 * tokens on gradients. Later calls in the step do nothing. */
Err optimize_totals(Rank *r);
/* Collective over all ranks. The norm of the gradient, the factor on gradients, and whether the
 * step updates anything. */
Err optimize_norm(Rank *r);
/* Local after optimize_totals. Updates the rank's home of the pack, but not in a skipped
 * step. */
Err optimize_update(Rank *r, int pack);
/* Local. Cells of the sums of squares of blocks, in the rank's memory. */
/* Local. True for a pack whose parameters no step changes: biases of routers at rate 0. */
bool optimize_is_constant(const Rank *r, int pack);
double *optimize_blocks(const Rank *r);
/* Local. Casts the home's master to weights; nothing if the types are equal. */
Err optimize_publish(Rank *r, int pack);

/* poison.c. Local. With settings.poison, writes NaN: to all memory whose lifetime begins in a RUN;
 * to the destination of a gather or a receive, except parts in place; to memory that is dead from a
 * position on. */
Err poison_run(const Rank *r, const LinkedAction *l);
Err poison_steps(const Rank *r, const LinkedAction *l);
Err poison_freed(const Rank *r, const LinkedAction *l);

/* poll.c. Local. Around a kernel: on the host, transfers in flight advance between its tiles. */
void poll_begin(Rank *r);
void poll_end(Rank *r);
/* Local. Advances transfers in flight. Returns a failure between tiles since the last call. */
Err poll_now(Rank *r);

/* prepack.c. Local. The address of a prepacked weight of the unit, or NULL. */
char *prepacked_at(const Rank *r, int unit, int which);
/* Local. Prepacks the weight. */
Err prepack_weight(Rank *r, const LinkedAction *l, int which, Tensor w);
/* Local. ERR_CHECK unless the program was compiled for this device's prepacked sizes. */
Err prepack_check(const Rank *r);

/* random_fill.c. Local. Fills the work arena of a device with finite normal numbers; fills it again
 * with the same. */
Err random_fill_make(Rank *r);
Err random_fill_spread(Rank *r);

/* rehearse.c. Local. Runs every kernel of the list once, and waits for them. */
Err rehearse(Rank *r);

/* steps.c. Collective over the groups of the steps. Begins the action at a position; ends it. */
Err steps_begin(Rank *r, int at);
/* Collective over the ranks that share scales. QUANTIZE: makes codes and scales. */
Err codes_make(Rank *r, int at);
/* Local. Runs its kernels, without the transfer. */
Err codes_rehearse(Rank *r);
Err steps_end(Rank *r, int at);
/* Local. Runs every add and copy of the list, on the first element of the work memory alone. */
Err steps_rehearse(Rank *r);
/* Collective over the scalar's group. */
Err steps_scalar(Rank *r, int which);
/* Local. True if the list or its scalars have transfers to other ranks. */
bool steps_sends(const LinkedProgram *lp);
/* Local. ERR_CHECK if the program has transfers and the comm is missing or another rank's. */
Err steps_check(const Rank *r);

/* timestamps.c. Local. Device times of the events of the trace. timestamps_put puts one behind the
 * work of an event; event -1 starts a step. timestamps_settle writes the times into the trace, once
 * the queue is empty. */
Err timestamps_open(Rank *r);
void timestamps_close(Rank *r);
Err timestamps_put(Rank *r, int64_t event);
Err timestamps_settle(Rank *r, double now_s);

/* watch.c. Local. Writes the rank's position and its trace: around an action (TRACE_ACTION) and
 * around each instruction of its program. watch_end takes the time that watch_begin returned. Step
 * 0: between steps. */
Err watch_step(Rank *r, int64_t step);
/* Local. The rank's position is a graph. */
void watch_graph(Rank *r);
double watch_begin(Rank *r, const LinkedAction *l, int instr);
Err watch_end(Rank *r, const LinkedAction *l, int instr, double begin_s);

#endif
