/* device.h -- a device: a table of kernels over tensors.
 *
 * A Tensor is a view: a pointer, a type, extents and strides. A Call is one invocation of a kernel:
 * its tensors, its attributes (known when the program is compiled) and its numbers (known when the
 * step runs, such as a learning rate or the factor on an accumulator). Only run/ and
 * plan/profile.c make Calls. The compiler has checked all shapes, so kernels trust their
 * arguments.
 *
 * A device has no notion of instructions, layouts or ranks. kernels.def lists the kernels, with the
 * formula and the shapes of each. A device fills every slot, which is checked at startup.
 *
 * A device with its own memory (device/runtime.h) runs its kernels in the order of a queue, and a
 * kernel returns before it has run. On the host there is no queue, and a kernel is done at
 * return. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/err.h"
#include "base/team.h"

enum { MAX_DIMS = 5, MAX_IN = 10, MAX_OUT = 5, MAX_NUMBERS = 4 };

typedef struct {
    void *data;
    DType dtype;
    int ndim;
    int64_t n[MAX_DIMS];      /* live extents; 0 is legal everywhere and means no work */
    int64_t stride[MAX_DIMS]; /* in elements; the last dim need not be contiguous */
} Tensor;

/* Scaling of rotary frequencies for contexts longer than those trained on. */
typedef enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 } RopeScaling;

/* The scores of a router, from which it selects experts and computes gates: device/route.h. */
typedef enum { ROUTE_SOFTMAX, ROUTE_SOFTMAX_CHOSEN, ROUTE_SIGMOID } RouteScore;

/* Attributes of one call, fixed by the compiled program. A kernel reads its own member alone. */
typedef union {
    struct {
        bool ta, tb; /* the operand is stored transposed: a is [k, m], b is [n, k] */
        /* Of scaled_gemm: the elements of a, and of b, that share a scale, along each dim as it is
         * stored; 0: all. */
        int32_t a_block[2], b_block[2];
    } gemm;
    struct {
        DType type;       /* of the result: E4M3 or E5M2 */
        int32_t block[2]; /* of quantize_blocks: the elements that share a scale, along each dim */
    } quantize;
    struct {
        DType type; /* as of quantize */
        double eps;
    } by; /* of kernels that write values of 8 bits by a given scale */
    struct {
        int32_t first;      /* of mark_amax: the site of the first amax */
        uint32_t gradients; /* of delayed_scales: a bit for each site that is e5m2 */
    } sites;
    struct {
        DType type;    /* of the codes */
        DType from;    /* what programs would read: weights are rounded to it first */
        int32_t block; /* rows, and columns, that share a scale; 0: all of a matrix */
        /* x[0] is element `at` of matrices [rows, columns], which are stored back to back. */
        int64_t at, rows, columns;
    } codes; /* of coded weights: device/codes.h */
    struct {
        double eps;
    } norm;
    struct {
        double theta, factor, low, high; /* factor, low, high: of the scaling */
        int64_t original;                /* context length before scaling (llama3) */
        RopeScaling scaling;
        bool back; /* rotate by the negative angle: the gradient */
    } rope;
    struct {
        double scale;   /* of q.k, before the softmax */
        int64_t key_at; /* index of the first key of this block in the coordinates of `ranges` */
        /* To count flops, not read by kernels: the most keys that a query sees, and the rows of a
         * sequence, in which query r sees keys up to r; 0: every query sees `span` keys. full: it
         * sees all keys of the sequence. */
        int64_t span, sequence;
        bool full;
        int64_t query_at; /* the same: row of the sequence that the first query is, in a program
                           * for one slice of it */
        int64_t group;    /* query heads that read one key head; 0: heads / key heads */
        int64_t head_at;  /* index of the first head within its group; device/heads.h draws it */
        /* A promise about `ranges`, which a device may use: row t sees [t - t % causal, t + 1),
         * key_at is 0, and there are as many queries as keys. 0: no promise. */
        int64_t causal;
    } attention;
    struct {
        const int64_t *span; /* rows that a block of keys has: device/row_spans.h */
        int64_t n;           /* spans */
    } rows;
    struct {
        int64_t base; /* index of the first column of this part of the vocabulary */
    } vocab;
    struct {
        RouteScore score;
        bool renormalize;              /* gates of a token sum to 1 before `scaling` */
        int32_t groups, chosen_groups; /* experts come from the best groups; 0 or 1: no groups */
        int32_t group_best;            /* scores that make up a group's; 0: k / chosen groups */
        double scaling;                /* of the gates */
        double aux, z;                 /* coefficients of the router's losses */
    } route;
    struct {
        double capacity; /* choices of an expert, as a factor of t k / experts */
        int64_t experts;
        bool by_gate; /* choices with small gates are dropped; else those of late tokens */
    } limit;
    struct {
        int32_t ep, etp; /* ranks among which experts are sharded; ranks of one expert */
        int32_t part;    /* of the ep parts: whose experts are on this rank */
        int32_t round;   /* from 0; the rows round * room, ... of a part travel in it */
        bool rounds;     /* rows without room take further rounds; else they are an error */
        int64_t room;    /* rows that a rank sends to each of the ep parts */
    } exchange;          /* device/exchange.h draws it */
    struct {
        double factor;
    } scale;
    struct {
        double rate, base;
    } sinusoid;
    struct {
        double beta1, beta2, eps, decay;
    } adamw;
    struct {
        double decay;
    } sgd;
} Attr;

