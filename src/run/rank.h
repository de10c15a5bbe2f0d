/* rank.h -- one rank: allocates its arenas, opens its device context, and executes its action list.
 *
 *     rank_open      allocates arenas of the sizes that linking computed; opens the device context.
 *                    The comm is open already, see RankSettings
 *     rank_input     buffers for the loader, per micro-batch: tokens, targets, positions, ranges
 *                    (the attention mask: two ranges of keys per row), weights (of token losses)
 *     rank_step      sets the runtime scalars; executes the list once, or launches it as a graph
 *     rank_piece     a contiguous part of a parameter in the rank's home, with its gradient and
 *                    moments: views of the arenas. The pieces of all ranks make the whole parameter
 *
 * A device with memory of its own holds all arenas except `host`; kernels, copies and transfers are
 * put into its queues. Inputs, losses and scalars pass between host and device through one pinned
 * host block, the mailbox. It mirrors the end of the arena `step`, from the inputs on:
 *
 *     arena `step`     ... | inputs of micro-batches | losses, scalar cells
 *     copied               host to device:             device to host:
 *                          once, at the step's start   once, at NORM or at the step's end
 *     mailbox              | inputs of micro-batches | losses, scalar cells
 *
 * If the device is the host, the mailbox is that part of the arena itself and nothing is copied.
 *
 * rank_open allocates the arenas, and linking has placed every tensor of a step in them; the arena
 * `kernels` is lent to the device for the scratch of its kernels. Allocated later, at first use:
 * the host copy of logits, the staging buffer for copies between steps, a captured graph, and the
 * comm's own buffers. There is no global state. Ranks exchange data through
 * their comms only, except that a rank may use arenas of another one (program_set.h). */
#ifndef RUN_RANK_H
#define RUN_RANK_H

#include "comm/comm.h"
#include "device/runtime.h"
#include "run/program_set.h"
#include "run/tickets.h"
#include "run/watch.h"
#include "schedule/link/link.h"

typedef enum { OPTIM_ADAMW, OPTIM_SGD } OptimKind;

/* The optimizer's settings, constant over a run. */
typedef struct {
    OptimKind kind;
    double beta1, beta2, eps, weight_decay;
    double clip; /* clipping threshold: largest norm of the mean gradient; 0: no clipping */
    /* Threshold for skipping: a step with a larger norm updates nothing. 0: no threshold; only
     * steps with a non-finite norm or loss are skipped. */
    double skip;
    double bias_rate; /* step of parameters that are updated by sign; 0: they are constant */
    int64_t block;    /* elements per sum of squares; homes are sharded in multiples of it */
} OptimSettings;

/* Random sleeps before actions and instructions, to vary the relative order of ranks; for tests. */
typedef struct {
    double max_s; /* longest sleep; 0: none */
    uint64_t seed;
} RankJitter;

/* A hook for checks: `after` is called when the kernel of an instruction of a RUN has been queued.
 * It may read operands (rank_read) and, on the host, replace
 * results. */
typedef struct {
    Err (*after)(void *context, const Rank *r, const LinkedAction *l, const Instr *in,
                 const Call *c);
    void *context;
} RankObserver;

typedef struct {
    const LinkedProgram *program;
    const Device *device;
    int ordinal;        /* device index, modulo the number of devices; ignored on the host */
    bool deterministic; /* fixed summation order, even where a library is faster without it */
    Comm *comm;         /* of this rank, opened by the caller; NULL: the program has no transfers */
    Team *team;         /* threads of the rank, opened by the caller */
    OptimSettings optim;
    /* The programs over one state, of which this rank runs number `number`; NULL: this one only. */
    const ProgramSet *set;
    int number;
    /* The rank of program 0, which owns the weights, moments, session rows, work memory and device
     * context that this rank uses. All may use one comm, taking turns. NULL: this is program 0. A
     * rank may join an owner without a set, as the second; it allocates what does not fit. */
    const Rank *state_of;
    /* For tests: memory is filled with NaN when its lifetime begins, and when it ends if linking
     * recorded that (LinkInput.note_freed). Reads of unwritten or dead memory then show in the
     * results. */
    bool poison;
    /* For tests: host-device copies start at their wait instead of at their begin, so that reads
     * without a wait show in the results. */
    bool late;
    RankJitter jitter;
    RankObserver observer; /* of every step; after: NULL: none */
    /* Launches a step as a graph if the step before it had the same live rows; see
     * rank_uncaptured. */
    bool capture;
    /* Transfers may be in a graph: NCCL moves device memory, and each rank is a process. */
    bool capture_transfers;
    RankWatch *watch; /* receives the rank's position; NULL: none */
    /* Receives an event per instruction, with times; NULL: none. On a device the times are those of
     * its compute queue. */
    RankTrace *trace;
} RankSettings;

