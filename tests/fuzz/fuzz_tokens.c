/* fuzz_tokens.c -- data files of every format: an error, or tokens that can be read to the end.
 *
 *     byte 0       the format
 *     bytes 1, 2   where the .idx of a pair starts in what follows */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"
#include "data/tokens.h"

/* Memory of exactly that size, so that the sanitizer reports a read past the end. */
static Bytes exact(const uint8_t *data, size_t size)
{
    unsigned char *copy = malloc(size);
    if (size) memcpy(copy, data, size);
    return (Bytes){copy, size};
}

static void read_whole(const Tokens *t)
{
    static TokenStats stats;
    static unsigned char *seen;
    if (!seen) seen = malloc(MAX_STATS_IDS / 8);
    stats = (TokenStats){.low = INT64_MAX, .high = INT64_MIN, .seen = seen};
    (void)tokens_scan(t, 0, t->n_tokens, 1 << 16, &stats);
    for (int64_t i = 0; i < t->n_tokens && i < 4096; i++)
        if (tokens_next_start(t, i, t->n_tokens) <= i) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    Arena *a = fuzz_arena();
    const size_t rest = size - 3, split = (size_t)(data[1] | data[2] << 8) % (rest + 1);
    const Bytes body = exact(data + 3, split), index = exact(data + 3 + split, rest - split);
    Tokens t;
    if (tokens_parse("fuzz", (TokenFormat)(data[0] % N_FORMATS), body, index, a, &t) == OK)
        read_whole(&t);
    free((void *)body.at);
    free((void *)index.at);
    return 0;
}
