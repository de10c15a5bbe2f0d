/* lists.cu -- uploads lists of tensors to device memory, and frees them. */
#include <stdlib.h>

#include "device/cuda/lists.cuh"

/* Assigns a chunk of a piece to each block, and finds the first block of each piece. */
static void fill_blocks(const ListPieces &p, ListBlock *block, int64_t *first)
{
    for (int i = 0; i < p.n; i++) {
        const char *piece = (const char *)p.at + (size_t)i * p.shape.piece_bytes;
        const int64_t n = list_blocks(&p.shape, p.count(piece));
        first[i + 1] = first[i] + n;
        for (int64_t k = 0; k < n && block; k++) block[first[i] + k] = {i, (int32_t)k};
    }
}

/* In the order of the queue, which does not wait for the copies of cudaMemcpy. */
static Err list_upload(const DeviceContext *c, void *to, const void *from, size_t bytes)
{
    const cudaStream_t stream = c->queue[QUEUE_COMPUTE].stream;
    if (bytes == 0) return OK;
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    return OK;
}

static Err list_fill(DeviceList *l, const ListPieces &p, char *memory, const ListBlock *block,
                     const int64_t *first)
{
    const ListLayout at = list_layout(&p.shape, l->n, l->blocks);
    CUDA_TRY(cudaSetDevice(l->context->ordinal));
    if (!memory) {
        CUDA_TRY(cudaMalloc(&l->own, at.end));
        memory = (char *)l->own;
    }
    l->piece = memory + at.piece;
    l->block = (ListBlock *)(memory + at.block);
    l->sum = (double *)(memory + at.sum);
    l->first = (int64_t *)(memory + at.first);
    TRY(list_upload(l->context, l->piece, p.at, p.shape.piece_bytes * (size_t)p.n));
    TRY(list_upload(l->context, l->block, block, sizeof *block * (size_t)l->blocks));
    return list_upload(l->context, l->first, first, sizeof *first * (size_t)(p.n + 1));
}

Err list_open(DeviceContext *c, const ListPieces &p, void *memory, DeviceList **out)
{
    static_assert(sizeof(ListBlock) == 2 * sizeof(int32_t), "as list_layout counts it");
    DeviceList *l = (DeviceList *)calloc(1, sizeof *l);
    int64_t *first = (int64_t *)calloc((size_t)p.n + 1, sizeof *first);
    ListBlock *block = NULL;
    if (l && first) {
        fill_blocks(p, NULL, first);
        l->context = c, l->n = p.n, l->blocks = first[p.n];
        block = (ListBlock *)calloc((size_t)l->blocks + 1, sizeof *block);
    }
    Err err = OK;
    if (!block) {
        err = err_fail(ERR_NOMEM, "cuda: no memory for a list of %d tensors", p.n);
    } else {
        fill_blocks(p, block, first);
        err = list_fill(l, p, (char *)memory, block, first);
    }
    free(first);
    free(block);
    if (err == OK)
        *out = l;
    else if (l && l->context)
        cuda_list_close(l);
    else
        free(l);
    return err;
}

extern "C" void cuda_list_close(DeviceList *l)
{
    (void)cudaSetDevice(l->context->ordinal);
    (void)cudaFree(l->own);
    free(l);
}
