/* test_tokens.c -- token maps: every token in one part, spans ascend, parts are even, and each
 * document is cut by itself. */
#include "support/expect.h"

#include <string.h>
#include "layout/holding.h"
#include "layout/tokens.h"

static Arena arena;

static int open_arena(void **state)
{
    (void)state;
    DO(arena_open(&arena, "tokens", (size_t)1 << 28));
    return 0;
}

static int close_arena(void **state)
{
    (void)state;
    arena_close(&arena);
    return 0;
}

/* Writes the tokens of a part; they must ascend. */
static int64_t tokens_of(const SpanMap *map, int part, int64_t *out)
{
    const HeldSpans h = held_map(map, part);
    for (int64_t i = 0; i < h.count; i++) {
        out[i] = held_at(&h, i);
        if (i > 0) assert_true(out[i] > out[i - 1]);
    }
    return h.count;
}

static void expect_tokens(const SpanMap *map, int part, const int64_t *want, int64_t n)
{
    int64_t got[64];
    assert_int_equal(tokens_of(map, part, got), n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(got[i], want[i]);
}

/* The drawing of tokens.h. A zigzag over the 16 tokens together would give rank 0 tokens 0..3 and
 * 12..15. */
static void sequences_are_cut_one_by_one(void **state)
{
    (void)state;
    const SpanMap *map;
    DO(tokens_map(&arena, TOKENS_ZIGZAG, 2, 8, 2, &map));
    expect_tokens(map, 0, (const int64_t[]){0, 1, 6, 7, 8, 9, 14, 15}, 8);
    expect_tokens(map, 1, (const int64_t[]){2, 3, 4, 5, 10, 11, 12, 13}, 8);
    DO(tokens_map(&arena, TOKENS_CONTIGUOUS, 2, 8, 2, &map));
    expect_tokens(map, 0, (const int64_t[]){0, 1, 2, 3, 8, 9, 10, 11}, 8);
    DO(tokens_map(&arena, TOKENS_STRIPED, 2, 8, 2, &map));
    expect_tokens(map, 1, (const int64_t[]){1, 3, 5, 7, 9, 11, 13, 15}, 8);
}

/* Each token once; the parts' totals differ by no more than `slack`. */
static void expect_tiled(const SpanMap *map, int64_t tokens, int64_t slack)
{
    int64_t least = INT64_MAX, most = 0, all = 0, *list;
    char *seen;
    DO(ARENA_NEW(&arena, tokens + 1, &seen));
    DO(ARENA_NEW(&arena, tokens + 1, &list));
    for (int p = 0; p < map->n_parts; p++) {
        const int64_t n = tokens_of(map, p, list);
        for (int64_t i = 0; i < n; i++) assert_int_equal(seen[list[i]]++, 0);
        least = n < least ? n : least;
        most = n > most ? n : most;
        all += n;
    }
    assert_int_equal(all, tokens);
    assert_false(map->copies);
    if (most - least > slack) fail_msg("parts of %lld to %lld", (long long)least, (long long)most);
}

static void lengths_need_not_divide(void **state)
{
    (void)state;
    for (int kind = TOKENS_CONTIGUOUS; kind < N_TOKEN_MAPS; kind++)
        for (int parts = 1; parts <= 8; parts++)
            for (int64_t n = 1; n <= 5; n++)
                for (int64_t length = 1; length <= 37; length += 4) {
                    const SpanMap *map;
                    const size_t mark = arena_mark(&arena);
                    DO(tokens_map(&arena, (TokenMap)kind, n, length, parts, &map));
                    expect_tiled(map, n * length, 2);
                    arena_rewind(&arena, mark);
                }
}

/* Documents of any length, some shorter than the number of parts, one empty. */
static void documents_of_any_length(void **state)
{
    (void)state;
    const int64_t length[] = {1, 137, 0, 2041, 89, 3, 2, 1, 1, 700}, n = 10;
    int64_t start[11] = {0};
    for (int i = 0; i < n; i++) start[i + 1] = start[i] + length[i];
    for (int kind = TOKENS_CONTIGUOUS; kind < N_TOKEN_MAPS; kind++)
        for (int parts = 1; parts <= 12; parts++) {
            const SpanMap *map;
            DO(tokens_by_document(&arena, (TokenMap)kind, start, n, parts, &map));
            expect_tiled(map, start[n], 4);
            for (int d = 0; d < n; d++) /* of each document every part has its even share */
                for (int p = 0; p < parts; p++) {
                    const HeldSpans h = held_map(map, p);
                    const int64_t share = held_below(&h, start[d + 1]) - held_below(&h, start[d]);
                    assert_in_range(share, length[d] / (2 * parts) * 2,
                                    length[d] / (2 * parts) * 2 + 2);
                }
        }
    expect_error("order",
                 tokens_by_document(&arena, TOKENS_ZIGZAG, (int64_t[]){0, 5, 3}, 2, 2,
                                    (const SpanMap *[1]){NULL}),
                 ERR_CHECK, "document 1 has tokens 5 to 3");
}

/* Pairs (query, key <= query) of each sequence: the causal work of a part. */
static int64_t causal_pairs(const SpanMap *map, int part, int64_t seq_len)
{
    const HeldSpans h = held_map(map, part);
    int64_t pairs = 0;
    for (int64_t i = 0; i < h.count; i++) pairs += held_at(&h, i) % seq_len + 1;
    return pairs;
}

static void causal_work(void **state)
{
    (void)state;
    enum { P = 4, T = 64 * P };
    const SpanMap *map;
    const int64_t mean = 3 * T * (T + 1) / 2 / P;
    DO(tokens_map(&arena, TOKENS_ZIGZAG, 3, T, P, &map));
    for (int p = 0; p < P; p++) assert_int_equal(causal_pairs(map, p, T), mean);
    assert_true(tokens_causal_balance(map, T, 0) == 1);
    DO(tokens_map(&arena, TOKENS_CONTIGUOUS, 3, T, P, &map));
    const double most = (double)causal_pairs(map, P - 1, T) / (double)mean;
    assert_true(tokens_causal_balance(map, T, 0) == most);
    assert_true(most > 1.7 && most < (2.0 * P - 1) / P);
    /* A window of one part: only the tokens of the first part have fewer keys. */
    const double part = T / P, full = part * part, first = part * (part + 1) / 2;
    assert_true(tokens_causal_balance(map, T, T / P) == full * P / (first + (P - 1) * full));
}

/* A striped part of 16,384 tokens is one box, not one per token. */
static void striped_parts_are_one_box(void **state)
{
    (void)state;
    const View v = {2, {4, 1}, {"cp", "tp"}};
    const Shape s = {2, {2 * 16384, 8}};
    const SpanMap *map;
    const HeldPiece *piece;
    Mesh m;
    int64_t n;
    DO(mesh_init(&m, 4, &v, 1));
    DO(tokens_map(&arena, TOKENS_STRIPED, 2, 16384, 4, &map));
    const Layout l = layout_cut_map(layout_replicate(0), 0, 1, map);
    const Holding h = holding_of(&l, &m, &s, 3);
    DO(holding_pieces(&h, &arena, &piece, &n));
    assert_int_equal(n, 2); /* one for each sequence */
    assert_int_equal(piece[1].box.lo[0], 16384 + 3);
    assert_int_equal(piece[1].box.skip[0], 3);
    assert_int_equal(piece[1].at, 4096 * 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_are_cut_one_by_one), cmocka_unit_test(lengths_need_not_divide),
        cmocka_unit_test(documents_of_any_length),      cmocka_unit_test(causal_work),
        cmocka_unit_test(striped_parts_are_one_box),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