typedef struct {
    Tensor in[MAX_IN], out[MAX_OUT];
    int n_in, n_out; /* absent optional operands come last and are not counted */
    Attr attr;
    double number[MAX_NUMBERS]; /* see the kernel; number[0] scales an accumulator's old value */
    Team *team;
    struct DeviceQueue *queue; /* of device/runtime.h; NULL on the host */
    const void *prepacked;     /* of a GEMM: b as DevicePrepack packed it; NULL: not prepacked */
} Call;

typedef Err (*Kernel)(const Call *call);

typedef enum {
    KERNEL_NONE, /* no kernel: views and transfers */
#define KERNEL(id) KERNEL_##id,
#include "device/kernels.def"
#undef KERNEL
    N_KERNELS
} KernelId;

/* Prepacking. A device may repack operand b of a GEMM before it multiplies. A weight is operand b
 * of the GEMMs of all micro-batches of a step, so it can be packed once for all of them. A GEMM
 * with a prepacked b gives the same bits. */
typedef struct {
    /* Bytes of the packed b[k,n], for GEMMs whose a has b's type. */
    size_t (*bytes)(DType type, int64_t k, int64_t n);
    /* in: b, with the attr of its gemm   out: those bytes, aligned to a cache line; only `data` is
     * read */
    Kernel pack;
} DevicePrepack;

typedef struct {
    const char *name;
    Kernel kernel[N_KERNELS];            /* by KernelId; filled by name: [KERNEL_gemm] = ref_gemm */
    const struct DeviceRuntime *runtime; /* NULL: kernels work on host memory */
    const DevicePrepack *prepack;        /* NULL: the device does not prepack */
} Device;

/* Local. The call of sum_rows that computes output `out` of another call: the sums of x's
 * columns. */
static inline Call call_sum_rows(const Call *call, const Tensor *x, int out)
{
    Call sum = *call;
    sum.in[0] = *x;
    sum.out[0] = call->out[out];
    sum.n_in = sum.n_out = 1;
    sum.number[0] = call->number[out];
    return sum;
}

/* Local. True if the kernel multiplies in[0] by in[1] as gemm does, with or without an epilogue. */
static inline bool kernel_is_gemm(KernelId id)
{
    return id >= KERNEL_gemm && id <= KERNEL_gemm_dswiglu;
}

/* Local. The name of the kernel in kernels.def. */
const char *kernel_name(KernelId id);
/* Local. ERR_CHECK unless every slot of the table is filled. */
Err device_check(const Device *d);

extern const Device device_ref;

/* Local. The matrix with its dims exchanged. */
static inline Tensor tensor_transposed(const Tensor *t)
{
    Tensor x = *t;
    x.n[0] = t->n[1], x.stride[0] = t->stride[1];
    x.n[1] = t->n[0], x.stride[1] = t->stride[0];
    return x;
}

/* Local. The call of quantize_turned that is part of a call of quantize_both. */
static inline Call call_quantize_turned(const Call *both)
{
    Call turned = *both;
    turned.n_out = 2;
    turned.out[0] = both->out[2];
    turned.out[1] = both->out[3];
    return turned;
}

static inline int64_t tensor_count(const Tensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->n[i];
    return count;
}

#endif
