/* encoded.h -- text and JSONL encoded with a tokenizer when a run opens them.
 *
 * The ids equal those of the token file that `sheaf data build` writes with its defaults, and so
 * does the fingerprint of the stream: a run may continue on that file. They are kept in a file
 * without a name in $TMPDIR (/tmp), which the system removes with the process. */
#ifndef DATA_ENCODED_H
#define DATA_ENCODED_H

#include "data/tokenizer.h"

/* Local. Replaces an open text or JSONL file by its ids. ERR_CONFIG for JSONL if the tokenizer has
 * no token that starts a document. */
Err tokens_encode(Tokens *t, const Tokenizer *tokenizer, int threads, Arena *a);

#endif
