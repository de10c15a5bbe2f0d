/* rank.h -- one rank at work: it walks its linked list.
 *
 *     rank_open      arenas of the sizes that linking found, a device, a comm, a team of threads
 *     rank_input     where the loader writes tokens, targets, positions, ranges, weights
 *     rank_step      sets the slots, walks the list
 *     rank_piece     what the rank has at home of a parameter, its gradient, its moments: views of
 *                    the arenas; the pieces of all ranks make the whole
 *
 * Where the device has memory of its own the arenas lie there, but for `host`, and kernels, copies
 * and transfers are put into its queues; what the host tells programs, and they it, is on a desk:
 *
 *     desk   host's     inputs of micro-batches  | losses, cells of scalars
 *              |            v at the step's start     ^ once a step
 *            device's   the end of the arena `step`
 *
 * Where the device is the host, the desk is that part of the arena itself, and nothing is copied.
 *
 * All that a step needs was allocated and placed before it; a step allocates nothing. There is no
 * global state: ranks in one process share nothing but what the comm gives them. */
#ifndef RUN_RANK_H
#define RUN_RANK_H

#include "comm/comm.h"
#include "device/runtime.h"
#include "run/watch.h"
#include "schedule/link/link.h"

typedef enum { OPTIM_ADAMW, OPTIM_SGD } OptimKind;

/* What an update needs to know, the same in every step of a run. */
typedef struct {
    OptimKind kind;
    double beta1, beta2, eps, weight_decay;
    double clip;   /* of the gradient's norm; 0: none */
    double skip;   /* a step whose norm is larger updates nothing; 0: only one that is not finite */
    int64_t block; /* elements whose squares are summed together, and that homes are cut by */
} OptimSettings;

/* Sleeps at random before actions and instructions, so that ranks come in every order; for tests. */
typedef struct {
    double most_s; /* the longest; 0: none */
    uint64_t seed;
} RankJitter;

typedef struct Rank Rank;

typedef struct {
    const LinkedProgram *program;
    const Device *device;
    int ordinal;        /* which of its devices, counted around, where it has memory of its own */
    bool deterministic; /* sums of one order, also where a library of the device is faster else */
    Comm *comm;
    Team *team;
    OptimSettings optim;
    const Rank *state_of; /* use its weights and moments, and the rows of its session, laid out
                             alike; and work where it does (rank_shares). NULL: I have my own. Both
                             may have the same comm, and take turns. */
    bool poison; /* fill what begins to live, and where it is noted what is over, with NaN: who
                         reads what was not written, or not kept, shows */
    bool late;   /* what is begun is done only when it is waited for */
    RankJitter naps;
    bool capture;     /* steps that are alike are put into the device's queue as one graph; see
                     rank_uncaptured */
    RankWatch *watch; /* told where the rank is; NULL: nobody watches */
    RankTrace *trace; /* told what it did, and when; NULL: nobody asks. On a device: when that did
                         it, the queue of computing being one line */
} RankSettings;

enum { MAX_CALLS = 8, MAX_BEGUN = 32 };

/* A copy that waits to be done, or is under way; or a transfer. */
typedef struct {
    Call call;
    const Instr *instr;
    bool sent;
    Ticket ticket;
    DeviceEvent *copied; /* of a copy in another queue; NULL: it waits to be done */
} Begun;

/* What a rank on a device has made for the ends of its steps: lists.c. */
typedef struct {
    DeviceList **squares; /* [n_squares]: one after another */
    int n_squares;
    DeviceList **update; /* [units]; NULL: nothing of it is at home */
} RankLists;

/* A step on a device as a graph: capture.c. */
typedef struct {
    DeviceGraph *graph; /* NULL: none is made */
    int64_t *rows;      /* [micros]: live ones, of the last step that was walked; NULL: the program
                      is not for a graph */
    bool walked;        /* a step with these rows was, op by op */
    bool clipped;       /* the graph's end is what leaves Rank.clipped */
    int64_t captured, launched; /* how often, so far */
    bool refused;
    char why[512]; /* the device's words, where it refused */
} RankCapture;

/* Of the step's trace on a device: marks.c. */
typedef struct {
    DeviceTimestamps *marks; /* NULL: nobody asks, or the device is the host */
    int n, most;
    double *seconds; /* [most] */
    int64_t *event;  /* [most]: of the trace; -1: the step's start */
} RankTimestamps;

struct Rank {
    RankSettings settings;
    Arena arena[N_ARENAS];
    char *base[N_ARENAS];
    bool shared[N_ARENAS];        /* of the rank whose state it uses */
    const DeviceRuntime *runtime; /* NULL: the device is the host */
    DeviceContext *context;       /* of the rank, or of the one whose state it uses */
    DeviceQueue *queue;           /* of computing; NULL likewise */
    char *desk;                   /* the step arena from desk_at on, as the host sees it */
    size_t desk_at;
    DeviceEvent *event[MAX_BEGUN + 1]; /* of copies that are begun; the last: of inputs */
    RankLists lists;
    RankTimestamps marks;
    RankCapture capture;
    void *logits; /* where the host reads them */
    void *stage;  /* see memory_stage; NULL: not yet */
    double slot[N_SLOTS];
    const Program *pending[MAX_CALLS], *bound[MAX_CALLS];
    int64_t *live_rows; /* [micros] */
    double norm;        /* of the step's gradient, after NORM */
    bool skips;         /* after NORM: the step updates nothing, on any rank */
    bool judged;        /* of a rank on a device: the factor is there, for updates to read */
    bool clipped;       /* and was made there: the host learns at the end of the step */
    bool tallied;       /* what follows is known, of all ranks: at NORM, or at the end */
    int64_t live_tokens;
    double loss_sum;
    int first_arena; /* number of arena 0 in the comm */
    Ticket *ticket;  /* [positions]: of what is begun there and not yet ended */
    int n_flying;
    Begun begun[MAX_BEGUN];
    int n_begun;
    bool prepared;     /* the comm has been told of its groups */
    uint64_t n_delays; /* places at which it might have slept */
};

