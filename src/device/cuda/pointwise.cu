/* pointwise.cu -- add, scale, cast, gelu, swiglu, optimizers: a formula per element, in f32.
 *
 * gelu's (1 + tanh u) / 2 is computed as 1 / (1 + e^-2u) with __expf and __fdividef. It is a few
 * f32 ulps off the formula and takes a third of tanhf's instructions, which in bf16 would be slower
 * than memory. */
#include "device/cuda/pointwise.cuh"
#include "device/cuda/update.cuh"

struct Add {
    enum { IN = 2, OUT = 1, UPDATE = 0 };
    static __device__ void run(const PointNumbers &, const float *x, float *y) { *y = x[0] + x[1]; }
};

extern "C" Err cuda_add(const Call *call) { return point_run<Add>(call, KERNEL_add, {}); }

struct Scale {
    enum { IN = 1, OUT = 1, UPDATE = 0 };
    static __device__ void run(const PointNumbers &s, const float *x, float *y)
    {
        *y = s.number[0] * x[0];
    }
};

extern "C" Err cuda_scale(const Call *call)
{
    return point_run<Scale>(call, KERNEL_scale, {{(float)call->attr.scale.factor}});
}

struct Zero {
    enum { IN = 0, OUT = 1, UPDATE = 0 };
    static __device__ void run(const PointNumbers &, const float *, float *y) { *y = 0; }
};

extern "C" Err cuda_zero(const Call *call)
{
    Call only = *call;
    only.n_in = 0;
    return point_run<Zero>(&only, KERNEL_scale, {});
}

struct Cast {
    enum { IN = 1, OUT = 1, UPDATE = 0 };
    static __device__ void run(const PointNumbers &, const float *x, float *y) { *y = x[0]; }
};

extern "C" Err cuda_cast(const Call *call) { return point_run<Cast>(call, KERNEL_cast, {}); }

struct AddTo {
    enum { IN = 1, OUT = 1, UPDATE = 1 };
    static __device__ void run(const PointNumbers &s, const float *x, float *y)
    {
        *y = s.number[0] * *y + x[0];
    }
};

extern "C" Err cuda_add_to(const Call *call)
{
    if (call->number[0] == 0) return cuda_cast(call); /* the old content may be NaN */
    return point_run<AddTo>(call, KERNEL_add_to, {{(float)call->number[0]}});
}

#define GELU_A 0.79788456080286535588f /* sqrt(2 / pi) */
#define GELU_B 0.044715f

/* (1 + tanh u) / 2 with u = GELU_A (x + GELU_B x^3): the logistic function of 2u. */
static __device__ inline float gelu_share(float x)
{
    return __fdividef(1, 1 + __expf(-2 * GELU_A * (x + GELU_B * x * x * x)));
}

struct Gelu {
    enum { IN = 1, OUT = 1, UPDATE = 0 };
    static __device__ void run(const PointNumbers &, const float *x, float *y)
    {
        *y = x[0] * gelu_share(x[0]);
    }
};

extern "C" Err cuda_gelu(const Call *call) { return point_run<Gelu>(call, KERNEL_gelu, {}); }

/* in: dy, x.   d/dx (x s) = s + x s (1 - s) 2 u' */
struct GeluDx {
    enum { IN = 2, OUT = 1, UPDATE = 0 };
    static __device__ void run(const PointNumbers &, const float *x, float *y)
    {
        const float v = x[1], s = gelu_share(v);
        const float du = 2 * GELU_A * (1 + 3 * GELU_B * v * v);
        /* For large |v| s (1 - s) is 0, and v du may be infinite. */
        const float slope = s * (1 - s);
        *y = x[0] * (s + (slope == 0 ? 0 : v * slope * du));
    }
};

extern "C" Err cuda_gelu_dx(const Call *call)
{
    return point_run<GeluDx>(call, KERNEL_gelu_dx, {});
}

/* in: gate, up */
struct Swiglu {
    enum { IN = 2, OUT = 1, UPDATE = 0 };
    static __device__ void run(const PointNumbers &, const float *x, float *y)
    {
        *y = __fdividef(x[0], 1 + __expf(-x[0])) * x[1];
    }
};

extern "C" Err cuda_swiglu(const Call *call) { return point_run<Swiglu>(call, KERNEL_swiglu, {}); }

/* in: dy, gate, up   out: dgate, dup.   silu' = s (1 + gate (1 - s)), s = sigmoid(gate) */
struct SwigluDx {
    enum { IN = 3, OUT = 2, UPDATE = 0 };
    static __device__ void run(const PointNumbers &, const float *x, float *y)
    {
        const float dy = x[0], gate = x[1], s = __fdividef(1, 1 + __expf(-gate));
        const float dgate = dy * x[2] * s * (1 + gate * (1 - s)), dup = dy * gate * s;
        y[0] = dgate;
        y[1] = dup;
    }
};

extern "C" Err cuda_swiglu_dx(const Call *call)
{
    return point_run<SwigluDx>(call, KERNEL_swiglu_dx, {});
}

/* out: w, m, v */
struct Adamw {
    enum { IN = 1, OUT = 3, UPDATE = 1 };
    static __device__ void run(const PointNumbers &s, const float *x, float *y)
    {
        const float *a = s.number; /* lr, factor, 1/bias1, 1/bias2, beta1, beta2, eps, decay */
        const AdamwNumbers numbers = {a[0], a[2], a[3], a[4], a[5], a[6]};
        adamw_step(numbers, a[7], __fmul_rn(a[1], x[0]), &y[0], &y[1], &y[2]);
    }
};

extern "C" Err cuda_adamw(const Call *call)
{
    const double *number = call->number;
    const PointNumbers s = {{(float)number[0], (float)number[1], (float)(1 / number[2]),
                             (float)(1 / number[3]), (float)call->attr.adamw.beta1,
                             (float)call->attr.adamw.beta2, (float)call->attr.adamw.eps,
                             (float)call->attr.adamw.decay}};
    return point_run<Adamw>(call, KERNEL_adamw, s);
}

struct Sgd {
    enum { IN = 1, OUT = 1, UPDATE = 1 };
    static __device__ void run(const PointNumbers &s, const float *x, float *y)
    {
        *y -= s.number[0] * (s.number[1] * x[0] + s.number[2] * *y);
    }
};

extern "C" Err cuda_sgd(const Call *call)
{
    return point_run<Sgd>(
        call, KERNEL_sgd,
        {{(float)call->number[0], (float)call->number[1], (float)call->attr.sgd.decay}});
}

struct SignSgd {
    enum { IN = 1, OUT = 1, UPDATE = 1 };
    static __device__ void run(const PointNumbers &s, const float *x, float *y)
    {
        *y -= s.number[0] * (float)((x[0] > 0) - (x[0] < 0));
    }
};

extern "C" Err cuda_sign_sgd(const Call *call)
{
    return point_run<SignSgd>(call, KERNEL_sign_sgd, {{(float)call->number[0]}});
}
