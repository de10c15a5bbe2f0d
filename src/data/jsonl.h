/* jsonl.h -- iterates over the texts of a JSONL file.
 *
 *     {"text": "To be, or not", "source": "hamlet"}        each line is an object with a "text"
 *     {"text": "to be"}                                    lines of white space are skipped,
 *                                                          and a byte order mark before line 1 */
#ifndef DATA_JSONL_H
#define DATA_JSONL_H

#include "data/tokens.h"

typedef struct {
    const char *path;
    Bytes left; /* the part not yet read */
    int64_t line;
    void *value; /* JSON value that owns the latest text */
} Jsonl;

Jsonl jsonl_open(const char *path, Bytes data);
void jsonl_close(Jsonl *j);
/* Local. *more is false past the last text. The text is valid until the next call. */
Err jsonl_next(Jsonl *j, Bytes *text, bool *more);

#endif
