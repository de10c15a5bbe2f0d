/* device.h -- what a device is: a table of kernels over tensors.
 *
 * A Tensor is a view: a pointer, a type, extents and strides. A Call is one kernel at work: its
 * tensors, its attributes (known when the program was compiled) and its numbers (known only when
 * the step runs: a learning rate, whether a sum starts anew). Only run/ and plan/profile.c make
 * Calls. Shapes were checked when the program was compiled, so kernels trust their arguments.
 *
 * A device knows no instruction, no layout and no rank. kernels.def lists the kernels, with the
 * formula and the shapes of each; a device fills every slot, which is checked at start-up.
 *
 * A device of memory of its own (device/runtime.h) runs its kernels in the order of a queue; they
 * have not run when they return. On the host there is no queue, and a kernel is done at return. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/err.h"
#include "base/team.h"

enum { MAX_DIMS = 5, MAX_IN = 8, MAX_OUT = 4, MAX_NUMBERS = 4 };

typedef struct {
    void *data;
    DType dtype;
    int ndim;
    int64_t n[MAX_DIMS];      /* live extents; 0 is legal everywhere and means no work */
    int64_t stride[MAX_DIMS]; /* in elements; the last dim need not be contiguous */
} Tensor;

/* Scaling of rotary frequencies for contexts longer than those trained on. */
typedef enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 } RopeScaling;

/* What a compiled program fixes about one call. A kernel reads its own member alone. */
typedef union {
    struct {
        bool ta, tb; /* the operand is stored transposed: a is [k, m], b is [n, k] */
    } gemm;
    struct {
        double eps;
    } norm;
    struct {
        double theta, factor, low, high; /* factor, low, high: of the scaling */
        int64_t original;                /* context length before scaling (llama3) */
        RopeScaling scaling;
        bool back; /* rotate the other way: the gradient */
    } rope;
    struct {
        double scale;   /* of q.k, before the softmax */
        int64_t key_at; /* index of the first key of this block in the coordinates of `ranges` */
        int64_t span;  /* keys that a query sees at most; for counting flops, not read by kernels */
        int64_t group; /* query heads that read one key head; 0: heads / key heads */
        int64_t head_at; /* place of the first head within its group; device/heads.h draws it */
        int64_t causal;  /* a promise about `ranges`: row t sees [t - t % causal, t + 1), key_at is
                          * 0 and t is s; 0: nothing is promised. A device may use it, or not */
    } attention;
    struct {
        int64_t base; /* index of the first column of this part of the vocabulary */
    } vocab;
    struct {
        double factor;
    } scale;
    struct {
        double beta1, beta2, eps, decay;
    } adamw;
    struct {
        double decay;
    } sgd;
} Attr;

typedef struct {
    Tensor in[MAX_IN], out[MAX_OUT];
    int n_in, n_out; /* optional ones that are absent come last and are not counted */
    Attr attr;
    double number[MAX_NUMBERS]; /* see the kernel; number[0] is what an accumulator is kept by */
    Team *team;
    struct DeviceQueue *queue; /* of device/runtime.h; NULL on the host */
    const void *prepacked;     /* of a product: b as DevicePrepack left it; NULL: nobody did it */
} Call;

typedef Err (*Kernel)(const Call *call);

typedef enum {
    KERNEL_NONE, /* an op that moves no byte: a view */
#define KERNEL(id) KERNEL_##id,
#include "device/kernels.def"
#undef KERNEL
    N_KERNELS
} KernelId;

/* A device may rearrange the second operand of a product before it multiplies. Where many products have
 * the same one, a weight while micro-batches come and go, that can be done once, for all of them; a
 * product that is told of it gives the same bits. */
typedef struct {
    /* Bytes of what `arrange` makes of b[k,n]; for products whose a has b's type. */
    size_t (*bytes)(DType type, int64_t k, int64_t n);
    /* in: b, as of gemm, whose attr it has   out: those bytes, on a cache line; only `data` is read */
    Kernel pack;
} DevicePrepack;

typedef struct {
    const char *name;
    Kernel kernel[N_KERNELS];            /* by KernelId; filled by name: [KERNEL_gemm] = ref_gemm */
    const struct DeviceRuntime *runtime; /* NULL: kernels work on the host's memory */
    const DevicePrepack *prepack;        /* NULL: products read operands as they lie */
} Device;

/* Local. The call of sum_rows that makes an output of another call: the sums of x's columns. */
static inline Call call_sum_rows(const Call *call, const Tensor *x, int out)
{
    Call sum = *call;
    sum.in[0] = *x;
    sum.out[0] = call->out[out];
    sum.n_in = sum.n_out = 1;
    sum.number[0] = call->number[out];
    return sum;
}

/* Local. Does it multiply in[0] by in[1], as gemm does, whatever else it does? */
static inline bool kernel_is_gemm(KernelId id)
{
    return id >= KERNEL_gemm && id <= KERNEL_gemm_dswiglu;
}

/* Local. The kernel's name as kernels.def spells it. */
const char *kernel_name(KernelId id);
/* Local. ERR_CHECK unless every slot of the table is filled. */
Err device_check(const Device *d);

extern const Device device_ref;

static inline int64_t tensor_count(const Tensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->n[i];
    return count;
}

#endif
