/* fold.cu -- ordered reduction over ranks of one process that share a GPU or have peer access.
 *
 *     out[k][i] = ((x[0][i] + x[1][i]) + x[2][i]) + ...        one thread per element, in one order
 *
 * A thread reads its element of all x before it writes any, so an out may be one of the x. The bits
 * are those of comm/fold.c: bf16 is widened, reduced in f32 and rounded once, to nearest even. */
#include "device/cuda/value.cuh"

enum { FOLD_THREADS = 256, MAX_FOLD_BLOCKS = 4096 };

typedef struct {
    const void *x[MAX_DEVICE_FOLD];
    void *out[MAX_DEVICE_FOLD];
    int n, n_out;
    int64_t count;
} FoldArgs;

static_assert(sizeof(FoldArgs) <= 4096, "the arguments of a kernel");

/* S: the storage type, T: the type of the reduction. */
template <typename S, typename T> static __device__ inline T widen(S x) { return (T)x; }
template <> __device__ inline float widen<uint16_t, float>(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

template <typename T, typename S> static __device__ inline S narrow(T x) { return (S)x; }
template <> __device__ inline uint16_t narrow<float, uint16_t>(float x)
{
    const uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40); /* a quiet NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A NaN in a stays, since nothing is greater; a NaN in b is taken. */
template <typename T, bool MAX> static __device__ inline T fold_two(T a, T b)
{
    if (MAX) return b > a || b != b ? b : a;
    return a + b;
}

template <typename S, typename T, bool MAX>
static __global__ void __launch_bounds__(FOLD_THREADS) fold_kernel(const FoldArgs f)
{
    const int64_t step = (int64_t)gridDim.x * FOLD_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * FOLD_THREADS + threadIdx.x; i < f.count; i += step) {
        T sum = widen<S, T>(((const S *)f.x[0])[i]);
        for (int k = 1; k < f.n; k++)
            sum = fold_two<T, MAX>(sum, widen<S, T>(((const S *)f.x[k])[i]));
        const S out = narrow<T, S>(sum);
        for (int k = 0; k < f.n_out; k++) ((S *)f.out[k])[i] = out;
    }
}

/* Integers are summed unsigned, where overflow wraps, and compared signed. */
template <typename S, typename T, typename M>
static void launch(const FoldArgs *f, bool max, unsigned blocks, cudaStream_t stream)
{
    if (max)
        fold_kernel<S, M, true><<<blocks, FOLD_THREADS, 0, stream>>>(*f);
    else
        fold_kernel<S, T, false><<<blocks, FOLD_THREADS, 0, stream>>>(*f);
}

extern "C" Err cuda_fold(DeviceQueue *q, const DeviceFold *fold)
{
    FoldArgs f = {};
    if (fold->n > MAX_DEVICE_FOLD || fold->n_out > MAX_DEVICE_FOLD)
        return err_fail(
            ERR_CONFIG,
            "cuda: a reduction over %d ranks of one process; the limit is %d, start more "
            "ranks as processes (mpirun)",
            fold->n, (int)MAX_DEVICE_FOLD);
    if (fold->count == 0) return OK;
    for (int i = 0; i < fold->n; i++) f.x[i] = fold->x[i];
    for (int i = 0; i < fold->n_out; i++) f.out[i] = fold->out[i];
    f.n = fold->n;
    f.n_out = fold->n_out;
    f.count = fold->count;
    const int64_t all = blocks_of(f.count, FOLD_THREADS);
    const unsigned blocks = (unsigned)(all < MAX_FOLD_BLOCKS ? all : MAX_FOLD_BLOCKS);
    CUDA_TRY(cudaSetDevice(q->context->ordinal));
    switch (fold->dtype) {
    case F64:
        launch<double, double, double>(&f, fold->max, blocks, q->stream);
        break;
    case F32:
        launch<float, float, float>(&f, fold->max, blocks, q->stream);
        break;
    case BF16:
        launch<uint16_t, float, float>(&f, fold->max, blocks, q->stream);
        break;
    case I32:
        launch<int32_t, uint32_t, int32_t>(&f, fold->max, blocks, q->stream);
        break;
    default:
        launch<int64_t, uint64_t, int64_t>(&f, fold->max, blocks, q->stream);
        break;
    }
    return cuda_launched(KERNEL_add);
}
