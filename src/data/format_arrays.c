/* format_arrays.c -- parses token files that are one array: llm.c's, with a header, and plain ones.
 *
 *     byte 0      magic       20240520: uint16 (GPT-2)      20240801: uint32 (Llama 3)
 *     byte 4      version     1                             7
 *     byte 8      tokens      an int32
 *     byte 12     start       0; or, as `sheaf data build` writes it, the token that starts
 *                             documents, + 1; -1: no token does
 *     byte 1024   tokens ...  to the end of the file
 *
 * llm.c puts the tokenizer's end-of-text token before each document, which marks the
 * borders. If `start` is 0, the token is that of GPT-2 or of Llama 3. A file without this
 * token is one document. */
#include "data/tokens_parts.h"

static Err parse_version(const Tokens *t, uint32_t magic, uint32_t version)
{
    const uint32_t wants = magic == LLMC_MAGIC_U16 ? LLMC_VERSION_U16 : LLMC_VERSION_U32;
    if (version == wants) return OK;
    return err_fail(ERR_CHECK,
                    "%s: byte 4: version %lu of llm.c's format, and with magic %lu only %lu is "
                    "known; write the file again with a current llm.c or `sheaf data build`",
                    t->path, (unsigned long)version, (unsigned long)magic, (unsigned long)wants);
}

static Err parse_magic(const Tokens *t, Bytes data)
{
    if (data.bytes < LLMC_HEADER_BYTES)
        return err_fail(ERR_CHECK,
                        "%s: has %zu bytes, and the header of llm.c's format alone has %d; the "
                        "file was cut short: write it again",
                        t->path, data.bytes, LLMC_HEADER_BYTES);
    const uint32_t magic = read_u32(data.at);
    if (magic == LLMC_MAGIC_U16 || magic == LLMC_MAGIC_U32)
        return parse_version(t, magic, read_u32(data.at + 4));
    if (magic == LLMC_MAGIC_EVAL)
        return err_fail(ERR_CHECK,
                        "%s: byte 0: magic %lu is that of llm.c's multiple-choice questions; "
                        "give a file of training tokens (magic %d or %d)",
                        t->path, (unsigned long)magic, LLMC_MAGIC_U16, LLMC_MAGIC_U32);
    return err_fail(ERR_CHECK,
                    "%s: byte 0: magic %lu, and token files start with %d (uint16) or %d (uint32); "
                    "for an array without a header set data.format to uint16 or uint32",
                    t->path, (unsigned long)magic, LLMC_MAGIC_U16, LLMC_MAGIC_U32);
}

Err parse_llmc(Bytes data, Tokens *t)
{
    TRY(parse_magic(t, data));
    const bool wide = read_u32(data.at) == LLMC_MAGIC_U32;
    const int32_t count = (int32_t)read_u32(data.at + 8);
    const int64_t width = wide ? 4 : 2, there = (int64_t)(data.bytes - LLMC_HEADER_BYTES);
    if (count < 0)
        return err_fail(ERR_CHECK,
                        "%s: byte 8: %ld tokens; the count is negative: the header is damaged, "
                        "write the file again",
                        t->path, (long)count);
    if (count * width != there)
        return err_fail(ERR_CHECK,
                        "%s: byte 8: %ld tokens are %lld bytes, and %lld follow the header; the "
                        "file %s: write it again",
                        t->path, (long)count, (long long)(count * width), (long long)there,
                        there < count * width ? "was cut short" : "has something after its tokens");
    t->width = (int)width;
    t->first = data.at + LLMC_HEADER_BYTES;
    t->first_byte = LLMC_HEADER_BYTES;
    t->n_tokens = count;
    const int32_t start = (int32_t)read_u32(data.at + 12);
    if (start < -1)
        return err_fail(ERR_CHECK,
                        "%s: byte 12: %ld, and what starts documents is -1, 0 or a token + 1; the "
                        "header is damaged, write the file again",
                        t->path, (long)start);
    t->start_token = start > 0   ? start - 1
                     : start < 0 ? -1
                     : wide      ? LLAMA3_BEGIN_OF_TEXT
                                 : GPT2_END_OF_TEXT;
    return OK;
}

Err parse_plain(Bytes data, int width, Tokens *t)
{
    if (data.bytes % (size_t)width != 0)
        return err_fail(ERR_CHECK,
                        "%s: has %zu bytes, no multiple of the %d of a token (data.format=%s); the "
                        "file was cut short or is of another format",
                        t->path, data.bytes, width, token_format_name(t->format));
    t->width = width;
    t->first = data.at;
    t->n_tokens = (int64_t)(data.bytes / (size_t)width);
    return OK;
}
