/* tokens.c -- token maps, document by document. A sequence of a micro-batch is a document here. */
#include "layout/tokens.h"

#include "base/math.h"

const char *token_map_name(TokenMap kind)
{
    static const char *const name[N_TOKEN_MAPS] = {"auto", "contiguous", "zigzag", "striped"};
    return name[kind];
}

/* Share `share` of a document of n tokens, as at most two spans; returns their number. The shares
 * of a document are dealt to the parts. */
static int share_of(TokenMap kind, int64_t n, int parts, int share, Span out[2])
{
    const Span striped = {share, n, parts},
               late = even_part(n, 1, 2 * parts, 2 * parts - 1 - share);
    int spans = 0;
    out[spans] = kind == TOKENS_STRIPED      ? striped
                 : kind == TOKENS_CONTIGUOUS ? even_part(n, 1, parts, share)
                                             : even_part(n, 1, 2 * parts, share);
    spans += span_count(out[spans]) > 0;
    if (kind != TOKENS_ZIGZAG || span_count(late) == 0) return spans;
    if (spans > 0 && out[0].hi == late.lo) { /* the last part: its two chunks are neighbours */
        out[0].hi = late.hi;
        return spans;
    }
    out[spans++] = late;
    return spans;
}

static int64_t share_count(TokenMap kind, int64_t n, int parts, int share)
{
    Span s[2];
    int64_t count = 0;
    for (int i = share_of(kind, n, parts, share, s) - 1; i >= 0; i--) count += span_count(s[i]);
    return count;
}

typedef struct {
    TokenMap kind;
    int parts;
    const int64_t *start;
    int64_t n;      /* documents */
    int32_t *turn;  /* [n]: part p has share (p + turn) % parts of the document */
    int64_t *load;  /* [parts]: tokens so far */
    int64_t *share; /* [parts]: tokens of each share of the current document */
} TokenDealer;

/* The turn after which the loads are most even, by their sum of squares; the first of equal
 * ones. */
static int best_turn(const TokenDealer *t)
{
    int best = 0;
    int64_t least = INT64_MAX;
    for (int turn = 0; turn < t->parts; turn++) {
        int64_t product = 0; /* the sum of squares, less what no turn changes */
        for (int p = 0; p < t->parts; p++) product += t->load[p] * t->share[(p + turn) % t->parts];
        if (product < least) best = turn;
        least = min_i64(least, product);
    }
    return best;
}

static void deal_document(TokenDealer *t, int64_t d)
{
    const int64_t n = t->start[d + 1] - t->start[d];
    for (int s = 0; s < t->parts; s++) t->share[s] = share_count(t->kind, n, t->parts, s);
    t->turn[d] = best_turn(t);
    for (int p = 0; p < t->parts; p++) t->load[p] += t->share[(p + t->turn[d]) % t->parts];
}

/* Appends the part's span of a document; joins it with the one before if nothing is between. */
static void push_span(Span *list, int32_t *n, int32_t first, Span s)
{
    Span *last = *n > first ? &list[*n - 1] : NULL;
    if (last && last->hi == s.lo && last->step == 1 && s.step == 1)
        last->hi = s.hi;
    else
        list[(*n)++] = s;
}

static Err write_spans(const TokenDealer *t, Arena *a, const SpanMap **out)
{
    int32_t *first, n = 0;
    Span *list, s[2];
    TRY(ARENA_NEW(a, t->parts + 1, &first));
    TRY(ARENA_NEW(a, 2 * t->n * t->parts + 1, &list));
    for (int p = 0; p < t->parts; p++) {
        for (int64_t d = 0; d < t->n; d++) {
            const int64_t at = t->start[d];
            const int share = (p + t->turn[d]) % t->parts;
            const int spans = share_of(t->kind, t->start[d + 1] - at, t->parts, share, s);
            for (int i = 0; i < spans; i++) {
                const Span moved = {at + s[i].lo, at + s[i].hi, s[i].step};
                push_span(list, &n, first[p], span_first(moved, span_count(moved)));
            }
        }
        first[p + 1] = n;
    }
    return spans_map(a, t->n > 0 ? t->start[t->n] : 0, t->parts, first, list, out);
}

