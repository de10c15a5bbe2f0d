/* tokens_parts.h -- shared by tokens.c and the parsers of the formats.
 *
 * A parser reads the bytes of a file and fills in a Tokens whose path and format are set. */
#ifndef DATA_TOKENS_PARTS_H
#define DATA_TOKENS_PARTS_H

#include "data/tokens.h"

enum {
    LLMC_HEADER_BYTES = 1024,
    LLMC_MAGIC_U16 = 20240520,
    LLMC_MAGIC_U32 = 20240801,
    LLMC_MAGIC_EVAL = 20240522,
    LLMC_VERSION_U16 = 1,
    LLMC_VERSION_U32 = 7,
    GPT2_END_OF_TEXT = 50256,
    LLAMA3_BEGIN_OF_TEXT = 128000
};

#define MEGATRON_MAGIC "MMIDIDX\0\0" /* nine bytes */
enum {
    MEGATRON_MAGIC_BYTES = 9,
    MEGATRON_HEADER_BYTES = 34,
    MEGATRON_UINT16 = 8,
    MEGATRON_INT32 = 4
};

/* Little-endian loads from any address. Compilers reduce each to one load. */
static inline uint32_t read_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t read_u64(const unsigned char *p)
{
    return (uint64_t)read_u32(p) | (uint64_t)read_u32(p + 4) << 32;
}

Err parse_llmc(Bytes data, Tokens *t);
Err parse_plain(Bytes data, int width, Tokens *t);
Err parse_megatron(Bytes data, Bytes index, Tokens *t);
Err parse_jsonl(Bytes data, Arena *a, Tokens *t);

/* Local. Returns the first token of document d, for d in [0, n_starts]. */
int64_t megatron_start(const Tokens *t, int64_t d);

#endif
