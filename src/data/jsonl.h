/* jsonl.h -- the texts of a JSONL file, one after another.
 *
 *     {"text": "To be, or not", "source": "hamlet"}        each line is an object with a "text"
 *     {"text": "to be"}                                    lines of white space are passed over */
#ifndef DATA_JSONL_H
#define DATA_JSONL_H

#include "data/tokens.h"

typedef struct {
    const char *path;
    Bytes left; /* what is still to be read */
    int64_t line;
    void *value; /* holds the latest text */
} Jsonl;

Jsonl jsonl_open(const char *path, Bytes data);
void jsonl_close(Jsonl *j);
/* Local. *more is false past the last text. The text lives until the next call. */
Err jsonl_next(Jsonl *j, Bytes *text, bool *more);

#endif
