/* ops.h -- the table of op kinds, and the shapes, flops and legal shardings that follow from a
 * row. */
#ifndef IR_OPS_H
#define IR_OPS_H

#include "base/arena.h"
#include "ir/attr.h"
#include "layout/spans.h"

/* One extent of a value. A bounded extent is a part of the rows 0, 1, 2, ... of a micro-batch, of
 * which those below the slot are live. The part is a window of spans (layout/spans.h), ascending,
 * so that its live rows come first. */
typedef struct {
    int64_t cap;      /* upper bound; memory is planned with it */
    int32_t slot;     /* NO_SLOT: the extent is cap; else the number of its rows below the slot */
    int32_t n_spans;  /* of `span`, which is NULL if the rows are from, from + 1, ... */
    int64_t from;     /* first row, counted in the sequence of the spans' rows */
    const Span *span; /* borrowed */
} Dim;

enum { NO_SLOT = -1 };

typedef struct {
    int ndim;
    Dim dim[MAX_DIMS];
} Dims;

typedef enum { CLASS_HEAVY, CLASS_CHEAP, CLASS_ROUTE, CLASS_VIEW, CLASS_SUM, CLASS_ORDER } OpClass;

typedef enum {
#define OP(id, kernel, signature, rows, flops, class, gradient) OP_##id,
#include "ir/ops.def"
#undef OP
    N_OPS
} OpId;

typedef struct {
    const char *name; /* "linear_dx" */
    KernelId kernel;
    const char *signature, *rows, *flops;
    OpClass class;
} OpInfo;

const OpInfo *op_info(OpId op);

/* One operand of a signature, parsed. */
typedef struct {
    char name[16];
    bool optional, wide, integer; /* wide: statistics and sums, see dtype_wide */
    bool fp8;                     /* of a type of 8 bits */
    bool added; /* only added to the output: partial where a row makes the output partial */
    int ndim;   /* -1: any shape, the same for all such operands; -2: given by the builder */
    char letter[MAX_DIMS];
    char second[MAX_DIMS], third[MAX_DIMS]; /* further factors of a product, or 0 */
} Operand;

typedef struct {
    int n_in, n_out;
    Operand in[MAX_IN], out[MAX_OUT];
} Signature;

Signature op_signature(OpId op);

/* Local. The operand that an output is added to, which may be absent; -1: there is none. */
int op_sum_operand(OpId op, int output);
/* Local. True if this operand is the old content of an output. */
bool op_is_sum(OpId op, int index);

/* Local. The shapes of the outputs from those of the inputs. Extents that the inputs do not
 * determine come from `attr` or, if given != NULL, from given[output]. ERR_CHECK names the op, the
 * operand and the extents that disagree. */
Err op_infer(OpId op, const OpAttr *attr, int n_in, const Dims *in, const Dims *given, int n_out,
             Dims *out);
/* Floating-point operations at full extents. */
typedef struct {
    double all;
    double heavy; /* of these, the GEMM's or attention's own, without its epilogue */
} Flops;
/* Local. */
Flops op_flops(OpId op, const OpAttr *attr, int n_in, const Dims *in, int n_out, const Dims *out);

/* One sharding of an op over a mesh axis: along a letter (or a pair of letters). */
typedef struct {
    char letter, with; /* with: sharded too, part by part; or 0 */
    char partial;      /* '+' sum, '^' maximum: of outputs that lack the letter; or 0 */
} OpRow;

enum { MAX_ROWS = 6 };

/* Local. The rows of an op; the letter of "*" is '*'. Returns their number. */
int op_rows(OpId op, OpRow row[MAX_ROWS]);
/* Local. The dim of an operand along which a letter shards it, or -1: it is replicate in that
 * row. */
int operand_dim(const Operand *operand, char letter);
/* Local. The extents of the factors of dim `dim`, a product, that stand before and after the
 * letter, multiplied. `attr` has those of the second and the third factor. */
typedef struct {
    int64_t outer, inner;
} ProductSides;
ProductSides operand_sides(const Operand *operand, int dim, char letter, const OpAttr *attr,
                           int64_t extent);

/* Local. True if the op only begins its work, which is done after a wait. */
static inline bool op_begins(OpId op) { return op_info(op)->class == CLASS_ORDER && op != OP_wait; }
/* Local. True if the op makes values of 8 bits with one scale. */
static inline bool op_quantizes(OpId op)
{
    return op >= OP_quantize && op <= OP_quantize_by_turned;
}
/* Local. True if the op is a transfer between ranks. */
static inline bool op_transfers(OpId op) { return op >= OP_all_reduce && op <= OP_recv; }
/* Local. True if the transfer is with one other rank. */
static inline bool op_pairs(OpId op) { return op == OP_send || op == OP_recv; }
/* Local. True if the op runs a body in further rounds. */
static inline bool op_loops(OpId op) { return op >= OP_rounds && op <= OP_rounds_back; }
enum { ROUNDS_ALL = 3 }; /* its operand with the offsets of all ranks that send */
/* Local. True if the kernel of the op depends on the round. */
static inline bool op_has_round(OpId op)
{
    return op == OP_send_rows || op == OP_sum_offsets || op == OP_collect_rows ||
           op == OP_spread_rows || op == OP_return_rows;
}
/* Local. True if operand `index` only orders the op: its bytes are not read. */
static inline bool op_only_orders(OpId op, int index)
{
    return op == OP_recv || (op == OP_send && index == 1) || (op == OP_after && index > 0);
}

static inline Dim dim_of(int64_t extent) { return (Dim){.cap = extent, .slot = NO_SLOT}; }
/* Local. All rows up to `cap`, of which those below the slot are live. */
static inline Dim dim_rows(int64_t cap, int32_t slot) { return (Dim){.cap = cap, .slot = slot}; }
/* Local. The rows of a bounded extent that a rank holds; spans that it does not reach are dropped,
 * so that equal rows are equal Dims. */
Dim dim_held(int32_t slot, const HeldSpans *rows);
/* Local. Rows [from, from + cap) of an extent. */
Dim dim_part(Dim d, int64_t from, int64_t cap);
bool dim_same(Dim a, Dim b);
/* Local. The extent when the slot, if the Dim has one, is `live`. */
int64_t dim_live(const Dim *d, int64_t live);

static inline int64_t dims_count(const Dims *d)
{
    int64_t count = 1;
    for (int i = 0; i < d->ndim; i++) count *= d->dim[i].cap;
    return count;
}

#endif
