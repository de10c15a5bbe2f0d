/* lists.cuh -- many tensors in one launch. The list of pieces is in device memory; each piece is
 * split into chunks, one block per chunk.
 *
 *     pieces   [ 0        ][ 1 ][ 2              ]
 *     blocks   0.0 0.1 0.2  1.0  2.0 2.1 2.2 2.3        piece.chunk */
#ifndef DEVICE_CUDA_LISTS_CUH
#define DEVICE_CUDA_LISTS_CUH

#include "device/cuda/value.cuh"

typedef struct {
    int32_t piece, chunk;
} ListBlock;

struct DeviceList {
    DeviceContext *context;
    void *piece;      /* device memory: SquaresPiece[n] or UpdatePiece[n] */
    ListBlock *block; /* device memory: [blocks] */
    double *sum;      /* device memory: [blocks], partial sums */
    int64_t *first;   /* device memory: [n + 1], first block of each piece */
    int n;
    int64_t blocks;
};

/* Host pieces; piece i starts at `at` + i * stride_bytes. */
typedef struct {
    const void *at;
    size_t stride_bytes;
    int64_t (*count)(const void *piece);
    int n;
} ListPieces;

/* Local. Uploads the list, in chunks of `chunk` elements. */
Err list_open(DeviceContext *c, const ListPieces &p, int64_t chunk, DeviceList **out);

/* States to the compiler that a pointer read from memory points to global memory. */
template <class T> static __device__ inline T *in_global(T *at)
{
    __builtin_assume(__isGlobal(at));
    return at;
}

static __device__ inline bool is_aligned(const void *at) { return (uintptr_t)at % 16 == 0; }

#endif
