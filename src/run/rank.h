/* rank.h -- one rank: opens its memory, device and comm, and runs the actions of its linked list.
 *
 *     rank_open      allocates arenas of the sizes that linking computed; opens the device context
 *     rank_input     buffers for the loader: tokens, targets, positions, ranges, weights
 *     rank_step      sets the runtime scalars and runs the list once, or launches it as a graph
 *     rank_piece     the rank's home shard of a parameter, its gradient and its moments: views of
 *                    the arenas. The pieces of all ranks make the whole parameter
 *
 * A device with memory of its own holds all arenas except `host`; kernels, copies and transfers are
 * put into its queues. Inputs, losses and scalars pass between host and device through one pinned
 * block, the mailbox. It mirrors the end of the arena `step`:
 *
 *     pinned host block    inputs of micro-batches | losses, scalar cells
 *                            v once, at the start      ^ once, at NORM or at the end
 *     arena `step`         inputs of micro-batches | losses, scalar cells
 *
 * If the device is the host, the mailbox is that part of the arena itself and nothing is copied.
 *
 * All memory of a step is allocated and placed before it; a step allocates nothing. There is no
 * global state: ranks of one process share only their comm. */
#ifndef RUN_RANK_H
#define RUN_RANK_H

#include "comm/comm.h"
#include "device/runtime.h"
#include "run/tickets.h"
#include "run/watch.h"
#include "schedule/link/link.h"

typedef enum { OPTIM_ADAMW, OPTIM_SGD } OptimKind;

/* The optimizer's settings, constant over a run. */
typedef struct {
    OptimKind kind;
    double beta1, beta2, eps, weight_decay;
    double clip;   /* largest norm of the mean gradient; 0: no clipping */
    double skip;   /* steps with a larger norm update nothing; 0: only non-finite ones do not */
    int64_t block; /* elements per sum of squares; homes are sharded in multiples of it */
} OptimSettings;

/* Random sleeps before actions and instructions, so that ranks run in every order; for tests. */
typedef struct {
    double max_s; /* longest sleep; 0: none */
    uint64_t seed;
} RankJitter;

typedef struct {
    const LinkedProgram *program;
    const Device *device;
    int ordinal;        /* number of the device, modulo their count, if it has its own memory */
    bool deterministic; /* fixed summation order, even where a library is faster without it */
    Comm *comm;
    Team *team;
    OptimSettings optim;
    /* A rank of the same layout whose weights, moments, session rows and device context are used
     * (rank_shares lists the arenas); NULL: none. Both ranks may use one comm, taking turns. */
    const Rank *state_of;
    /* Memory is filled with NaN when its lifetime begins, and when it ends if linking noted that,
     * so that reads of unwritten or dead memory show in the results. */
    bool poison;
    bool late; /* copies between host and device run at their wait instead of at their begin */
    RankJitter jitter;
    bool capture;     /* repeated steps are launched as one graph; see rank_uncaptured */
    RankWatch *watch; /* receives the rank's position; NULL: none */
    /* Receives an event per instruction, with times; NULL: none. On a device the times are those of
     * its compute queue. */
    RankTrace *trace;
} RankSettings;

enum { MAX_CALLS = 8 };

/* The host's end of the mailbox: mailbox.c. */
typedef struct {
    char *base; /* mirrors the step arena from offset `start`; the arena itself on the host */
    size_t start;
    DeviceEvent *sent; /* recorded behind the copy of the inputs; NULL on the host */
} RankMailbox;

/* Optimizer lists of a device, one launch for many tensors: lists.c. */
typedef struct {
    DeviceList **squares; /* [n_squares], run one after another */
    int n_squares;
    DeviceList **update; /* [units]; NULL: the rank has nothing of the unit at home */
} RankLists;

/* Where the factor on gradients comes from: mean over live tokens times clip (optimize.c). */
typedef enum {
    CLIP_UNDECIDED,
    CLIP_BY_HOST,  /* the host computed it and sent it to the device */
    CLIP_BY_DEVICE /* the device computes it in its queue; the host reads it after the step */
} ClipDecision;

