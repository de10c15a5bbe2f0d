/* added.h -- finds added tokens, such as <|endoftext|>, which text contains verbatim.
 *
 *     "a<|x|>b <mask> c"   -->   "a"  <|x|>  "b"  (space)<mask>  " c"         <mask> has lstrip
 *
 * The earliest match wins; of several at the same place, the longest. The search continues at the
 * end of a match. A match of a `single_word` token that is not a whole word is plain text. */
#ifndef DATA_ADDED_H
#define DATA_ADDED_H

#include "data/unicode.h"

typedef struct {
    Bytes content; /* the bytes to search for; NFC-composed if the text is */
    Bytes decoded; /* the bytes that the id decodes to */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} AddedToken;

/* A trie over bytes; node 0 is the root. */
typedef struct {
    int32_t child, sibling; /* first child; next child of the parent; 0: none */
    int32_t token;          /* the token that ends here, or -1 */
    unsigned char byte;
} AddedNode;

typedef struct {
    const unsigned char *traits;
    const AddedToken *token;
    AddedNode *node;
    int32_t n_nodes, first[256]; /* first: children of the root, by byte */
} AddedSet;

/* Local. Builds the trie of the tokens with that `normalized` flag. The tokens must outlive it. */
Err added_build(AddedSet *set, const AddedToken *token, int n, bool normalized, Arena *a);

typedef struct {
    size_t from, to; /* including the white space that the token strips */
    size_t next;     /* position at which to continue the search */
    const AddedToken *token;
} AddedMatch;

/* Local. Finds the first match at or after `at`; false: none. Its stripped white space may overlap
 * the match before. */
bool added_find(const AddedSet *set, Bytes text, size_t at, AddedMatch *out);

#endif