static Err deal_tokens(Arena *a, TokenDealer t, bool in_order, const SpanMap **out)
{
    const int64_t *start = t.start, n = t.n;
    const TokenMap kind = t.kind;
    const int parts = t.parts;
    MUST(kind > TOKENS_AUTO && kind < N_TOKEN_MAPS, "token map %d", (int)kind);
    for (int64_t d = 0; d < n; d++)
        if (start[0] != 0 || start[d] > start[d + 1])
            return err_fail(ERR_CHECK,
                            "token map: document %lld has tokens %lld to %lld; documents begin at "
                            "0 and follow each other",
                            (long long)d, (long long)start[d], (long long)start[d + 1]);
    TRY(ARENA_NEW(a, n + 1, &t.turn));
    TRY(ARENA_NEW(a, parts, &t.load));
    TRY(ARENA_NEW(a, parts, &t.share));
    for (int64_t d = 0; d < n && !in_order; d++) deal_document(&t, d);
    return write_spans(&t, a, out);
}

Err tokens_by_document(Arena *a, TokenMap kind, const int64_t *start, int64_t n, int parts,
                       const SpanMap **out)
{
    return deal_tokens(a, (TokenDealer){.kind = kind, .parts = parts, .start = start, .n = n},
                       false, out);
}

static Err deal_sequences(Arena *a, TokenDealer t, int64_t seq_len, bool in_order,
                          const SpanMap **out)
{
    int64_t *start;
    TRY(ARENA_NEW(a, t.n + 1, &start));
    for (int64_t i = 0; i <= t.n; i++) start[i] = i * seq_len;
    t.start = start;
    return deal_tokens(a, t, in_order, out);
}

Err tokens_map(Arena *a, TokenMap kind, int64_t sequences, int64_t seq_len, int parts,
               const SpanMap **out)
{
    const TokenDealer t = {.kind = kind, .parts = parts, .n = sequences};
    return deal_sequences(a, t, seq_len, false, out);
}

Err tokens_map_in_order(Arena *a, TokenMap kind, int64_t sequences, int64_t seq_len, int parts,
                        const SpanMap **out)
{
    const TokenDealer t = {.kind = kind, .parts = parts, .n = sequences};
    return deal_sequences(a, t, seq_len, true, out);
}

Err tokens_by_frames(Arena *a, int64_t clips, int64_t frames, int64_t places, int parts,
                     const SpanMap **out)
{
    int32_t *first, n = 0;
    Span *list;
    TRY(ARENA_NEW(a, parts + 1, &first));
    TRY(ARENA_NEW(a, clips * parts + 1, &list));
    for (int p = 0; p < parts; p++) {
        const Span share = even_part(frames, 1, parts, p);
        for (int64_t c = 0; c < clips && share.lo < share.hi; c++)
            push_span(
                list, &n, first[p],
                (Span){(c * frames + share.lo) * places, (c * frames + share.hi) * places, 1});
        first[p + 1] = n;
    }
    return spans_map(a, clips * frames * places, parts, first, list, out);
}

double tokens_causal_balance(const SpanMap *map, int64_t seq_len, int64_t window)
{
    const int64_t keys = window > 0 ? window : seq_len;
    double most = 0, all = 0;
    for (int p = 0; p < map->n_parts; p++) {
        const HeldSpans h = held_map(map, p);
        double pairs = 0;
        HeldCursor cursor = {0, 0};
        for (int64_t i = 0, n; i < h.count; i += n) {
            const Span s = held_span_next(&h, i, &cursor);
            n = span_count(s);
            for (int64_t k = 0; k < n; k++)
                pairs += (double)min_i64((s.lo + k * s.step) % seq_len + 1, keys);
        }
        most = pairs > most ? pairs : most;
        all += pairs;
    }
    return all > 0 ? most * map->n_parts / all : 1;
}