enum { MAX_CALLS = 8 }; /* slots for sub-programs: see rank_bind */

/* The host's end of the mailbox: mailbox.c. */
typedef struct {
    char *base; /* base[0] mirrors offset `start` of the step arena; the arena itself on the host */
    size_t start;      /* offset of the first input in the step arena */
    DeviceEvent *sent; /* recorded after the copy of the inputs to the device; NULL on the host */
} RankMailbox;

/* Optimizer lists of a device, one launch for many tensors: lists.c. */
typedef struct {
    DeviceList **squares; /* [n_squares] sums of squares of gradients, run one after another */
    int n_squares;
    DeviceList **update; /* [packs] updates; entry NULL: the rank has nothing of the pack at home */
    size_t bytes;        /* of the lists so far, of LinkedProgram.list_bytes */
} RankLists;

/* The side that computes the gradient scale, 1 / live tokens x clip coefficient (optimize.c), for a
 * device with optimizer lists. */
typedef enum {
    CLIP_UNDECIDED, /* before NORM; always on the host and on a device without optimizer lists */
    CLIP_BY_HOST,   /* the host computed it and sent it to the device */
    CLIP_BY_DEVICE  /* the device computes it in its queue; the host reads it after the step */
} ClipDecision;

/* Results of the current step, reset at its start. */
typedef struct {
    double norm;   /* of the mean gradient of all ranks; 0 before NORM */
    bool skipped;  /* after NORM: nothing is updated, on any rank; see is_skipped_step */
    bool totalled; /* loss_sum and live_tokens are totals over all ranks */
    double loss_sum;
    int64_t live_tokens;
    ClipDecision decision;
} RankStep;

/* A step of a device as a graph, or as one before NORM and one behind it: capture.c. */
enum { CAPTURE_PARTS = 2 };
typedef struct {
    DeviceGraph *graph[CAPTURE_PARTS]; /* NULL: none yet */
    CommTotals before[CAPTURE_PARTS];  /* the comm's totals around the capture of each */
    CommTotals after[CAPTURE_PARTS];
    int norm;              /* position of the NORM between the two; -1: there is one graph */
    bool transfers;        /* the graphs contain transfers: all ranks launch them, or none */
    int32_t *all, *ready;  /* [ranks]: their numbers; whether each launches, see agree */
    int64_t *live_rows;    /* [micros] of the last eager step; NULL: steps cannot be captured */
    bool ran_eagerly;      /* a step with these live_rows has run op by op */
    ClipDecision decision; /* of the captured step, and therefore of every launch */
    int64_t n_captured;    /* steps made into graphs so far */
    int64_t n_launched;    /* steps launched as graphs so far */
    bool refused;          /* the device refused a capture; all later steps run op by op */
    char why[512];         /* the device's reason */
} RankCapture;

/* Timestamps of the step's trace on a device: timestamps.c. */
typedef struct {
    DeviceTimestamps *device; /* NULL: no trace, or the device is the host */
    int n, cap;
    double *seconds;      /* [cap] */
    int64_t *trace_index; /* [cap]: of the event in the trace; -1: the step's start */
} RankTimestamps;

/* Further rounds of the rows of experts, since the rank was opened: rounds.c. */
typedef struct {
    int64_t n;         /* of forward: one per layer, micro-batch and round after the first */
    size_t sent_bytes; /* of all phases, beyond what linked_traffic counts */
} RankRounds;

