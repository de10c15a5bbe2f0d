/* lists.cuh -- many tensors in one launch. The list of pieces is in device memory; each piece is
 * split into chunks, one block per chunk.
 *
 *     pieces   [ 0        ][ 1 ][ 2              ]
 *     blocks   0.0 0.1 0.2  1.0  2.0 2.1 2.2 2.3        piece.chunk */
#ifndef DEVICE_CUDA_LISTS_CUH
#define DEVICE_CUDA_LISTS_CUH

#include "device/cuda/value.cuh"
#include "device/workspace.h"

typedef struct {
    int32_t piece, chunk;
} ListBlock;

/* Arrays in device memory, as list_layout places them. */
struct DeviceList {
    DeviceContext *context;
    void *own;        /* memory to be freed; NULL: it is the caller's */
    void *piece;      /* SquaresPiece[n] or UpdatePiece[n] */
    ListBlock *block; /* [blocks] */
    double *sum;      /* [blocks], partial sums */
    int64_t *first;   /* [n + 1], first block of each piece */
    int n;
    int64_t blocks;
};

/* Host pieces; piece i starts at `at` + i * shape.piece_bytes. */
typedef struct {
    const void *at;
    DeviceListShape shape;
    int64_t (*count)(const void *piece);
    int n;
} ListPieces;

/* Local. Uploads the list to `memory`, or to memory of its own if that is NULL. */
Err list_open(DeviceContext *c, const ListPieces &p, void *memory, DeviceList **out);

/* States to the compiler that a pointer read from memory points to global memory. */
template <class T> static __device__ inline T *in_global(T *at)
{
    __builtin_assume(__isGlobal(at));
    return at;
}

static __device__ inline bool is_aligned(const void *at) { return (uintptr_t)at % 16 == 0; }

#endif
