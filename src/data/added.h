/* added.h -- tokens that stand in text as they are: <|endoftext|> and its like.
 *
 *     "a<|x|>b <mask> c"   -->   "a"  <|x|>  "b"  (space)<mask>  " c"         <mask> strips its left
 *
 * The first that begins, of those the longest; a search goes on where the match ended. A match that
 * is not a word of its own, of a token that wants to be one, is text, and so is all of it. */
#ifndef DATA_ADDED_H
#define DATA_ADDED_H

#include "data/unicode.h"

typedef struct {
    Bytes content; /* as it is looked for: composed, when text is */
    Bytes decoded; /* what it stands for in text */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} AddedToken;

/* A trie over bytes; node 0 is the root. */
typedef struct {
    int32_t child, sibling; /* first child; next child of the parent; 0: none */
    int32_t token;          /* that ends here, or -1 */
    unsigned char byte;
} AddedNode;

typedef struct {
    const unsigned char *traits;
    const AddedToken *token;
    AddedNode *node;
    int32_t n_nodes, first[256]; /* children of the root */
} AddedSet;

/* Local. Those of the tokens whose `normalized` is that. Tokens must stay. */
Err added_build(AddedSet *set, const AddedToken *token, int n, bool normalized, Arena *a);

typedef struct {
    size_t from, to; /* white space that it strips counted */
    size_t next;     /* where to look on */
    const AddedToken *token;
} AddedMatch;

/* Local. The first match from `at` on; false: none. What it strips may reach into the match before.
 */
bool added_find(const AddedSet *set, Bytes text, size_t at, AddedMatch *out);

#endif
