/* data.h -- the parts of `sheaf data`, and the description that `inspect` shares with it. */
#ifndef CLI_DATA_DATA_H
#define CLI_DATA_DATA_H

#include "data/tokenizer.h"

/* Local. argv[0] is "build", "show" or "check". Returns the exit status. */
int data_build(int argc, char **argv);
int data_show(int argc, char **argv);
int data_check(int argc, char **argv);

/* Local. Prints format, tokens, documents and ids of an open file after a scan of all its tokens;
 * with a tokenizer also the text of the first tokens. */
Err data_describe(const Tokens *t, const Tokenizer *tokenizer, Arena *a);

#endif
