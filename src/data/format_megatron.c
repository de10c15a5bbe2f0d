/* format_megatron.c -- parses Megatron's pair of files: NAME.bin has the tokens, NAME.idx the
 * positions of sequences and documents.
 *
 *     byte 0      "MMIDIDX" 0 0
 *     byte 9      version, uint64: 1
 *     byte 17     type of the tokens, uint8: 1 uint8, 3 int16, 4 int32, 5 int64, 8 uint16
 *     byte 18     S sequences, uint64
 *     byte 26     D entries of the document index, uint64
 *     byte 34     tokens in each sequence    int32 [S]
 *                 its first byte in .bin     int64 [S]
 *                 document index             int64 [D]: first sequence of each document, then S
 *
 * Sequences must be contiguous and fill the .bin, as Megatron writes them. The .bin is then one
 * stream, and a document is a range of it. Opening reads the index once, 12 bytes per sequence and
 * 8 per document. Later lookups read the mapped index; no copy is kept in memory. */
#include "data/tokens_parts.h"

#include <string.h>

static Err bad(const Tokens *t, const char *what, long long value, const char *limit)
{
    return err_fail(ERR_CHECK, "%s: the .idx next to it: %s is %lld, and %s; write the pair again",
                    t->path, what, value, limit);
}

static Err parse_type(Tokens *t, int code)
{
    static const struct {
        int width;
        bool is_signed;
    } type[] = {
        [1] = {1, false}, [3] = {2, true}, [4] = {4, true}, [5] = {8, true}, [8] = {2, false}};
    const int n = (int)(sizeof type / sizeof *type);
    if (code < 0 || code >= n || type[code].width == 0)
        return bad(t, "byte 17, the type of the tokens,", code,
                   "tokens are 1 (uint8), 3 (int16), 4 (int32), 5 (int64) or 8 (uint16)");
    t->width = type[code].width;
    t->is_signed = type[code].is_signed;
    return OK;
}

/* The arrays of the index, after its length has been checked against its counts. */
typedef struct {
    const unsigned char *size, *pointer, *document;
    int64_t n_sequences, n_entries;
} MegatronIndex;

static Err parse_index(Tokens *t, Bytes index, MegatronIndex *out)
{
    if (index.bytes < MEGATRON_HEADER_BYTES)
        return bad(t, "its length in bytes", (long long)index.bytes, "its header alone has 34");
    if (memcmp(index.at, MEGATRON_MAGIC, MEGATRON_MAGIC_BYTES) != 0) {
        const bool old = memcmp(index.at, "TNTIDX", 6) == 0;
        return err_fail(ERR_CHECK, "%s: the .idx next to it does not start with MMIDIDX%s", t->path,
                        old ? ": it is of the older TNTIDX kind; write the pair again with a "
                              "current Megatron"
                            : "; it is no index of Megatron: remove it or set data.format");
    }
    const uint64_t version = read_u64(index.at + 9);
    if (version != 1) return bad(t, "byte 9, the version,", (long long)version, "1 is known");
    TRY(parse_type(t, index.at[17]));
    const uint64_t S = read_u64(index.at + 18), D = read_u64(index.at + 26);
    const uint64_t payload = index.bytes - MEGATRON_HEADER_BYTES;
    if (S > payload / 12) /* divides: 12 * S could overflow */
        return bad(t, "byte 18, the number of sequences,", (long long)S,
                   "the index is too short for them");
    if (D > (payload - 12 * S) / 8)
        return bad(t, "byte 26, the number of documents,", (long long)D,
                   "the index is too short for them");
    if (payload != 12 * S + 8 * D)
        return bad(t, "the rest after its document index, in bytes,",
                   (long long)(payload - 12 * S - 8 * D),
                   "it must be 0 (image modes are not supported)");
    out->size = index.at + MEGATRON_HEADER_BYTES;
    out->pointer = out->size + 4 * S;
    out->document = out->pointer + 8 * S;
    out->n_sequences = (int64_t)S;
    out->n_entries = (int64_t)D;
    return OK;
}

/* Checks that sequences are contiguous, from byte 0 to the end of the .bin. */
static Err check_sequences(const Tokens *t, const MegatronIndex *x, size_t data_bytes)
{
    int64_t at = 0;
    for (int64_t s = 0; s < x->n_sequences; s++) {
        const int64_t tokens = (int32_t)read_u32(x->size + 4 * s);
        const int64_t pointer = (int64_t)read_u64(x->pointer + 8 * s);
        if (pointer != at)
            return err_fail(ERR_CHECK,
                            "%s: the .idx next to it: sequence %lld starts at byte %lld, and the "
                            "one before ends at %lld; sequences must be contiguous: write the "
                            "pair again",
                            t->path, (long long)s, (long long)pointer, (long long)at);
        if (tokens < 0 || (uint64_t)tokens > (data_bytes - (size_t)at) / (size_t)t->width)
            return err_fail(ERR_CHECK,
                            "%s: the .idx next to it: sequence %lld has %lld tokens from byte %lld "
                            "on, and the file has %zu bytes; was it cut short?",
                            t->path, (long long)s, (long long)tokens, (long long)at, data_bytes);
        at += tokens * t->width;
    }
    if ((size_t)at == data_bytes) return OK;
    return err_fail(ERR_CHECK,
                    "%s: has %zu bytes, and the .idx next to it describes %lld; the two do not "
                    "belong together: write the pair again",
                    t->path, data_bytes, (long long)at);
}

static Err check_documents(const Tokens *t, const MegatronIndex *x)
{
    int64_t before = 0;
    for (int64_t d = 0; d < x->n_entries; d++) {
        const int64_t sequence = (int64_t)read_u64(x->document + 8 * d);
        if (sequence < before || sequence > x->n_sequences || (d == 0 && sequence != 0))
            return err_fail(ERR_CHECK,
                            "%s: the .idx next to it: document %lld starts with sequence %lld; the "
                            "index must start with 0, never fall and end by %lld: write the pair "
                            "again",
                            t->path, (long long)d, (long long)sequence, (long long)x->n_sequences);
        before = sequence;
    }
    return OK;
}

Err parse_megatron(Bytes data, Bytes index, Tokens *t)
{
    MegatronIndex x;
    TRY(parse_index(t, index, &x));
    TRY(check_sequences(t, &x, data.bytes));
    TRY(check_documents(t, &x));
    t->first = data.at;
    t->n_tokens = (int64_t)(data.bytes / (size_t)t->width);
    t->document = x.document;
    t->pointer = x.pointer;
    t->n_sequences = x.n_sequences;
    t->n_starts = x.n_entries;
    /* The last entry is the end of the last document and starts none. */
    if (x.n_entries > 0 && (int64_t)read_u64(x.document + 8 * (x.n_entries - 1)) == x.n_sequences)
        t->n_starts--;
    return OK;
}

int64_t megatron_start(const Tokens *t, int64_t d)
{
    if (d == t->n_starts) return t->n_tokens;
    const int64_t sequence = (int64_t)read_u64(t->document + 8 * d);
    return sequence == t->n_sequences ? t->n_tokens
                                      : (int64_t)read_u64(t->pointer + 8 * sequence) / t->width;
}
