/* tokens.h -- a file of tokens, mapped into memory: whatever its format, an array of ids and a way
 * to find where documents start.
 *
 *     format     what it is                                 documents start
 *     text       a file; its bytes are the tokens           at its beginning, alone
 *     jsonl      a JSON object with a "text" in each line   with each line
 *     tokens     llm.c's: 256 int32 of header, then uint16  at each token that the header names;
 *                (magic 20240520) or uint32 (20240801)      else 50256 (GPT-2's) or 128000 (Llama 3's)
 *     megatron   NAME.bin and NAME.idx, Megatron's pair     where the .idx says
 *     uint16     an array without a header                  at its beginning, alone
 *     uint32     likewise
 *
 * auto goes by the magic, then by an .idx beside the file, then by a name that ends in .jsonl; the
 * rest is text, if it has no NUL bytes. Opening checks all that the structure claims, so no read is
 * out of bounds afterwards. Ids are judged where they are read, against a vocabulary: a file of 100
 * billion tokens opens in no time. What is malformed is ERR_CHECK and names file, place, value,
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
    TokenFormat format; /* once open never auto */
    int width;          /* bytes of a token: 1, 2, 4 or 8, little-endian */
    bool is_signed;
    const unsigned char *first; /* token; not aligned */
    int64_t first_byte;         /* where it is in the file; -1: decoded from it */
    int64_t n_tokens;
    int64_t start_token; /* a document starts at each; -1: at none */
    int64_t n_starts;    /* documents whose starts are listed; 0: no list */
    /* The list: Megatron's document index and byte pointers of sequences, or our own. */
    const unsigned char *document, *pointer;
    int64_t n_sequences;
    const int64_t *start;
    Bytes map[2]; /* what to unmap */
} Tokens;

/* Local. The path of a Megatron pair may end in .bin, in .idx or in neither. JSONL is decoded into
 * the arena. `path` must stay. */
Err tokens_open(const char *path, TokenFormat format, Arena *a, Tokens *out);
void tokens_close(Tokens *t);
/* Local. The same from memory: `index` is the .idx of a Megatron pair, else empty. */
Err tokens_parse(const char *path, TokenFormat format, Bytes data, Bytes index, Arena *a,
                 Tokens *out);
/* Local. What auto takes these bytes for. ERR_CONFIG when it could be anything. */
Err tokens_recognise(const char *path, Bytes data, bool has_index, TokenFormat *out);

/* Local. The id at i in [0, n_tokens), as it is written: it may be negative, or of any size. */
int64_t tokens_at(const Tokens *t, int64_t i);
/* Local. The first token in (at, end) that starts a document, or `end`. O(log documents) with a
 * list, else O(end - at). */
int64_t tokens_next_start(const Tokens *t, int64_t at, int64_t end);
/* Local. ERR_CHECK that names the file, the token and its byte: for an id not in [0, vocab). */
Err tokens_bad_id(const Tokens *t, int64_t i, int64_t vocab);

/* What a walk over tokens saw. */
typedef struct {
    int64_t low, high;   /* least and greatest id */
    int64_t n_ids;       /* different ones, of those below MAX_STATS_IDS */
    int64_t n_documents; /* that hold a token */
    unsigned char *seen; /* a bit for each id */
} TokenStats;
enum { MAX_STATS_IDS = 1 << 24 };
Err token_stats_init(TokenStats *stats, Arena *a);
/* Local. Walks [from, to) and adds to `seen`. With vocab > 0, fails at the first id not below it.
 */
Err tokens_scan(const Tokens *t, int64_t from, int64_t to, int64_t vocab, TokenStats *stats);

/* Local. As data.format spells it; ERR_CONFIG with the nearest. */
const char *token_format_name(TokenFormat format);
Err token_format_named(const char *name, TokenFormat *out);
/* Local. "token file of llm.c, uint16": a few words, for people. */
const char *tokens_describe(const Tokens *t);

#endif
