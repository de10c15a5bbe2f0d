/* tokenize.h -- encodes documents with a team of threads and writes the ids to a token file.
 *
 *     file    |part 0|part 1|part 2|part 3| ...      JSONL is split after lines, a text where its
 *     team      t0     t1     t0     t1              tokenizer allows it (tokenizer_cuts)
 *     writer  |ids 0 |ids 1 |ids 2 |ids 3 | ...      in order, when all parts of a round are done
 *
 * The file does not depend on the number of threads. */
#ifndef DATA_TOKENIZE_H
#define DATA_TOKENIZE_H

#include "base/team.h"
#include "data/tokenizer.h"
#include "data/writer.h"

typedef struct {
    const Tokenizer *of;
    Writer *writer;
    int threads;
    int32_t first, last; /* ids added before and after each document; -1: none */
    size_t part_bytes;   /* approximate size of a part; 0: the default */
    void (*progress)(void *context, int64_t bytes);
    void *context; /* passed to progress; both may be NULL */
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
    int64_t replaced; /* invalid UTF-8 sequences in the text */
} BulkTokenizer;

Err tokenize_open(BulkTokenizer *z, const TokenizeSettings *settings);
void tokenize_close(BulkTokenizer *z);
/* Local. A text is one document; so is each line of JSONL. */
Err tokenize_text(BulkTokenizer *z, Bytes text);
Err tokenize_jsonl(BulkTokenizer *z, const char *path, Bytes data);

#endif
