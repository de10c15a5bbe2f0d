/* test_dims.c -- bounded extents of a part of the rows: live rows against a count of each row. */
#include "support/expect.h"

#include "ir/ops.h"
#include "layout/layout.h"
#include "layout/tokens.h"

enum { SLOT = 3, MOST = 64 };

/* Rows of the part below `live`, counted one by one; they must come first. */
static int64_t count_live(const HeldSpans *h, int64_t live)
{
    int64_t n = 0;
    for (int64_t i = 0; i < h->count; i++)
        if (held_at(h, i) < live) {
            assert_int_equal(n, i);
            n++;
        }
    return n;
}

static void expect_live(const HeldSpans *h)
{
    const Dim d = dim_held(SLOT, h);
    assert_int_equal(d.cap, h->count);
    for (int64_t live = 0; live <= MOST + 1; live++) {
        assert_int_equal(held_below(h, live), count_live(h, live));
        assert_int_equal(dim_live(&d, live), count_live(h, live));
        for (int64_t from = 0; from <= d.cap; from++) { /* windows: chunks of the head */
            const Dim part = dim_part(d, from, (d.cap - from + 1) / 2);
            HeldSpans less = *h;
            less.from += from;
            less.count = part.cap;
            assert_int_equal(dim_live(&part, live), count_live(&less, live));
        }
    }
}

/* Maps of one and of several sequences, and even parts of their parts (cp outer, tp inner). */
static void expect_map(const SpanMap *map)
{
    for (int p = 0; p < map->n_parts; p++)
        for (int inner = 1; inner <= 3; inner++)
            for (int q = 0; q < inner; q++) {
                const HeldSpans h = held_even(held_map(map, p), 1, inner, q);
                expect_live(&h);
            }
}

static void live_rows_of_maps(void **state)
{
    (void)state;
    static Arena a;
    const SpanMap *map;
    DO(arena_open(&a, "dims", (size_t)1 << 24));
    for (int parts = 1; parts <= 5; parts++)
        for (int64_t extent = 1; extent <= 26; extent += 5) {
            DO(tokens_map(&a, TOKENS_ZIGZAG, 1, extent, parts, &map));
            expect_map(map);
            DO(tokens_map(&a, TOKENS_STRIPED, 1, extent, parts, &map));
            expect_map(map);
        }
    const HeldSpans whole = held_all(19), part = held_even(whole, 1, 4, 2);
    expect_live(&whole);
    expect_live(&part);
    arena_close(&a);
}

/* Two ways to the same rows are one Dim: ops compare the extents of their operands. */
static void equal_rows_are_equal(void **state)
{
    (void)state;
    const Span a[] = {{0, 4, 1}, {8, 12, 1}, {16, 20, 1}}, b[] = {{8, 12, 1}, {16, 20, 1}};
    const Span c[] = {{8, 12, 1}, {16, 22, 1}};
    const HeldSpans late = {a, 3, 4, 8}, same = {b, 2, 0, 8}, other = {c, 2, 1, 8};
    assert_true(dim_same(dim_held(SLOT, &late), dim_held(SLOT, &same)));
    assert_false(dim_same(dim_held(SLOT, &late), dim_held(SLOT, &other)));
    const HeldSpans range = {a, 3, 5, 2}, plain = {NULL, 0, 9, 2};
    assert_true(dim_same(dim_held(SLOT, &range), dim_held(SLOT, &plain)));
    const HeldSpans none = {a, 3, 12, 0}, nothing = {NULL, 0, 7, 0};
    assert_true(dim_same(dim_held(SLOT, &none), dim_held(SLOT, &nothing)));
    assert_false(dim_same(dim_rows(8, SLOT), dim_of(8)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_rows_of_maps),
        cmocka_unit_test(equal_rows_are_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
