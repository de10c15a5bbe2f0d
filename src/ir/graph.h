/* graph.h -- a unit of the model as values and nodes.
 *
 * Values have names and global shapes, as if there were one device; nodes are instances of the rows
 * of ops.def. The model builder makes a graph for each kind of unit (the embedding, a layer, the
 * head); the passes of compile/ add the backward part and rewrite it.
 *
 *     x --+-> rmsnorm -> linear -> ... -> add -> y     the stream through the units
 *         +--------------------------------^
 *     dx <- ... <- linear_dx <------------ dy          and its gradient, the other way
 *
 * A value is written by one node. Accumulators (gradients of parameters, the loss) may be written
 * by several, in order, and are read by none: they are sums that outlive the program. Two kinds of
 * values are both written and read by every run. Programs that run slices of a sequence keep keys,
 * values and their gradients across the slices (compile/slice.c). Sessions keep rows from call to
 * call (compile/session.c). */
#ifndef IR_GRAPH_H
#define IR_GRAPH_H

#include "comm/comm.h"
#include "ir/inputs.h"
#include "ir/ops.h"
#include "ir/phase.h"
#include "layout/layout.h"

typedef int32_t Value; /* an index into Graph.value */
enum { NO_VALUE = -1, NO_NODE = -1 };

/* Slots: numbers that are known only when a step runs. Instructions and extents refer to them. */
enum {
    SLOT_ZERO,        /* 0: an accumulator starts from zero */
    SLOT_ONE,         /* 1: it continues */
    SLOT_ROWS,        /* live tokens of the slice, or of the micro-batch if it is not sliced */
    SLOT_START,       /* rows of the micro-batch before the slice */
    SLOT_SEEN,        /* live tokens of the micro-batch up to the slice's end */
    SLOT_AFTER_FIRST, /* 0 in the first slice, else 1: sums of F over slices continue */
    SLOT_BEFORE_LAST, /* 0 in the last slice, where backward starts, else 1: its sums continue */
    SLOT_LR,          /* learning rate of the step */
    SLOT_FACTOR,      /* on gradients: 1 / live tokens of the step, times the clip factor */
    SLOT_BIAS1,       /* 1 - beta^step, of the two moments */
    SLOT_BIAS2,
    SLOT_LOGIT_ROWS, /* rows of a session's call whose logits are requested */
    SLOT_FREE,       /* three slots without a fixed meaning */
    SLOT_PORT = SLOT_FREE + 3,
    MAX_PORTS = 64, /* SLOT_PORT + p is 0 if accumulator p of the unit starts from zero, else 1 */
    N_SLOTS = SLOT_PORT + MAX_PORTS
};

typedef enum {
    ROLE_LOCAL,   /* between two nodes */
    ROLE_INPUT,   /* data of the micro-batch; `index` is an Input */
    ROLE_PARAM,   /* parameters `index` .. `index + span - 1` of the unit */
    ROLE_X,       /* the stream from the unit before */
    ROLE_Y,       /* the stream to the unit after */
    ROLE_DY,      /* gradient of y, from the unit after */
    ROLE_DX,      /* gradient of x, to the unit before */
    ROLE_SCALE,   /* scales of coded parameters (ir/unit.h); index and span as ROLE_PARAM */
    ROLE_DPARAM,  /* accumulates the gradient of parameters; index and span as ROLE_PARAM */
    ROLE_LOSS,    /* accumulates the loss of the micro-batch */
    ROLE_STAT,    /* statistics of the micro-batch, which backward makes: those of a router */
    ROLE_MICRO,   /* rows of the whole micro-batch; each slice writes or adds to some */
    ROLE_SESSION, /* rows that stay from call to call; each call writes some: a KV cache */
    ROLE_ARG,     /* operand `index` of the call that runs this sub-program */
    N_ROLES
} Role;

typedef enum { SPACE_DEVICE, SPACE_HOST } Space;

typedef struct {
    const char *name; /* "attn.in"; "" if unnamed */
    DType dtype;
    Role role;
    Space space;
    int32_t index, span;
    Dims dims;
    Layout layout;        /* set by place */
    int64_t max_elements; /* of any rank, if ranks differ; 0: they do not */
} ValueInfo;

typedef struct {
    OpId op;
    int n_in, n_out;
    Value *in;
    Value out[MAX_OUT];
    int32_t keep[MAX_OUT]; /* slot: factor on an accumulator's old value */
    OpAttr attr;
    Queue queue;
    Phase phase;
    int32_t chunk;   /* nodes of one number run together, a chunk of rows at a time; 0: none */
    bool recomputed; /* a copy of a forward node, made to recompute its outputs */
} Node;

/* A box that is copied from one address to another within the rank; in elements. */
typedef struct {
    int ndim;
    int64_t n[MAX_DIMS];
    int64_t from_at, from_stride[MAX_DIMS], to_at, to_stride[MAX_DIMS];
    bool add; /* added to what earlier boxes left there */
} BoxCopy;

/* This rank's part in a transfer, or in packing for one. Its operands are whole and contiguous. */
typedef struct {
    int32_t number; /* of a transfer, counted in the graph: the same on all members */
    Reduce reduce;
    int32_t peer;                           /* of a send or recv: the other rank */
    bool weights;                           /* of a shard of a weight, or of its gradient */
    unsigned axes;                          /* of the dense view, spanned by the group */
    RankList group;                         /* in the order of their parts */
    const int64_t *from_counts, *to_counts; /* elements per member; NULL: all equal */
    const BoxCopy *copy;                    /* of a pack */
    int64_t n_copies;
} TransferPart;

