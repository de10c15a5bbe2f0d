/* tokens.h -- a token file mapped into memory: an array of ids, with a way to find document starts.
 *
 *     format     content                                    documents start
 *     text       a file; its bytes are the tokens           at its beginning only
 *     jsonl      a JSON object with a "text" in each line   with each line
 *     tokens     llm.c's: 256 int32 of header, then uint16  at each token that the header names;
 *                (magic 20240520) or uint32 (20240801)      else 50256 (GPT-2) or 128000 (Llama 3)
 *     megatron   NAME.bin and NAME.idx, Megatron's pair     at the positions in the .idx
 *     uint16     an array without a header                  at its beginning only
 *     uint32     an array without a header                  at its beginning only
 *
 * auto decides by the magic number, then by an .idx next to the file, then by the suffix .jsonl;
 * any other file without NUL bytes is text. Opening validates the whole structure, so later
 * reads stay in bounds. Ids are checked against a vocabulary when they are read: a file of 100
 * billion tokens opens at once. Malformed files give ERR_CHECK with the file, place, value,
 * limit and way out. */
#ifndef DATA_TOKENS_H
#define DATA_TOKENS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"

/* In the order of the values of data.format. */
typedef enum {
    FORMAT_AUTO,
    FORMAT_TEXT,
    FORMAT_JSONL,
    FORMAT_TOKENS,
    FORMAT_MEGATRON,
    FORMAT_UINT16,
    FORMAT_UINT32,
    N_FORMATS
} TokenFormat;

enum { BYTE_VOCAB = 256 };

typedef struct {
    const unsigned char *at;
    size_t bytes;
} Bytes;

typedef struct {
    const char *path;
    TokenFormat format; /* never auto once open */
    int width;          /* bytes per token: 1, 2, 4 or 8, little-endian */
    bool is_signed;
    const unsigned char *first; /* first token; not aligned */
    int64_t first_byte;         /* its offset in the file; -1: decoded into memory */
    int64_t n_tokens;
    int64_t start_token; /* a document starts at each such token; -1: none */
    int64_t n_starts;    /* documents whose starts are listed; 0: no list */
    /* The list of starts: Megatron's document index and byte pointers of sequences, or `start`. */
    const unsigned char *document, *pointer;
    int64_t n_sequences;
    const int64_t *start;
    Bytes map[2]; /* the mapped files */
} Tokens;

/* Local. The path of a Megatron pair may end in .bin, in .idx or in neither. JSONL is decoded into
 * the arena. `path` must outlive *out. */
Err tokens_open(const char *path, TokenFormat format, Arena *a, Tokens *out);
void tokens_close(Tokens *t);
/* Local. The same from memory. `index` is the .idx of a Megatron pair, else empty. */
Err tokens_parse(const char *path, TokenFormat format, Bytes data, Bytes index, Arena *a,
                 Tokens *out);
/* Local. Returns the format that auto chooses for these bytes. ERR_CONFIG if it is ambiguous. */
Err tokens_recognise(const char *path, Bytes data, bool has_index, TokenFormat *out);

/* Local. Returns the id at i in [0, n_tokens) as stored; it may be negative or too large. */
int64_t tokens_at(const Tokens *t, int64_t i);
/* Local. Returns the first token in (at, end) that starts a document, or `end`. O(log documents)
 * with a list, else O(end - at). */
int64_t tokens_next_start(const Tokens *t, int64_t at, int64_t end);
/* Local. Fails with ERR_CHECK for the id at i, which is not in [0, vocab); names the file, token
 * and byte. */
Err tokens_bad_id(const Tokens *t, int64_t i, int64_t vocab);

/* Statistics of a range of tokens. */
typedef struct {
    int64_t low, high;   /* smallest and largest id */
    int64_t n_ids;       /* distinct ids below MAX_STATS_IDS */
    int64_t n_documents; /* documents with at least one token */
    unsigned char *seen; /* one bit per id */
} TokenStats;
enum { MAX_STATS_IDS = 1 << 24 };
Err token_stats_init(TokenStats *stats, Arena *a);
/* Local. Adds the tokens [from, to) to `stats`. If vocab > 0, fails at the first id not in
 * [0, vocab). */
Err tokens_scan(const Tokens *t, int64_t from, int64_t to, int64_t vocab, TokenStats *stats);

/* Local. The values of data.format; an unknown name is ERR_CONFIG with the nearest one. */
const char *token_format_name(TokenFormat format);
Err token_format_named(const char *name, TokenFormat *out);
/* Local. Returns a description such as "a token file of llm.c, uint16". */
const char *tokens_describe(const Tokens *t);

#endif
