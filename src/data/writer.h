/* writer.h -- documents to a token file: llm.c's format, or a Megatron pair; 2 bytes a token, 4 for
 * vocabularies above 65,536.
 *
 *     Writer w;
 *     TRY(writer_open(&w, "corpus.bin", FORMAT_MEGATRON));
 *     err = writer_text(&w, text);                 its bytes are tokens; a document in pieces
 *     err = writer_end(&w);                        of a document
 *     err = writer_finish(&w)                      now the file is there, whole
 *     writer_close(&w);                            in any case; what is not finished is removed
 *
 * llm.c's format has no place for borders, and bytes have no token to spare for them: documents are
 * joined; a tokenizer has one, and `start` names it to who reads the file. The pair keeps borders. Files are written under another name and renamed when they are
 * whole, so that half a file is never taken for one. */
#ifndef DATA_WRITER_H
#define DATA_WRITER_H

#include <stdio.h>
#include "data/tokens.h"

typedef struct {
    const char *path;
    TokenFormat format;
    int width;          /* bytes of a token */
    int32_t start;      /* llm.c's: the token that starts documents, + 1; 0: as llm.c; -1: none */
    Arena arena;        /* paths, then sizes: the last thing in it, so it grows in place */
    const char *idx;    /* the other file of a pair; else "" */
    const char *tmp[2]; /* names until all is written */
    FILE *file[2];
    bool made[2];  /* the file of that name is ours to remove */
    int32_t *size; /* tokens of each document */
    int64_t n_documents, n_sizes;
    int64_t n_tokens, document_tokens; /* in all; since the last border */
} Writer;

/* Local. ERR_CONFIG for a name that does not fit the format, or a file that is there and is no
 * token file of the same kind: it is not written over. */
Err writer_open(Writer *w, const char *path, TokenFormat format);
/* Local. For ids below vocab. */
Err writer_open_ids(Writer *w, const char *path, TokenFormat format, int64_t vocab);
Err writer_text(Writer *w, Bytes text);
Err writer_ids(Writer *w, const int32_t *id, int64_t n);
Err writer_end(Writer *w);
Err writer_finish(Writer *w);
void writer_close(Writer *w);

#endif
