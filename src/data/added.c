/* added.c -- the trie of added tokens. Few bytes begin a token, so most bytes of a text cost one
 * lookup in `first`. */
#include "data/added.h"

/* Returns the child of a node for that byte; 0: none. */
static int32_t child_of(const AddedSet *set, int32_t node, unsigned char byte)
{
    if (node == 0) return set->first[byte];
    int32_t child = set->node[node].child;
    while (child && set->node[child].byte != byte) child = set->node[child].sibling;
    return child;
}

static void insert(AddedSet *set, int32_t token)
{
    const Bytes text = set->token[token].content;
    int32_t node = 0;
    for (size_t i = 0; i < text.bytes; i++) {
        int32_t child = child_of(set, node, text.at[i]);
        if (!child) {
            child = ++set->n_nodes;
            set->node[child] = (AddedNode){0, set->node[node].child, -1, text.at[i]};
            set->node[node].child = child;
            if (node == 0) set->first[text.at[i]] = child;
        }
        node = child;
    }
    set->node[node].token = token;
}

Err added_build(AddedSet *set, const AddedToken *token, int n, bool normalized, Arena *a)
{
    size_t bytes = 1;
    for (int i = 0; i < n; i++)
        if (token[i].normalized == normalized) bytes += token[i].content.bytes;
    if (bytes > INT32_MAX)
        return err_fail(ERR_CONFIG, "added_tokens: %zu bytes of contents are too many", bytes);
    set->token = token;
    TRY(ARENA_NEW(a, bytes, &set->node));
    set->node[0].token = -1;
    for (int i = 0; i < n; i++)
        if (token[i].normalized == normalized) insert(set, i);
    return OK;
}

/* Returns the end of the longest token that begins at `at`; `at` if there is none. */
static size_t longest(const AddedSet *set, Bytes text, size_t at, const AddedToken **token)
{
    size_t end = at;
    int32_t node = 0;
    for (size_t i = at; i < text.bytes && (node = child_of(set, node, text.at[i])); i++) {
        if (set->node[node].token < 0) continue;
        end = i + 1;
        *token = &set->token[set->node[node].token];
    }
    return end;
}

static bool is(const AddedSet *set, uint32_t code, int trait) { return set->traits[code] & trait; }

static bool is_whole_word(const AddedSet *set, Bytes text, size_t from, size_t to)
{
    uint32_t code;
    if (from > 0 && is(set, utf8_before(text.at + from), CHAR_WORD)) return false;
    if (to == text.bytes) return true;
    utf8_at(text.at + to, &code);
    return !is(set, code, CHAR_WORD);
}

static size_t strip_left(const AddedSet *set, Bytes text, size_t from)
{
    unsigned char utf8[MAX_UTF8];
    while (from > 0) {
        const uint32_t code = utf8_before(text.at + from);
        if (!is(set, code, CHAR_SPACE)) break;
        from -= (size_t)utf8_put(code, utf8);
    }
    return from;
}

static size_t strip_right(const AddedSet *set, Bytes text, size_t to)
{
    while (to < text.bytes) {
        uint32_t code;
        const int n = utf8_at(text.at + to, &code);
        if (!is(set, code, CHAR_SPACE)) break;
        to += (size_t)n;
    }
    return to;
}

bool added_find(const AddedSet *set, Bytes text, size_t at, AddedMatch *out)
{
    if (set->n_nodes == 0) return false;
    while (at < text.bytes) {
        const AddedToken *token = NULL;
        if (!set->first[text.at[at]]) {
            at++;
            continue;
        }
        const size_t end = longest(set, text, at, &token);
        if (end == at) {
            at++;
            continue;
        }
        if (token->single_word && !is_whole_word(set, text, at, end)) {
            at = end;
            continue;
        }
        *out = (AddedMatch){at, end, end, token};
        if (token->lstrip) out->from = strip_left(set, text, at);
        if (token->rstrip) out->to = strip_right(set, text, end);
        return true;
    }
    return false;
}
