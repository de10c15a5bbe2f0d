/* data.h -- the parts of `sheaf data`, and what `inspect` shares with it. */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include "data/tokenizer.h"

/* argv[0] is "build", "show" or "check"; the exit status. */
int data_build(int argc, char **argv);
int data_show(int argc, char **argv);
int data_check(int argc, char **argv);

/* Local. Prints what an open file is, after a walk over all of it; with a tokenizer also the text of
 * its first tokens. */
Err data_describe(const Tokens *t, const Tokenizer *tokenizer, Arena *a);

#endif
