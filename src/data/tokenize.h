/* tokenize.h -- documents to ids and into a token file, by a team of threads. What is written does
 * not depend on their number.
 *
 *     file    |part 0|part 1|part 2|part 3| ...      JSONL is cut after lines, a text where its
 *     team      t0     t1     t0     t1              tokenizer allows it (tokenizer_cuts)
 *     writer  |ids 0 |ids 1 |ids 2 |ids 3 | ...      in order, when all parts of a round are done
 */
#ifndef DATA_TOKENIZE_H
#define DATA_TOKENIZE_H

#include "base/team.h"
#include "data/tokenizer.h"
#include "data/writer.h"

typedef struct {
    const Tokenizer *of;
    Writer *writer;
    int threads;
    int32_t first, last; /* an id before each document, and one after; -1: none */
    size_t part_bytes;   /* about; 0: the usual */
    void (*progress)(void *context, int64_t bytes);
    void *context; /* may be NULL, and progress too */
} TokenizeSettings;

typedef struct TokenizePart TokenizePart;
typedef struct TokenizeThread TokenizeThread;
typedef struct {
    TokenizeSettings settings;
    Arena arena;
    Team *team;
    TokenizeThread *thread;
    TokenizePart *part;
    int n_parts, max_parts;
    int64_t replaced; /* parts of text that were not UTF-8 */
} BulkTokenizer;

Err tokenize_open(BulkTokenizer *z, const TokenizeSettings *settings);
void tokenize_close(BulkTokenizer *z);
/* Local. A text is one document, a line of JSONL is one. */
Err tokenize_text(BulkTokenizer *z, Bytes text);
Err tokenize_jsonl(BulkTokenizer *z, const char *path, Bytes data);

#endif
