/* test_pairs.c -- (query, key) pairs of attention, against a count of every pair: span maps,
 * windows, several sequences, blocks of keys; parts together have the pairs of the whole. */
#include "support/expect.h"

#include "ir/graph.h"
#include "ir/pairs.h"
#include "layout/tokens.h"

enum { ARENA = 1 << 20 };

static Attr attr_of(int64_t sequence, int64_t span)
{
    return (Attr){.attention = {.span = span, .sequence = sequence}};
}

static HeldSpans held_of(const Dim *d) { return (HeldSpans){d->span, d->n_spans, d->from, d->cap}; }

static double counted(const Attr *a, const Dim *queries, const Dim *keys, int64_t moved_by)
{
    const HeldSpans q = held_of(queries), k = held_of(keys);
    const int64_t sequence = a->attention.sequence;
    double pairs = 0;
    for (int64_t i = 0; i < q.count; i++)
        for (int64_t j = 0; j < k.count; j++) {
            const int64_t row = held_at(&q, i) + moved_by;
            const int64_t key = held_at(&k, j) + (keys->slot == NO_SLOT ? a->attention.key_at : 0);
            const bool seen = key <= row && row - key < a->attention.span;
            pairs += key / sequence == row / sequence && (seen || a->attention.full);
        }
    return pairs;
}

/* Rows of a part under a token map; map 3 is a window of a striped part. */
static Dim rows_of(Arena *arena, int map, int64_t sequences, int64_t seq_len, int parts, int part)
{
    const SpanMap *m;
    const TokenMap kind = map == 0 ? TOKENS_CONTIGUOUS : map == 1 ? TOKENS_ZIGZAG : TOKENS_STRIPED;
    DO(tokens_map(arena, kind, sequences, seq_len, parts, &m));
    HeldSpans h = held_map(m, part);
    if (map == 3) h = held_even(h, 1, 2, part % 2);
    return dim_held(SLOT_ZERO, &h);
}

static void every_map_counts_its_pairs(void **state)
{
    static const int64_t sequences[][2] = {{1, 24}, {3, 7}, {2, 13}, {5, 1}};
    Arena arena;
    (void)state;
    for (int s = 0; s < 4; s++)
        for (int parts = 1; parts <= 5; parts++)
            for (int64_t span = 1; span <= sequences[s][1]; span += 1 + span / 3) {
                const int64_t rows = sequences[s][0] * sequences[s][1];
                const Attr a = attr_of(sequences[s][1], span);
                const Dim all = dim_rows(rows, SLOT_ZERO);
                const double whole = attention_pairs(&a, &all, &all, 0);
                DO(arena_open(&arena, "pairs", ARENA));
                assert_true(whole == counted(&a, &all, &all, 0));
                for (int map = 0; map < 4; map++) {
                    double sum = 0;
                    for (int p = 0; p < parts; p++) {
                        const Dim q =
                            rows_of(&arena, map, sequences[s][0], sequences[s][1], parts, p);
                        const double pairs = attention_pairs(&a, &q, &all, 0);
                        assert_true(pairs == counted(&a, &q, &all, 0));
                        sum += pairs;
                    }
                    if (map < 3) assert_true(sum == whole);
                }
                arena_close(&arena);
            }
}

/* Every part of the queries with every part of the keys, as in a ring; the longest span has a full
 * mask. */
static void blocks_of_keys_add_up(void **state)
{
    enum { ROWS = 26, PARTS = 3 };
    Arena arena;
    (void)state;
    DO(arena_open(&arena, "pairs", ARENA));
    for (int map = 0; map < 3; map++)
        for (int64_t span = 4; span <= 26; span += 11) {
            Attr a = attr_of(ROWS / 2, span);
            a.attention.full = span == 26;
            const Dim all = dim_rows(ROWS, SLOT_ZERO);
            double sum = 0;
            for (int i = 0; i < PARTS; i++)
                for (int j = 0; j < PARTS; j++) {
                    const Dim q = rows_of(&arena, map, 2, ROWS / 2, PARTS, i);
                    const Dim k = rows_of(&arena, map, 2, ROWS / 2, PARTS, j);
                    const double pairs = attention_pairs(&a, &q, &k, 0);
                    assert_true(pairs == counted(&a, &q, &k, 0));
                    sum += pairs;
                }
            assert_true(sum == attention_pairs(&a, &all, &all, 0));
            if (span == 26) assert_true(sum == 2 * (ROWS / 2) * (ROWS / 2));
        }
    Attr a = attr_of(ROWS, ROWS); /* a block without a slot starts at key_at */
    const Dim q = dim_rows(ROWS, SLOT_ZERO), k = dim_of(5);
    a.attention.key_at = 9;
    assert_true(attention_pairs(&a, &q, &k, 0) == counted(&a, &q, &k, 0));
    arena_close(&arena);
}

/* A slice of 5 rows after 7 others. */
static void slices_see_the_keys_before_them(void **state)
{
    const Attr a = attr_of(20, 20), window = attr_of(20, 3), none = attr_of(0, 20);
    const Dim q = dim_rows(5, SLOT_ZERO), k = dim_rows(20, SLOT_ZERO);
    (void)state;
    assert_true(attention_pairs(&a, &q, &k, 0) == 15);
    assert_true(attention_pairs(&a, &q, &k, 7) == 15 + 5 * 7);
    assert_true(attention_pairs(&window, &q, &k, 7) == 15);
    assert_true(attention_pairs(&none, &q, &k, 7) == 5 * 20);
}

/* Contiguous parts of a causal sequence: the last has (2 P - 1) / P of the mean, up to the
 * diagonal; zigzag is even if 2 P divides the sequence. */
static void imbalance_of_the_maps(void **state)
{
    enum { LONG = 4096 };
    const Attr a = attr_of(LONG, LONG);
    const Dim all = dim_rows(LONG, SLOT_ZERO);
    Arena arena;
    (void)state;
    DO(arena_open(&arena, "pairs", ARENA));
    for (int parts = 2; parts <= 16; parts *= 2) {
        const double mean = attention_pairs(&a, &all, &all, 0) / parts;
        const Dim last = rows_of(&arena, 0, 1, LONG, parts, parts - 1);
        const double most = attention_pairs(&a, &last, &all, 0) / mean;
        const double want = (2.0 * parts - 1) / parts;
        assert_true(most < want && most > want * (1 - 2.0 / LONG));
        for (int p = 0; p < parts; p++) {
            const Dim part = rows_of(&arena, 1, 1, LONG, parts, p);
            assert_true(attention_pairs(&a, &part, &all, 0) == mean);
        }
    }
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_map_counts_its_pairs), cmocka_unit_test(blocks_of_keys_add_up),
        cmocka_unit_test(slices_see_the_keys_before_them), cmocka_unit_test(imbalance_of_the_maps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