/* Polls between the tiles of kernels: poll.c. */
typedef struct {
    Err failed;    /* the first failure, until poll_now returns it */
    double next_s; /* time of the next poll, at the earliest */
    int64_t n;     /* polls so far */
} RankPoll;

struct Rank {
    RankSettings settings;
    Arena arena[N_ARENAS];
    char *base[N_ARENAS];
    bool shared[N_ARENAS];        /* the arena belongs to settings.state_of */
    const DeviceRuntime *runtime; /* NULL: the device is the host */
    DeviceContext *context;       /* the rank's, or that of settings.state_of */
    DeviceQueue *queue;           /* compute queue; NULL on the host */
    RankMailbox mailbox;
    TicketTable tickets;
    RankPoll poll;
    RankRounds rounds;
    RankLists lists;
    RankTimestamps timestamps;
    RankCapture capture;
    void *logits;                      /* host copy of rank_logits; NULL: not yet allocated */
    void *staging;                     /* see memory_staging; NULL: not yet allocated */
    double slot[N_SLOTS];              /* runtime scalars */
    const Program *pending[MAX_CALLS]; /* by slot: set by rank_bind; the next BIND binds it */
    const Program *bound[MAX_CALLS];   /* by slot: the sub-program that calls run; NULL: none */
    int64_t *live_rows;                /* [micros] */
    RankStep step;
    int first_arena;    /* the comm's id of arena 0; the other arenas and the mailbox follow */
    bool groups_opened; /* comm_prepare has run */
    uint64_t n_delays;  /* places passed at which jitter may sleep */
};

typedef struct {
    int64_t step; /* from 1 */
    double lr;
    /* Number of this update, from 1, for Adam's bias correction; skipped steps do not count. 0: the
     * step's number. */
    int64_t update;
} StepSettings;

typedef struct {
    double loss; /* sum of token losses / live tokens, before the update */
    double loss_sum;
    double grad_norm; /* of the mean gradient; 0 if the list has no NORM */
    int64_t live_tokens;
    bool skipped; /* nothing was updated: non-finite loss or norm, or a norm above optim.skip */
} StepResult;

/* Local; for a second program of ranks that are threads with NCCL collective, as comm_quiet. After
 * ERR_NOMEM the error text names the bytes and their purpose. */
Err rank_open(Rank *r, const RankSettings *settings);
void rank_close(Rank *r);

/* Local. rank_read copies bytes of the rank's arenas to host memory, rank_write the reverse. Both
 * run after all queued compute and block until the copy is done. Plain copies if the device is the
 * host. */
Err rank_read(const Rank *r, const void *at, size_t bytes, void *to);
Err rank_write(Rank *r, void *at, size_t bytes, const void *from);
/* Local. Fills bytes of an arena, in the order of the compute queue. */
Err rank_fill(const Rank *r, void *at, int byte, size_t bytes);
/* Local. True if the host may dereference pointers into the arenas. */
static inline bool rank_on_host(const Rank *r) { return !r->runtime; }

/* Local. Writes initial weights, from an RNG keyed by (seed, name, element of the whole parameter)
 * and therefore independent of the layout; moments become 0. */
Err rank_init_weights(Rank *r, uint64_t seed);
/* Local. Casts master weights that the caller wrote to the type that programs read. The next step
 * gathers packs from them. */
Err rank_publish(Rank *r);
/* Local. Autotuning before the first step. Runs every GEMM of the list twice, on random data on a
 * device. If some shape then still has several candidate algorithms, runs the GEMMs and the ops
 * around them a fixed number of times (PASSES of autotune.c). On the host, only the two runs of
 * each GEMM take place. Does nothing on a device without autotuning. Weights and moments are
 * unchanged; gradients and work memory are overwritten. */
Err rank_autotune(Rank *r);
/* Local. Input `which` of a micro-batch, including dead rows: [rows], or [rows, 4] for ranges. The
 * rows are those that the rank holds of it, LinkedProgram.input_rows: all unless tokens are sharded
 * over cp. In host memory. */
