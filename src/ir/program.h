/* program.h -- the work of one rank for one kind of unit, one micro-batch, one slice.
 *
 * A flat array of instructions over numbered tensors, in phases. It is immutable, and every unit of
 * the kind shares it: a tensor has an offset in a region, and the linked program has the address of
 * each region of (unit, micro, slice) (schedule/link/link.h).
 *
 *     region                        lives                              scope
 *     scratch                       one phase                          scratch
 *     frame-i, frame-w              F to I, F to W                     frame
 *     carry                         I to W                             frame
 *     host                          F to its last reader, on the host  frame
 *     micro                         F to I, of all slices              micro
 *     dmicro                        I, of all slices                   micro
 *     y, dx                         to the last reader in a neighbor   frame
 *     x, dy                         the neighbor's y and dx            frame
 *     session                       from call to call                  session
 *     param, scale, dparam, input,  longer than the program            state, step
 *     loss
 *
 * In B, which is I and W in one, carried tensors are scratch. So a tensor has two places, one for
 * programs that run split and one for programs that run merged. */
#ifndef IR_PROGRAM_H
#define IR_PROGRAM_H

#include "ir/graph.h"

typedef enum {
    REGION_SCRATCH,
    REGION_FRAME_I,
    REGION_FRAME_W,
    REGION_CARRY,
    REGION_HOST,
    REGION_Y,
    REGION_DX,
    REGION_MICRO,
    REGION_DMICRO,
    /* The regions above are packed. They belong to (unit, micro, slice), the last two to (unit,
     * micro). The regions below are bound. */
    N_OWN_REGIONS,
    REGION_X = N_OWN_REGIONS,
    REGION_DY,
    REGION_PARAM,
    REGION_SCALE, /* scales of coded parameters */
    REGION_DPARAM,
    REGION_INPUT,
    REGION_LOSS,
    REGION_STAT,    /* belongs to (unit, micro) */
    REGION_SESSION, /* belongs to the unit */
    REGION_ARG,
    N_REGIONS
} Region;

enum { SPLIT, MERGED, N_MODES };

typedef struct {
    uint8_t region;
    size_t offset; /* bytes, in the region */
} Place;

typedef struct {
    const char *name;
    DType dtype;
    Space space;
    Scope scope;
    int32_t index, span; /* of a parameter, an input, an argument */
    int32_t view_of;     /* the tensor whose bytes it shares, or itself */
    int32_t shows;       /* the tensor whose value it has: itself, except for views */
    int ndim;
    Dim dim[MAX_DIMS];
    int64_t stride[MAX_DIMS]; /* elements */
    Place at[N_MODES];
    Layout layout;
} ProgTensor;

typedef struct {
    OpId op;
    Queue queue;
    Phase phase; /* the list that contains it: F, I, W or B */
    bool recomputed;
    int n_in, n_out;
    int32_t in[MAX_IN], out[MAX_OUT];
    int32_t keep[MAX_OUT]; /* slots */
    OpAttr attr;
    double flops;       /* at full extents */
    double heavy_flops; /* of these, of GEMMs and attention */
    size_t bytes;       /* read and written, at full extents */
    int32_t prepacked;  /* 1 + index of its b in the program's prepacked weights; 0: none */
} Instr;

/* A parameter packed for the GEMMs of a device: see DevicePrepack. */
typedef struct {
    int32_t tensor;
    bool tb; /* as in its GEMMs */
    size_t bytes;
} PrepackedWeight;

enum { MAX_PREPACKED = 64 };

/* Ports: the only place where programs meet parameters. */
typedef struct {
    int32_t param, span, tensor;
} PortIn;
typedef struct {
    int32_t param, span, tensor;
    uint8_t phase;   /* the phase that writes it: F for a head, else W */
    uint8_t partial; /* axes over which the gradient is not yet summed */
} PortOut;

typedef struct Program {
    const char *kind;
    DType dtype;
    int n_instr, n_tensors, n_in, n_out;
    const Instr *instr;      /* F, then I, then W, then B */
    int first[N_PHASES + 1]; /* phase p is instr[first[p]] .. instr[first[p + 1] - 1] */
    const ProgTensor *tensor;
    const PortIn *in;
    const PortOut *out;
    const TransferPart *move; /* the table of transfers and packs (OpAttr.move) */
    /* Bodies of instructions that loop (OpAttr.rounds). Their arguments are the instruction's
     * operands, inputs first; their scratch is its region. */
    const struct Program *const *body;
    int n_bodies;
    size_t scratch_bytes[N_PHASES], scratch_live[N_PHASES]; /* packed; the lower bound */
    size_t bytes[N_OWN_REGIONS];                            /* except scratch */
    size_t session_bytes;                                   /* of REGION_SESSION */
    const PrepackedWeight *prepacked;                       /* read by GEMMs (Instr.prepacked) */
    int n_prepacked;
    uint8_t loss_partial;                     /* axes over which the loss is not yet summed */
    uint8_t stat_partial;                     /* the same of the statistics */
    int64_t stats;                            /* statistics of a micro-batch; 0: none */
    uint8_t x_read, y_read, dx_read, dy_read; /* bits of the phases that read them: F, I, W */
    uint8_t dx_made; /* the phase that makes dx: F for a head, else I; N_PHASES: none */
} Program;

const char *region_name(Region r);
/* Local. Bytes of a tensor at full extents. */
size_t tensor_bytes(const ProgTensor *t);

/* Bytes that it moves: a wait moves none. */
static inline size_t instr_bytes(const Instr *i) { return i->op == OP_wait ? 0 : i->bytes; }

/* The body of an instruction that loops. */
static inline const Program *instr_body(const Program *p, const Instr *i)
{
    return p->body[i->op == OP_rounds_back ? i->attr.rounds.merged : i->attr.rounds.body];
}
/* Its output with the scratch of the body. */
static inline int instr_region(const Instr *i) { return i->op == OP_rounds_dw ? 0 : 1; }

/* Local. The program as text: tensors by scope, instructions by phase. note [n_instr]: text that
 * ends the line of each instruction; NULL, or a NULL entry: nothing. */
Err program_print(const Program *p, const char *const *note, Arena *arena, const char **out);
/* Local. ERR_CHECK names the instruction and the tensor: an operand that does not exist, is read
 * before it is written, or is overwritten while it is needed. */
Err program_check(const Program *p);

#endif
