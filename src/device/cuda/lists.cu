/* lists.cu -- uploads lists of tensors to device memory, and frees them. */
#include <stdlib.h>

#include "device/cuda/lists.cuh"

/* Assigns a chunk of a piece to each block, and finds the first block of each piece. */
static void list_blocks(const ListPieces &p, int64_t chunk, ListBlock *block, int64_t *first)
{
    for (int i = 0; i < p.n; i++) {
        const int64_t n =
            blocks_of(p.count((const char *)p.at + (size_t)i * p.stride_bytes), chunk);
        first[i + 1] = first[i] + n;
        for (int64_t k = 0; k < n && block; k++) block[first[i] + k] = {i, (int32_t)k};
    }
}

static Err list_upload(void **to, const void *from, size_t bytes)
{
    CUDA_TRY(cudaMalloc(to, bytes + 1));
    CUDA_TRY(cudaMemcpy(*to, from, bytes, cudaMemcpyHostToDevice));
    return OK;
}

static Err list_fill(DeviceList *l, const ListPieces &p, const ListBlock *block,
                     const int64_t *first)
{
    CUDA_TRY(cudaSetDevice(l->context->ordinal));
    TRY(list_upload(&l->piece, p.at, p.stride_bytes * (size_t)p.n));
    TRY(list_upload((void **)&l->block, block, sizeof *block * (size_t)l->blocks));
    TRY(list_upload((void **)&l->first, first, sizeof *first * (size_t)(p.n + 1)));
    CUDA_TRY(cudaMalloc((void **)&l->sum, sizeof *l->sum * (size_t)(l->blocks + 1)));
    return OK;
}

Err list_open(DeviceContext *c, const ListPieces &p, int64_t chunk, DeviceList **out)
{
    DeviceList *l = (DeviceList *)calloc(1, sizeof *l);
    int64_t *first = (int64_t *)calloc((size_t)p.n + 1, sizeof *first);
    ListBlock *block = NULL;
    if (l && first) {
        list_blocks(p, chunk, NULL, first);
        l->context = c, l->n = p.n, l->blocks = first[p.n];
        block = (ListBlock *)calloc((size_t)l->blocks + 1, sizeof *block);
    }
    Err err = OK;
    if (!block) {
        err = err_fail(ERR_NOMEM, "cuda: no memory for a list of %d tensors", p.n);
    } else {
        list_blocks(p, chunk, block, first);
        err = list_fill(l, p, block, first);
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
    (void)cudaFree(l->piece);
    (void)cudaFree(l->block);
    (void)cudaFree(l->first);
    (void)cudaFree(l->sum);
    free(l);
}
