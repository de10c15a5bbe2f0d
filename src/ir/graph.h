/* graph.h -- a unit of the model as values and nodes.
 *
 * Values have names and global shapes, as if there were one device; nodes are rows of ops.def at
 * work. The model builder makes a graph for each kind of unit (the embedding, a layer, the head);
 * the passes of compile/ add the backward part, and rewrite it.
 *
 *     x --+-> rmsnorm -> linear -> ... -> add -> y     the stream through the units
 *         +--------------------------------^
 *     dx <- ... <- linear_dx <------------ dy          and its gradient, the other way
 *
 * A value is written by one node. Accumulators (gradients of parameters, the loss) may be written
 * by several, in order, and are read by none: they are sums that outlive the program. Where a
 * program runs slices of a sequence, what lives across them (keys, values, their gradients) is both
 * written by each and read by each: compile/slice.c. So are the rows that stay from call to call of a
 * session: compile/session.c. */
#ifndef IR_GRAPH_H
#define IR_GRAPH_H

#include "comm/comm.h"
#include "ir/ops.h"
#include "ir/phase.h"
#include "layout/layout.h"

typedef int32_t Value; /* an index into Graph.value */
enum { NO_VALUE = -1, NO_NODE = -1 };

/* Numbers that are known only when a step runs. Instructions and extents name them. */
enum {
    SLOT_ZERO,        /* 0: an accumulator starts anew */
    SLOT_ONE,         /* 1: it goes on */
    SLOT_ROWS,        /* live tokens of the slice: of the micro-batch, where it is not cut */
    SLOT_START,       /* rows of the micro-batch before the slice */
    SLOT_SEEN,        /* live tokens of the micro-batch up to the slice's end */
    SLOT_AFTER_FIRST, /* 0 in the first slice, else 1: what F sums over slices goes on */
    SLOT_BEFORE_LAST, /* 0 in the last, where backward phases begin, else 1: their sums go on */
    SLOT_LR,          /* learning rate of the step */
    SLOT_FACTOR,      /* on gradients: 1 / live tokens of the step, times the clip */
    SLOT_BIAS1,       /* 1 - beta^step, of the two moments */
    SLOT_BIAS2,
    SLOT_ASKED, /* rows of a session's call whose logits are asked for */
    SLOT_FREE,  /* three that a program may use as it likes */
    SLOT_PORT = SLOT_FREE + 3,
    MAX_PORTS = 64, /* SLOT_PORT + p is 0 where accumulator p of the unit starts anew, else 1 */
    N_SLOTS = SLOT_PORT + MAX_PORTS
};

typedef enum {
    ROLE_LOCAL,  /* between two nodes */
    ROLE_INPUT,  /* data of the micro-batch; `index` is an Input */
    ROLE_PARAM,  /* `index` is a parameter of the unit, `span` how many from there on */
    ROLE_X,      /* the stream from the unit before */
    ROLE_Y,      /* the stream to the unit after */
    ROLE_DY,     /* gradient of y, from the unit after */
    ROLE_DX,     /* gradient of x, to the unit before */
    ROLE_DPARAM, /* accumulates the gradient of a parameter; index and span as there */
    ROLE_LOSS,   /* accumulates the loss of the micro-batch */
    ROLE_MICRO, /* rows of the whole micro-batch, of which each slice writes some, or adds to some */
    ROLE_SESSION, /* rows that stay from call to call, of which each call writes some: a KV cache */
    ROLE_ARG,     /* of a sub-program: an operand of the call that runs it; `index` says which */
    N_ROLES
} Role;

/* What a micro-batch brings. Rows are tokens: sequences lie one after another, and `ranges` tells
 * which keys each may see. */
typedef enum {
    INPUT_TOKENS,
    INPUT_TARGETS,
    INPUT_POSITIONS,
    INPUT_RANGES,
    INPUT_WEIGHTS,
    INPUT_PLACES, /* of a session: the row of the cache that each row's keys and values go to */
    INPUT_ASKED,  /* likewise: the rows whose logits are asked for */
    N_INPUTS
} Input;

typedef enum { SPACE_DEVICE, SPACE_HOST } Space;

typedef struct {
    const char *name; /* "attn.in"; "" when nobody named it */
    DType dtype;
    Role role;
    Space space;
    int32_t index, span;
    Dims dims;
    Layout layout; /* set by place */
    int64_t
        max_elements; /* elements that a rank has of it, where ranks may differ; 0: they do not */
} ValueInfo;

typedef struct {
    OpId op;
    int n_in, n_out;
    Value *in;
    Value out[MAX_OUT];
    int32_t keep[MAX_OUT]; /* slot: what an accumulator is multiplied by before the sum is added */
    OpAttr attr;
    Queue queue;
    Phase phase;
    int32_t chunk;   /* nodes of one number are run together, a chunk of rows at a time; 0: none */
    bool recomputed; /* a copy of a forward node, made to recompute its outputs */
} Node;