/* Results of the current step, reset at its start. */
typedef struct {
    double norm;   /* of the mean gradient of all ranks; 0 before NORM */
    bool bad;      /* after NORM: nothing is updated, on any rank; see is_bad_step */
    bool totalled; /* loss_sum and live_tokens are totals over all ranks */
    double loss_sum;
    int64_t live_tokens;
    ClipDecision decision; /* of a device with optimizer lists */
} RankStep;

/* A step of a device as a graph: capture.c. */
typedef struct {
    DeviceGraph *graph;    /* NULL: none yet */
    int64_t *rows;         /* [micros]: live rows of the last walked step; NULL: never captured */
    bool walked;           /* a step with these rows has run op by op */
    ClipDecision decision; /* RankStep.decision after a launch */
    int64_t captured, launched; /* graphs made and launched so far */
    bool refused;
    char why[512]; /* the device's reason, if it refused a capture */
} RankCapture;

/* Timestamps of the step's trace on a device: timestamps.c. */
typedef struct {
    DeviceTimestamps *device; /* NULL: no trace, or the device is the host */
    int n, cap;
    double *seconds; /* [cap] */
    int64_t *event;  /* [cap]: index in the trace; -1: the step's start */
} RankTimestamps;

struct Rank {
    RankSettings settings;
    Arena arena[N_ARENAS];
    char *base[N_ARENAS];
    bool shared[N_ARENAS];        /* belongs to settings.state_of */
    const DeviceRuntime *runtime; /* NULL: the device is the host */
    DeviceContext *context;       /* the rank's, or that of settings.state_of */
    DeviceQueue *queue;           /* compute queue; NULL on the host */
    RankMailbox mailbox;
    TicketTable tickets;
    RankLists lists;
    RankTimestamps timestamps;
    RankCapture capture;
    void *logits;  /* host copy; NULL: not yet allocated */
    void *staging; /* see memory_staging; NULL: not yet allocated */
    double slot[N_SLOTS];
    const Program *pending[MAX_CALLS], *bound[MAX_CALLS];
    int64_t *live_rows; /* [micros] */
    RankStep step;
    int first_arena;    /* number of arena 0 in the comm */
    bool groups_opened; /* comm_prepare has run */
    uint64_t n_delays;  /* places passed at which jitter may sleep */
};

typedef struct {
    int64_t step; /* from 1 */
    double lr;
    int64_t update; /* number of this update, from 1, for Adam's bias; 0: the step's number */
} StepSettings;

typedef struct {
    double loss; /* sum of token losses / live tokens, before the update */
    double loss_sum;
    double grad_norm; /* of the mean gradient; 0 if the list has no NORM */
    int64_t live_tokens;
    bool skipped; /* nothing was updated: a non-finite loss or norm, or one above optim.skip */
} StepResult;

/* Local. True if a rank of program `lp` uses arena `a` of the rank whose state it uses. That holds
 * for state and session, and for arenas that keep nothing between steps if `of` has enough. */
bool rank_shares(const LinkedProgram *lp, const LinkedProgram *of, ArenaId a);
/* Local. Bytes that such a rank allocates of an arena in addition to those of `of`. */
size_t rank_extra_bytes(const LinkedProgram *lp, const LinkedProgram *of, ArenaId a);
/* Local. ERR_NOMEM names the bytes and their purpose. */
Err rank_open(Rank *r, const RankSettings *settings);
void rank_close(Rank *r);

/* Local. Copies bytes of the rank's arenas to host memory and back, behind all work in the compute
 * queue, and waits. Plain copies if the device is the host. */
