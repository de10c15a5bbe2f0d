/* tokens.h -- the tokens of a micro-batch that each rank along cp holds: token maps.
 *
 *     two sequences of 8 on cp=2        rank 0                          rank 1
 *     contiguous                        0..3            8..11           4..7        12..15
 *     zigzag                            0 1 6 7         8 9 14 15       2..5        10..13
 *     striped                           0 2 4 6         8 10 12 14      1 3 5 7     9 11 13 15
 *
 * A map cuts each sequence by itself, never their concatenation: causal work is balanced within
 * sequences, and a short last micro-batch leaves no rank without its share. Spans ascend, so the
 * live rows of a part are its first ones (ir/ops.h, Dim). Positions, key ranges and targets are
 * those of the global rows; nothing else depends on the map.
 *
 *     contiguous   rank r has the r-th part. Causal work differs up to (2P - 1) / P times the mean.
 *     zigzag       rank r has parts r and 2P - 1 - r of 2P: equal causal work
 *     striped      rank r has tokens r, r + P, ...: nearly equal work in any pair of blocks
 *
 * Sequences that do not divide give some parts one element more. The parts of each sequence are
 * rotated so that the ranks' totals stay as even as possible. */
#ifndef LAYOUT_TOKENS_H
#define LAYOUT_TOKENS_H

#include "layout/spans.h"

typedef enum {
    TOKENS_AUTO, /* not a map: the job chooses one */
    TOKENS_CONTIGUOUS,
    TOKENS_ZIGZAG,
    TOKENS_STRIPED,
    N_TOKEN_MAPS
} TokenMap;

/* Local. "auto", "contiguous", "zigzag", "striped". */
const char *token_map_name(TokenMap kind);

/* Local. The map of `sequences` sequences of seq_len tokens each, back to back. */
Err tokens_map(Arena *a, TokenMap kind, int64_t sequences, int64_t seq_len, int parts,
               const SpanMap **out);
/* Local. The same without rotating: part p has share p of every sequence. */
Err tokens_map_in_order(Arena *a, TokenMap kind, int64_t sequences, int64_t seq_len, int parts,
                        const SpanMap **out);
/* Local. The map of clips of frames x places tokens, back to back: part p has an even share of the
 * frames of every clip, in the order of the parts. */
Err tokens_by_frames(Arena *a, int64_t clips, int64_t frames, int64_t places, int parts,
                     const SpanMap **out);
/* Local. The map of packed documents: document d has the tokens [start[d], start[d + 1]). Documents
 * may be empty or shorter than the number of parts. O(documents x parts^2). */
Err tokens_by_document(Arena *a, TokenMap kind, const int64_t *start, int64_t n, int parts,
                       const SpanMap **out);

/* Local. The greatest causal work of a part, as a multiple of the mean: pairs of a token and a key
 * at or before it in its sequence, within the last `window` of them; 0: all. O(tokens). */
double tokens_causal_balance(const SpanMap *map, int64_t seq_len, int64_t window);

#endif
