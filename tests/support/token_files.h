/* token_files.h -- writers of llm.c and Megatron token files, byte by byte, independent of the code
 * under test. */
#ifndef SUPPORT_TOKEN_FILES_H
#define SUPPORT_TOKEN_FILES_H

#include "support/bytes.h"

/* 256 int32 of header, then tokens. */
static inline Buffer llmc_file(int32_t magic, int32_t version, const int64_t *id, int n, int width)
{
    Buffer b = {0};
    buffer_put(&b, (uint64_t)magic, 4);
    buffer_put(&b, (uint64_t)version, 4);
    buffer_put(&b, (uint64_t)n, 4);
    for (int i = 3; i < 256; i++) buffer_put(&b, 0, 4);
    for (int i = 0; i < n; i++) buffer_put(&b, (uint64_t)id[i], width);
    return b;
}

static inline Buffer array_file(const int64_t *id, int n, int width)
{
    Buffer b = {0};
    for (int i = 0; i < n; i++) buffer_put(&b, (uint64_t)id[i], width);
    return b;
}

/* `size`: length of each sequence. `document`: first sequence of each document, then the number of
 * sequences. */
static inline Buffer megatron_index(int code, int width, const int *size, int n_sequences,
                                    const int *document, int n_entries)
{
    Buffer b = {0};
    uint64_t at = 0;
    buffer_raw(&b, "MMIDIDX\0\0", 9);
    buffer_put(&b, 1, 8);
    buffer_put(&b, (uint64_t)code, 1);
    buffer_put(&b, (uint64_t)n_sequences, 8);
    buffer_put(&b, (uint64_t)n_entries, 8);
    for (int i = 0; i < n_sequences; i++) buffer_put(&b, (uint64_t)size[i], 4);
    for (int i = 0; i < n_sequences; at += (uint64_t)(size[i++] * width)) buffer_put(&b, at, 8);
    for (int i = 0; i < n_entries; i++) buffer_put(&b, (uint64_t)document[i], 8);
    return b;
}

#endif