Err rank_read(const Rank *r, const void *at, size_t bytes, void *to);
Err rank_write(Rank *r, void *at, size_t bytes, const void *from);
/* Local. Fills bytes of an arena, in the order of the compute queue. */
Err rank_fill(const Rank *r, void *at, int byte, size_t bytes);
/* Local. True if the host may dereference pointers into the arenas. */
static inline bool rank_on_host(const Rank *r) { return !r->runtime; }

/* Local. Writes initial weights, drawn by (seed, name, element of the whole parameter) and
 * therefore independent of the layout; moments become 0. */
Err rank_init_weights(Rank *r, uint64_t seed);
/* Local. Casts master weights that the caller wrote to the type that programs read. The next step
 * gathers packs from them. */
Err rank_publish(Rank *r);
/* Local. Autotuning before the first step: runs the GEMMs of the list on random data, and the ops
 * around them while the device still has several candidate algorithms. Weights and moments are
 * unchanged; gradients and work memory are overwritten. */
Err rank_autotune(Rank *r);
/* Local. Input `which` of a micro-batch, at full extent, in host memory. */
Tensor rank_input(Rank *r, int micro, Input which);
/* Local. Sets the number of live rows of a micro-batch; all are live at first. */
void rank_set_rows(Rank *r, int micro, int64_t rows);
/* Local. Sets the number of rows for which a session's next call computes logits. rank_logits
 * returns them after the call, [asked, vocabulary], in host memory; no data if the last unit is on
 * another stage. */
void rank_set_asked(Rank *r, int64_t rows);
Err rank_logits(Rank *r, Tensor *out);
/* Local. Prepared for ring attention; only tests call it. Sets the sub-program that calls of `slot`
 * run from the next BIND action on; it must outlive its last step. ERR_CONFIG if its region exceeds
 * the bytes that the program's calls reserve, or its arguments differ from the calls' operands. */
Err rank_bind(Rank *r, int slot, const Program *sub);

/* Collective over all ranks of the program. Runs the list once. */
Err rank_step(Rank *r, const StepSettings *step, StepResult *out);

/* Local. The reason why steps of such a rank are not captured as a graph; NULL: they are. `comm`,
 * `team` and `optim` are not read. */
const char *rank_uncaptured(const RankSettings *s);
/* Local. The device's reason for refusing a capture; NULL: it refused none. Steps then run op by
 * op. */
const char *rank_capture_refused(const Rank *r);

/* Local. After the step: the loss of a micro-batch, as far as this rank computed it; see
 * Program.loss_partial. Undefined on ranks without the last unit. */
double rank_loss(const Rank *r, int micro);

/* WEIGHT: as programs read it. MASTER: as updates keep it, in the wide type; the same bytes if the
 * two types are equal. GRAD: after the step, reduced over all ranks. */
typedef enum { PART_WEIGHT, PART_MASTER, PART_GRAD, PART_MOMENT1, PART_MOMENT2 } ParamPart;

/* A contiguous part of a parameter that the rank has at home. */
typedef struct {
    int param, unit; /* of a tied copy: the parameter that it copies */
    int64_t lo, hi;  /* range of the row-major elements that the rank has in `use` */
    int64_t at;      /* position of lo in the unit's home */
    Holding held;    /* of the parameter in `use` */
} RankPiece;

/* Local. The number of pieces of a unit's pack; one of them; its data, flat, in the rank's memory
 * (see rank_read); and the index in the whole parameter, row-major, of element i of the piece. */
int rank_pieces(const Rank *r, int unit);
RankPiece rank_piece(const Rank *r, int unit, int i);
Tensor rank_piece_data(const Rank *r, const RankPiece *p, ParamPart part);
int64_t rank_piece_global(const RankPiece *p, int64_t i);
/* Local. The rank's home of a unit, flat. */
Tensor rank_home(const Rank *r, int unit, ParamPart part);
/* Local. A parameter or its gradient or moments in its own shape, if the rank has at home all that
 * `use` gives it. Weights are those of the last gather. */
Tensor rank_param(const Rank *r, int param, ParamPart part);

#endif
