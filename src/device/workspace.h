/* workspace.h -- the memory of a device that kernels and optimizer lists take beside their
 * operands, as functions of shapes: it is known before a run, on machines without the device too.
 *
 *     scratch   one block for all kernels of the compute queue, which run in order: the most that
 *               any of them takes
 *     lists     pieces, and a number of blocks of `chunk` elements for each (DeviceLists)
 *
 * A bound is over all kernels that the device may choose for a call, and over all models of the
 * device, so that one number holds wherever the program runs. */
#ifndef DEVICE_WORKSPACE_H
#define DEVICE_WORKSPACE_H

#include "device/device.h"

/* A list of the optimizer: the bytes of a piece, and the elements of a block. */
typedef struct {
    size_t piece_bytes;
    int64_t chunk;
} DeviceListShape;

typedef struct DeviceWorkspace {
    /* Bytes of scratch that a call takes at most whose extents are not above those of `call`, which
     * has types and strides, but no data. */
    size_t (*scratch)(KernelId id, const Call *call);
    DeviceListShape squares, update;
} DeviceWorkspace;

/* Each array of a list begins at a multiple of this, and lists end at one. */
enum { LIST_ALIGN = 64 };

static inline size_t list_align(size_t bytes)
{
    return (bytes + LIST_ALIGN - 1) / LIST_ALIGN * LIST_ALIGN;
}

static inline int64_t list_blocks(const DeviceListShape *s, int64_t count)
{
    return (count + s->chunk - 1) / s->chunk;
}

/* The arrays of a list of n pieces with so many blocks together, in the order of their storage:
 * pieces; piece and chunk of each block; a sum of each block; the first block of each piece. */
typedef struct {
    size_t piece, block, sum, first, end;
} ListLayout;

static inline ListLayout list_layout(const DeviceListShape *s, int64_t n, int64_t blocks)
{
    ListLayout at = {0};
    at.block = at.piece + list_align(s->piece_bytes * (size_t)n);
    at.sum = at.block + list_align(2 * sizeof(int32_t) * (size_t)blocks);
    at.first = at.sum + list_align(sizeof(double) * (size_t)blocks);
    at.end = at.first + list_align(sizeof(int64_t) * (size_t)(n + 1));
    return at;
}

#endif