/* The initial value of a parameter. */
typedef enum { INIT_NORMAL, INIT_ZEROS, INIT_ONES } Init;

/* The update of a parameter, and its type. */
typedef enum {
    PARAM_BY_OPTIMIZER, /* the run's optimizer; the graph's type */
    PARAM_BY_SIGN,      /* against the sign of its gradient, which has no part in the norm; in the
                         * wide type: the selection bias of a router */
    PARAM_BY_MARKS      /* marks of amaxes (base/fp8.h), aged; as above: of delayed scaling */
} ParamRule;

typedef struct {
    const char *name; /* within the unit, as in Hugging Face: "self_attn.q_proj.weight" */
    int ndim;
    int64_t n[MAX_DIMS];
    Init init;
    double std;
    bool decay; /* weight decay: matrices yes, norms and biases no */
    /* Parameters of a unit with the same view and number are in one pack (ir/unit.h). */
    uint8_t view, pack; /* view: of the mesh */
    ParamRule rule;     /* of all parameters of a pack */
    bool coded;         /* of a unit: its programs read codes of 8 bits, and scales (ir/unit.h) */
    bool joined;        /* coded: it shares a scale with the parameter before it */
} ParamInfo;

struct Program;

typedef struct {
    Arena *arena;
    const char *kind; /* "embed", "layer", "head"; unique in a model */
    DType dtype;      /* of activations and parameters in `use` */
    Err err;          /* of the first builder that failed; later ones do nothing */
    int n_values, cap_values, n_nodes, cap_nodes, n_params, cap_params;
    ValueInfo *value;
    Node *node;
    ParamInfo *param; /* stored back to back in this order */
    int n_moves, cap_moves;
    TransferPart *move; /* the table of transfers and packs (OpAttr.move) */
    int n_bodies;
    const struct Program **body; /* of ops that loop (OpAttr.rounds); programs of F alone */
    bool phased;                 /* nodes have their phases */
    bool in_order;               /* a transfer is waited for where it begins */
    int32_t chunk;               /* chunk number of new nodes */
} Graph;

void graph_init(Graph *g, const char *kind, DType dtype, Arena *arena);
/* Local. OK, or the error of the first builder that failed. */
Err graph_err(const Graph *g);
Err graph_clone(const Graph *g, Arena *arena, Graph *out);

/* Local. A value that no node makes. */
Value graph_value(Graph *g, Role role, const char *name, DType dtype, Dims dims);
/* Local. A parameter of the unit, and the value that reads it. */
Value graph_param(Graph *g, ParamInfo info);
/* Local. The value that reads the scales of the coded parameters that `param` reads. */
Value graph_scale(Graph *g, Value param, Dims dims);
/* Local. A node and its outputs; `given` as for op_infer. NULL if the graph has failed. The pointer
 * is valid until the next node is made. */
Node *graph_node(Graph *g, OpId op, const OpAttr *attr, int n_in, const Value *in,
                 const Dims *given, int n_out);
/* Local. Appends a node that is complete already. */
Err graph_append(Graph *g, const Node *node, Node **out);
/* Local. Appends to the table of moves; returns the index, or -1 if the graph has failed. */
int32_t graph_move(Graph *g, const TransferPart *move);
/* Local. The number of transfers in the table: that of the next one. Packs do not count: not all
 * ranks have them. */
int32_t graph_transfers(const Graph *g);
/* Local. Names the value; a name has at most 127 bytes. Returns v. */
Value graph_name(Graph *g, Value v, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Local. The first value of a role, or NO_VALUE. */
Value graph_find(const Graph *g, Role role);
/* Local. The node that writes v (the first of an accumulator's), or NO_NODE. O(nodes). */
int graph_maker(const Graph *g, Value v);
/* Local. The same for every value, as [n_values], in one walk. */
Err graph_makers(const Graph *g, Arena *arena, int **out);
/* Local. The number of reads of v. */
int graph_readers(const Graph *g, Value v);
/* Local. True if a transfer or a pack reads v or a view of it: then its storage is contiguous. */
bool graph_is_moved(const Graph *g, Value v);
/* Local. Sends and receives get the indices that they have in the table of moves in the order of
 * the nodes: so they begin (compile/order.c). */
Err graph_order_moves(Graph *g);
/* Local. Removes nodes without outputs (dropped by a pass). Sorts the rest so that makers precede
 * readers, otherwise stable. */
Err graph_tidy(Graph *g);

static inline bool role_accumulates(Role r)
{
    return r == ROLE_DPARAM || r == ROLE_LOSS || r == ROLE_STAT;
}
/* True for values that a unit gets from elsewhere. */
static inline bool role_given(Role r)
{
    return r == ROLE_INPUT || r == ROLE_PARAM || r == ROLE_SCALE || r == ROLE_X || r == ROLE_DY;
}

static inline Dims dims1(Dim a) { return (Dims){1, {a}}; }
static inline Dims dims2(Dim a, Dim b) { return (Dims){2, {a, b}}; }

/* ---- printing and checking: print.c, check.c ---- */

/* Local. The graph as text, stable from run to run: the golden form of tests of passes. */
Err graph_print(const Graph *g, Arena *arena, const char **out);
/* Local. ERR_CHECK names the node, the value and the fault. */
Err graph_check(const Graph *g);

#endif