/* A box that is copied from one place to another within the rank; elements. */
typedef struct {
    int ndim;
    int64_t n[MAX_DIMS];
    int64_t from_at, from_stride[MAX_DIMS], to_at, to_stride[MAX_DIMS];
} BoxCopy;

/* This rank's part in a transfer, or in packing for one. Its operands are whole and contiguous. */
typedef struct {
    int32_t number; /* of a transfer, counted in the graph: the same on all members */
    Reduce reduce;
    unsigned axes;                          /* of the dense view, that the group spans */
    RankList group;                         /* in the order of their parts */
    const int64_t *from_counts, *to_counts; /* elements per member; NULL: all alike */
    const BoxCopy *copy;                    /* of a pack */
    int64_t n_copies;
} TransferPart;

/* How a parameter starts. */
typedef enum { INIT_NORMAL, INIT_ZEROS, INIT_ONES } Init;

typedef struct {
    const char *name; /* within the unit, as Hugging Face spells it: "self_attn.q_proj.weight" */
    int ndim;
    int64_t n[MAX_DIMS];
    Init init;
    double std;
    bool decay; /* weight decay: matrices yes, norms and biases no */
} ParamInfo;

typedef struct {
    Arena *arena;
    const char *kind; /* "embed", "layer", "head" */
    DType dtype;      /* of activations and parameters in use */
    Err err;          /* of the first builder that failed; the others then do nothing */
    int n_values, cap_values, n_nodes, cap_nodes, n_params, cap_params;
    ValueInfo *value;
    Node *node;
    ParamInfo *param; /* stored back to back in this order */
    int n_moves, cap_moves;
    TransferPart *move; /* that transfers and packs name */
    bool phased;        /* nodes have their phases */
    bool in_order;      /* transfers are waited for where they are begun */
    int32_t chunk;      /* builders give new nodes this number */
} Graph;

void graph_init(Graph *g, const char *kind, DType dtype, Arena *arena);
/* Local. OK, or why the first builder failed. */
Err graph_err(const Graph *g);
Err graph_clone(const Graph *g, Arena *arena, Graph *out);

/* Local. A value that no node makes. */
Value graph_value(Graph *g, Role role, const char *name, DType dtype, Dims dims);
/* Local. A parameter of the unit and the value that reads it. */
Value graph_param(Graph *g, ParamInfo info);
/* Local. A node and its outputs; `given` as for op_infer. NULL when the graph has failed. The
 * pointer is good until the next node is made. */
Node *graph_node(Graph *g, OpId op, const OpAttr *attr, int n_in, const Value *in,
                 const Dims *given, int n_out);
/* Local. A node that is complete already, behind the others. */
Err graph_append(Graph *g, const Node *node, Node **out);
/* Local. Room in the table of moves: its index, or -1 when the graph has failed. */
int32_t graph_move(Graph *g, const TransferPart *move);
/* Local. The value, now with this name, which has 127 bytes at most. */
Value graph_name(Graph *g, Value v, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Local. The first value of a role, or NO_VALUE. */
Value graph_find(const Graph *g, Role role);
/* Local. The node that writes v (the first of an accumulator's), or NO_NODE. */
int graph_maker(const Graph *g, Value v);
/* Local. The same of every value, as [n_values], in one walk: for who asks about many. */
Err graph_makers(const Graph *g, Arena *arena, int **out);
/* Local. How many times v is read. */
int graph_readers(const Graph *g, Value v);
/* Local. Nodes without outputs (dropped by a pass) go; the rest is put so that makers precede
 * readers, otherwise as it was. */
Err graph_tidy(Graph *g);

static inline bool role_accumulates(Role r) { return r == ROLE_DPARAM || r == ROLE_LOSS; }
/* Values that a unit gets from elsewhere. */
static inline bool role_given(Role r)
{
    return r == ROLE_INPUT || r == ROLE_PARAM || r == ROLE_X || r == ROLE_DY;
}

static inline Dims dims1(Dim a) { return (Dims){1, {a}}; }
static inline Dims dims2(Dim a, Dim b) { return (Dims){2, {a, b}}; }

/* ---- printing and checking: print.c, check.c ---- */

const char *role_name(Role r);
const char *input_name(Input i);
/* Local. The graph as text, stable from run to run: the golden form of tests of passes. */
Err graph_print(const Graph *g, Arena *arena, const char **out);
/* Local. ERR_CHECK names the node, the value and what is wrong with them. */
Err graph_check(const Graph *g);

#endif