Tensor rank_input(Rank *r, int micro, Input which);
/* One row of a micro-batch. */
typedef struct {
    int32_t token, target, position;
    int32_t range[4]; /* rows of the micro-batch that are its keys: two ranges */
    double weight;    /* of the token's loss */
} InputRow;
/* Local. Writes a row of the micro-batch to the inputs of which this rank holds it. */
void rank_put_row(Rank *r, int micro, int64_t row, const InputRow *in);
void rank_put_weight(Rank *r, int micro, int64_t row, double weight);
/* Local. Sets the number of live rows of a micro-batch, on all ranks together; all are live at
 * first. */
void rank_set_rows(Rank *r, int micro, int64_t rows);
/* Local. Sets the number of rows for which a session's next call computes logits. */
void rank_set_logit_rows(Rank *r, int64_t rows);
/* Local. After the call: these logits, [rows, vocabulary], in host memory. data is NULL if the last
 * unit is on another stage. */
Err rank_logits(Rank *r, Tensor *out);
/* Local. Prepared for ring attention; only tests call it. Sets the sub-program that calls of `slot`
 * run from the next BIND action on. `sub` must live until the last step that runs it. ERR_CONFIG if
 * it needs more scratch than the region that each call reserves for it (OpAttr.call.region_bytes),
 * or if its arguments differ from the calls' operands. */
Err rank_bind(Rank *r, int slot, const Program *sub);

/* Collective over all ranks of the program. Executes the action list once. */
Err rank_step(Rank *r, const StepSettings *step, StepResult *out);

enum { UNCAPTURED_BYTES = 256 };
/* Local. The reason why steps of a rank with these settings are not captured as a graph, with the
 * first instruction or action that prevents it, in `text`; NULL: they are. `comm`, `team` and
 * `optim` are not read. */
const char *rank_uncaptured(const RankSettings *s, char text[UNCAPTURED_BYTES]);
/* Local. The device's reason for a refused capture; steps run op by op from then on. NULL: none was
 * refused. */
const char *rank_capture_refused(const Rank *r);

/* Local. After the step: this rank's partial loss of a micro-batch, to be summed over the axes of
 * Program.loss_partial. Undefined on ranks without the last unit. */
double rank_loss(const Rank *r, int micro);

/* Local. After the step: statistics of a unit with a router, summed over micro-batches and ranks,
 * LinkedProgram.stats of them: balance loss and z loss, both without coefficients and as sums over
 * tokens, then the tokens of each expert. Units count from 0; NULL past the last. */
const double *rank_stats(const Rank *r, int row);

/* WEIGHT: as programs read it. MASTER: as updates keep it, in the wide type; the same bytes if the
 * two types are equal. GRAD: after the step, reduced over all ranks. */
typedef enum { PART_WEIGHT, PART_MASTER, PART_GRAD, PART_MOMENT1, PART_MOMENT2 } ParamPart;

/* A contiguous part of a parameter that the rank has at home. */
typedef struct {
    int param; /* for a tied copy, the index of the original */
    int pack;
    int64_t lo, hi; /* element range in the rank's use shard of the parameter, row-major */
    int64_t at;     /* element offset of lo in the rank's home of the pack */
    Holding held;   /* the rank's use shard of the parameter */
} RankPiece;

/* Local. The number of pieces of a pack in the rank's home; 0 for packs of other stages. */
int rank_pieces(const Rank *r, int pack);
RankPiece rank_piece(const Rank *r, int pack, int i);
/* Local. The data of a piece, flat, in the rank's memory: see rank_read. */
Tensor rank_piece_data(const Rank *r, const RankPiece *p, ParamPart part);
/* Local. The row-major index, in the whole parameter, of element i of the piece. */
int64_t rank_piece_global(const RankPiece *p, int64_t i);
/* Local. The rank's home of a pack, flat, in the rank's memory. */
Tensor rank_home(const Rank *r, int pack, ParamPart part);
/* Local. The rank's use shard of a parameter, or of its gradient or moments, in its own shape.
 * Requires that the home contains all of the use shard, or, for PART_WEIGHT, that the pack stays
 * gathered for the step: then the weights are those of the last gather. */
Tensor rank_param(const Rank *r, int param, ParamPart part);

#endif