typedef struct {
    int64_t step; /* from 1 */
    double lr;
    int64_t
        update; /* Adam's time: updates with this one, from 1; 0: the step's number, for none was
                       skipped */
} StepSettings;

typedef struct {
    double loss; /* sum of token losses / live tokens, before the update */
    double loss_sum;
    double grad_norm; /* of the mean gradient; 0 when the list has no NORM */
    int64_t live_tokens;
    bool
        skipped; /* nothing was updated: the loss or the norm is not finite, or larger than optim.skip;
                     the same on all ranks */
} StepResult;

/* Local. Whether a rank of this program lies in an arena of the rank whose state it uses: so it does of
 * what holds nothing from one step to the next, while it needs no more of it. */
bool rank_shares(const LinkedProgram *lp, const LinkedProgram *of, ArenaId a);
/* Local. What it takes of an arena beside that rank. */
size_t rank_bytes_beside(const LinkedProgram *lp, const LinkedProgram *of, ArenaId a);
/* Local. ERR_NOMEM says how much was asked for, and for what. */
Err rank_open(Rank *r, const RankSettings *settings);
void rank_close(Rank *r);

/* Local. Bytes of the rank's arenas, after all that was begun, to the host's memory and from it.
 * Plain copies where the device is the host. */
Err rank_read(const Rank *r, const void *at, size_t bytes, void *to);
Err rank_write(Rank *r, void *at, size_t bytes, const void *from);
/* Local. Fills bytes of an arena, before what the rank does next. */
Err rank_fill(const Rank *r, void *at, int byte, size_t bytes);
/* Local. May the host use pointers into the arenas? */
static inline bool rank_on_host(const Rank *r) { return !r->runtime; }

/* Local. Initial weights by (seed, name, element of the whole), so that they do not depend on the
 * layout; moments 0. */
Err rank_init_weights(Rank *r, uint64_t seed);
/* Local. Weights as programs use them, from master weights that somebody else wrote; packs are
 * gathered from them in the next step. */
Err rank_publish(Rank *r);
/* Local. Before the first step: runs the products of the list, and as long as the device has several
 * algorithms of one the ops around them, on noise, so that a device that measures its algorithms has them.
 * Weights and moments stay as they are; gradients and what a step works on do not. */
Err rank_autotune(Rank *r);
/* Local. Where input `which` of a micro-batch lies, at full extent. */
Tensor rank_input(Rank *r, int micro, Input which);
/* Local. How many of its rows are live; at first all are. */
void rank_set_rows(Rank *r, int micro, int64_t rows);
/* Local. Of a session: of how many rows the logits are asked for, and after the call these, [asked, vocabulary], for
 * the host to read; no data where the last unit is on another stage. */
void rank_set_asked(Rank *r, int64_t rows);
Err rank_logits(Rank *r, Tensor *out);
/* Local. The sub-program that calls of `slot` run, from the next BIND action on. It must outlive
 * its last step. ERR_CONFIG when its region is larger than the program's calls leave it, or its
 * arguments are not what they pass. */
Err rank_bind(Rank *r, int slot, const Program *sub);

/* Collective over all ranks of the program. Walks the list once. */
Err rank_step(Rank *r, const StepSettings *step, StepResult *out);

/* Local. Why steps of such a rank are not captured as a graph, in words; NULL: they are. `comm`, `team`
 * and `optim` are not looked at. */
const char *rank_uncaptured(const RankSettings *s);
/* Local. The device's reason to refuse a capture that was tried; NULL: there is none. Steps then run
 * op by op, as they did. */
const char *rank_capture_refused(const Rank *r);

/* Local. After the step: the loss of a micro-batch, as far as it was computed on this rank; see
 * Program.loss_partial. Of a rank without the last unit there is none. */
double rank_loss(const Rank *r, int micro);

/* WEIGHT: as programs use it. MASTER: as updates keep it, in the wide type; the same bytes where
 * the two types are one. GRAD: after the step, of all ranks. */
typedef enum { PART_WEIGHT, PART_MASTER, PART_GRAD, PART_MOMENT1, PART_MOMENT2 } ParamPart;

/* A stretch of a parameter that the rank has at home. */
typedef struct {
    int param, unit; /* of a copy: the parameter that it is of */
    int64_t lo, hi;  /* of the row-major elements that `use` leaves to the rank */
    int64_t at;      /* of lo, in the unit's home */
    Holding held;    /* of the parameter in `use` */
} RankPiece;

/* Local. The pieces of a unit's pack; one of them; its data, flat, in the rank's memory (see
 * rank_read); and which element of the whole
 * parameter, row-major, is element i of it. */
int rank_pieces(const Rank *r, int unit);
RankPiece rank_piece(const Rank *r, int unit, int i);
Tensor rank_piece_data(const Rank *r, const RankPiece *p, ParamPart part);
int64_t rank_piece_global(const RankPiece *p, int64_t i);
/* Local. All that the rank has at home of a unit, flat. */
Tensor rank_home(const Rank *r, int unit, ParamPart part);
/* Local. A view of a parameter, or of what goes with it, in its shape: where the rank has all of
 * what `use` leaves it; weights as they were gathered last. */
Tensor rank_param(const Rank *r, int param, ParamPart part);

#endif
