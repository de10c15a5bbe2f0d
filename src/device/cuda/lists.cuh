/* lists.cuh -- many tensors in one launch: pieces of them lie in device memory, each cut into chunks, a
 * block each; and for each block, which chunk of which piece is its own.
 *
 *     pieces   [ 0        ][ 1 ][ 2              ]
 *     blocks   0.0 0.1 0.2  1.0  2.0 2.1 2.2 2.3        piece.chunk
 */
#ifndef DEVICE_CUDA_LISTS_CUH
#define DEVICE_CUDA_LISTS_CUH

#include "device/cuda/value.cuh"

typedef struct {
    int32_t piece, chunk;
} ListBlock;

struct DeviceList {
    DeviceContext *context;
    void *piece;      /* in device memory: SquaresPiece or UpdatePiece */
    ListBlock *block; /* likewise, of each block */
    double *sum;      /* likewise: room for a sum of each */
    int64_t *first;   /* likewise: the first block of each piece, and the end */
    int n;
    int64_t blocks;
};

/* Elements of each piece, which starts at at[i * apart]. */
typedef struct {
    const void *at;
    size_t stride_bytes;
    int64_t (*count)(const void *piece);
    int n;
} ListPieces;

/* Local. In chunks of so many elements. */
Err list_open(DeviceContext *c, const ListPieces &p, int64_t chunk, DeviceList **out);

/* A pointer that was read from memory: the compiler does not know what it points to. */
template <class T> static __device__ inline T *in_global(T *at)
{
    __builtin_assume(__isGlobal(at));
    return at;
}

static __device__ inline bool is_aligned(const void *at) { return (uintptr_t)at % 16 == 0; }

#endif
