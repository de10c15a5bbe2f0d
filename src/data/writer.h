/* writer.h -- writes documents to a token file: llm.c's format, or a Megatron pair.
 *
 * A token has 2 bytes, or 4 for vocabularies above 65,536.
 *
 *     Writer w;
 *     TRY(writer_open(&w, "corpus.bin", FORMAT_MEGATRON));
 *     err = writer_text(&w, text);                 bytes as tokens; a document may come in pieces
 *     err = writer_end(&w);                        end of a document
 *     err = writer_finish(&w)                      renames the complete file to its name
 *     writer_close(&w);                            always; removes an unfinished file
 *
 * llm.c's format stores no document borders. Tokenizers have a token that starts documents, and
 * `start` records it in the header; with bytes as tokens, documents are concatenated. A Megatron
 * pair stores the borders. Files are written under a temporary name and renamed when complete, so a
 * partial file is never mistaken for a whole one. */
#ifndef DATA_WRITER_H
#define DATA_WRITER_H

#include <stdio.h>
#include "data/tokens.h"

typedef struct {
    const char *path;
    TokenFormat format;
    int width;          /* bytes per token */
    int32_t start;      /* llm.c: the token that starts documents, + 1; 0: its default; -1: none */
    Arena arena;        /* paths, then `size`, which is last so that it can grow in place */
    const char *idx;    /* second file of a pair; else "" */
    const char *tmp[2]; /* names while writing */
    FILE *file[2];
    bool made[2];  /* we created that file and must remove it */
    int32_t *size; /* tokens of each document */
    int64_t n_documents, n_sizes;
    int64_t n_tokens, document_tokens; /* in total; since the last border */
} Writer;

/* Local. ERR_CONFIG if the name does not fit the format, or if the file exists and is not a token
 * file of the same kind: such a file is not overwritten. */
Err writer_open(Writer *w, const char *path, TokenFormat format);
/* Local. The same for ids below vocab. */
Err writer_open_ids(Writer *w, const char *path, TokenFormat format, int64_t vocab);
Err writer_text(Writer *w, Bytes text);
Err writer_ids(Writer *w, const int32_t *id, int64_t n);
Err writer_end(Writer *w);
Err writer_finish(Writer *w);
void writer_close(Writer *w);

#endif
