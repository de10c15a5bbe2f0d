/* test_layout.c -- layouts by brute force: every element is looked up on every rank. `tiles` is
 * the property that all layouts share; each case adds facts that are easily checked by hand. */
#include "support/test_arena.h"

#include <string.h>

#include "layout/holding.h"
#include "layout/tokens.h"

static Mesh mesh_of(int dp, int cp, int tp)
{
    const View v = {
        4, {2, dp, cp, tp}, {"pp", "dp", "cp", "tp"}}; /* two stages: owners stay on theirs */
    Mesh m;
    assert_int_equal(mesh_init(&m, 2 * dp * cp * tp, &v, 1), OK);
    return m;
}

enum { DP = 2, CP = 4, TP = 8 };

/* Storage and pieces are the same elements, each once, at the offsets of holding_global. */
static void pieces_fill_storage(const Holding *h)
{
    const HeldPiece *piece;
    int64_t n;
    char *seen;
    assert_int_equal(holding_pieces(h, &test_arena, &piece, &n), OK);
    assert_int_equal(ARENA_NEW(&test_arena, holding_count(h) + 1, &seen), OK);
    for (int64_t i = 0; i < n; i++) {
        const Box *b = &piece[i].box;
        int64_t x[MAX_DIMS];
        memcpy(x, b->lo, sizeof x);
        for (int d = 0; d >= 0;) { /* an odometer over the box */
            int64_t at = piece[i].at, global = 0;
            for (d = 0; d < b->ndim; d++) {
                at += (x[d] - b->lo[d]) / (b->skip[d] + 1) * h->stride[d];
                global = global * h->global.n[d] + x[d];
            }
            assert_in_range(at, 0, holding_count(h) - 1);
            assert_int_equal(holding_global(h, at), global);
            assert_int_equal(seen[at]++, 0);
            for (d = b->ndim - 1; d >= 0 && (x[d] += b->skip[d] + 1) >= b->hi[d]; d--)
                x[d] = b->lo[d];
        }
    }
    for (int64_t at = 0; at < holding_count(h); at++) assert_int_equal(seen[at], 1);
}

/* Returns how often each global element is held on one stage. */
static const int *tiles(const Layout *l, const Mesh *m, const Shape *s)
{
    int *held;
    assert_int_equal(layout_check(l, m, s, "tensor", &test_arena), OK);
    assert_int_equal(ARENA_NEW(&test_arena, shape_count(s) + 1, &held), OK);
    for (int rank = 0; rank < m->world / 2; rank++) {
        const Holding h = holding_of(l, m, s, rank);
        const Shape local = holding_shape(&h);
        int64_t found = 0;
        assert_int_equal(shape_count(&local), holding_count(&h));
        for (int64_t e = 0; e < shape_count(s); e++) {
            const int64_t at = holding_find(&h, e);
            if (at < 0) continue;
            found++;
            held[e]++;
            assert_int_equal(holding_global(&h, at), e);
        }
        assert_int_equal(found, holding_count(&h));
        pieces_fill_storage(&h);
    }
    const int alike = mesh_parts(m, l->view, layout_replicate_axes(l, m));
    for (int64_t e = 0; e < shape_count(s); e++) {
        const int owner = layout_owner(l, m, s, m->world - 1, e);
        const Holding h = holding_of(l, m, s, owner);
        assert_true(owner >= m->world / 2); /* on the stage of the given rank */
        assert_true(holding_find(&h, e) >= 0);
        assert_int_equal(mesh_part(m, l->view, layout_replicate_axes(l, m), owner), 0);
        if (layout_has_copies(l))
            assert_true(held[e] >= alike);
        else
            assert_int_equal(held[e], alike);
    }
    return held;
}

static Shape local_of(const Layout *l, const Mesh *m, const Shape *s, int rank)
{
    const Holding h = holding_of(l, m, s, rank);
    return holding_shape(&h);
}

static Layout dense(void) { return layout_replicate(VIEW_DENSE); }

static void even_by_heads(void **state)
{
    (void)state;
    const Mesh m = mesh_of(2, 1, 3);
    const Shape s = {2, {8 * 5, 7}}; /* 8 heads of 5 */
    const Layout l = layout_cut(dense(), 0, TP, 5);
    tiles(&l, &m, &s);
    for (int tp = 0; tp < 3; tp++) {
        const Shape local = local_of(&l, &m, &s, 3 + tp);
        assert_int_equal(local.n[0], (tp == 2 ? 2 : 3) * 5);
        assert_int_equal(local.n[1], 7);
    }
    assert_int_equal(layout_replicate_axes(&l, &m), DP | CP);
}

static void key_heads_have_copies(void **state)
{
    (void)state;
    const Shape s = {2, {2 * 5, 3}};
    const SpanMap *map;
    assert_int_equal(spans_key_heads(&test_arena, 8, 2, 5, 3, &map), OK);
    assert_true(map->copies);
    Layout l = layout_cut_map(dense(), 0, TP, map);
    Mesh m = mesh_of(1, 1, 3);
    const int *held = tiles(&l, &m, &s);
    for (int64_t e = 0; e < 30; e++) assert_int_equal(held[e], 2);
    const int64_t rows[3] = {5, 10, 5}; /* the middle rank reads both */
    for (int r = 0; r < 3; r++) assert_int_equal(local_of(&l, &m, &s, r).n[0], rows[r]);
    assert_int_equal(layout_owner(&l, &m, &s, 0, 29), 1);

    assert_int_equal(spans_key_heads(&test_arena, 8, 2, 5, 8, &map), OK);
    l = layout_cut_map(dense(), 0, TP, map);
    m = mesh_of(1, 1, 8);
    held = tiles(&l, &m, &s);
    for (int64_t e = 0; e < 30; e++) assert_int_equal(held[e], 4);
    assert_int_equal(layout_owner(&l, &m, &s, 0, 15), 4);

    /* Copies, each with its own flat cut over dp. */
    m = mesh_of(3, 1, 8);
    l = layout_cut(l, DIM_FLAT, DP, 4);
    held = tiles(&l, &m, &s);
    for (int64_t e = 0; e < 30; e++) assert_int_equal(held[e], 4);
    assert_int_equal(spans_key_heads(&test_arena, 8, 3, 5, 8, &map), ERR_CONFIG);
}

static void fused_qkv(void **state)
{
    (void)state;
    const SpanMap *map;
    const int64_t width[3] = {12, 6, 6}, grain[3] = {2, 2, 2}; /* 6 heads, 3 key heads, of 2 */
    const Shape s = {2, {24, 5}};
    assert_int_equal(spans_fused(&test_arena, width, grain, 3, 2, &map), OK);
    assert_false(map->copies);
    Layout l = layout_cut_map(dense(), 0, TP, map);
    Mesh m = mesh_of(1, 1, 2);
    tiles(&l, &m, &s);
    const Holding h = holding_of(&l, &m, &s, 1);
    assert_int_equal(h.kept.n[0], 6 + 2 + 2);
    assert_int_equal(holding_global(&h, 0), 6 * 5);              /* its q begins at row 6, */
    assert_int_equal(holding_global(&h, 6 * 5), 16 * 5);         /* its k at row 12 + 4, */
    assert_int_equal(holding_global(&h, 8 * 5 + 1), 22 * 5 + 1); /* its v at row 18 + 4 */

    m = mesh_of(3, 1, 2);
    l = layout_cut(l, DIM_FLAT, DP, 16);
    tiles(&l, &m, &s);
    /* tp 1 keeps 50 elements, 4 grains of 16, the last of 2: 32, 16, 2 */
    const int64_t count[3] = {32, 16, 2};
    for (int dp = 0; dp < 3; dp++) {
        const Shape local = local_of(&l, &m, &s, dp * 2 + 1);
        assert_int_equal(local.ndim, 1);
        assert_int_equal(local.n[0], count[dp]);
    }
}

static void vocabulary_that_does_not_divide(void **state)
{
    (void)state;
    const Mesh m = mesh_of(1, 1, 4);
    const Shape s = {2, {50257, 2}};
    const Layout l = layout_cut(dense(), 0, TP, 1);
    assert_int_equal(layout_check(&l, &m, &s, "embed", &test_arena), OK);
    int64_t next = 0;
    for (int r = 0; r < 4; r++) {
        const Holding h = holding_of(&l, &m, &s, r);
        assert_int_equal(h.kept.n[0], r == 0 ? 12565 : 12564);
        for (int64_t i = 0; i < holding_count(&h); i++)
            assert_int_equal(holding_global(&h, i), next++);
    }
    assert_int_equal(next, 50257 * 2);
}

static void zigzag_then_even(void **state)
{
    (void)state;
    const SpanMap *map;
    const Mesh m = mesh_of(1, 3, 2);
    const Shape s = {2, {26, 3}}; /* tokens; 26 does not divide by 6 */
    assert_int_equal(tokens_map(&test_arena, TOKENS_ZIGZAG, 1, 26, 3, &map), OK);
    Layout l = layout_cut_map(dense(), 0, CP, map);
    tiles(&l, &m, &s);
    const Holding h = holding_of(&l, &m, &s, 0); /* chunks 0 and 5 of 5 5 4 4 4 4 */
    assert_int_equal(h.kept.n[0], 9);
    assert_int_equal(holding_global(&h, 5 * 3), 22 * 3);
    l = layout_cut(l, 0, TP, 1);
    tiles(&l, &m, &s);
    const Holding half = holding_of(&l, &m, &s, 1); /* tp 1's part of the same: 22 .. 25 */
    assert_int_equal(half.kept.n[0], 4);
    assert_int_equal(holding_global(&half, 0), 22 * 3);
}

static void striped(void **state)
{
    (void)state;
    const SpanMap *map;
    const Mesh m = mesh_of(2, 3, 1);
    const Shape s = {2, {3, 7}};
    assert_int_equal(tokens_map(&test_arena, TOKENS_STRIPED, 1, 7, 3, &map), OK);
    Layout l = layout_cut_map(dense(), 1, CP, map);
    tiles(&l, &m, &s);
    const Holding h = holding_of(&l, &m, &s, 1);
    assert_int_equal(h.kept.n[1], 2);
    assert_int_equal(holding_global(&h, 3), 7 + 4);
    l = layout_cut(layout_cut(l, 0, DP, 1), DIM_FLAT, TP, 1);
    tiles(&l, &m, &s);
    assert_int_equal(tokens_map(&test_arena, TOKENS_STRIPED, 1, 2, 3, &map),
                     OK); /* fewer elements than parts */
    assert_int_equal(held_map(map, 2).count, 0);
}

static void bias_smaller_than_the_ranks(void **state)
{
    (void)state;
    const Mesh m = mesh_of(7, 1, 1);
    const Shape s = {1, {5}};
    const Layout l = layout_cut(dense(), DIM_FLAT, DP, 1);
    tiles(&l, &m, &s);
    for (int r = 0; r < 7; r++) assert_int_equal(local_of(&l, &m, &s, r).n[0], r < 5);
    const Layout block = layout_cut(dense(), DIM_FLAT, DP, 16); /* one grain: all on the first */
    tiles(&block, &m, &s);
    assert_int_equal(local_of(&block, &m, &s, 0).n[0], 5);
}

/* A pack of two parameters under ZeRO: the remainder of each differs along tp, so the home of the
 * second is a flat map that uses tp again. first [7, 3] and second [5, 3] on tp=2, dp=3, blocks of
 * 4: on tp 0 they keep 12 and 9 of 21 elements, on tp 1 9 and 6 of 15. */
static void flat_map_of_a_pack(void **state)
{
    (void)state;
    const Mesh m = mesh_of(3, 1, 2);
    const Shape s = {2, {5, 3}};
    const int64_t first_count[2] = {12, 9}, pack_count[2] = {21, 15};
    int32_t first[7] = {0};
    Span span[6];
    for (int part = 0; part < 6; part++) { /* dp outer, tp inner */
        const Span p = even_part(pack_count[part % 2], 4, 3, part / 2);
        const int64_t at = first_count[part % 2];
        const Span mine = {p.lo > at ? p.lo - at : 0, p.hi - at, 1};
        first[part + 1] = first[part];
        if (mine.hi > mine.lo) span[first[part + 1]++] = mine;
    }
    const SpanMap *map;
    assert_int_equal(spans_map(&test_arena, 9, 6, first, span, &map), OK);
    const Layout l = layout_cut_map(layout_cut(dense(), 0, TP, 1), DIM_FLAT, DP | TP, map);
    tiles(&l, &m, &s);
    assert_false(layout_has_copies(&l)); /* though the flat ranges of tp 0 and tp 1 overlap */

    span[0].lo++; /* an element of tp 0's remainder now has no holder, though tp 1 has its number */
    assert_int_equal(spans_map(&test_arena, 9, 6, first, span, &map), OK);
    const Layout bad = layout_cut_map(layout_cut(dense(), 0, TP, 1), DIM_FLAT, DP | TP, map);
    assert_int_equal(layout_check(&bad, &m, &s, "w", &test_arena), ERR_CHECK);
}

/* Three dims, cuts of cuts, zero extents and scalars. */
static void edge_cases(void **state)
{
    (void)state;
    const Mesh m = mesh_of(2, 3, 2);
    const Shape cube = {3, {3, 5, 4}}, none = {2, {0, 6}}, scalar = {0, {0}};
    Layout l = layout_cut(layout_cut(dense(), 1, CP, 1), DIM_FLAT, DP | TP, 3);
    tiles(&l, &m, &cube);
    l = layout_cut(layout_cut(dense(), DIM_FLAT, DP, 7), DIM_FLAT, CP, 2);
    tiles(&l, &m, &cube);
    l = layout_cut(layout_cut(dense(), 0, CP, 1), 1, DP, 4);
    tiles(&l, &m, &none);
    l = dense();
    tiles(&l, &m, &scalar);
    l = layout_partial(l, TP);
    assert_int_equal(layout_owner(&l, &m, &cube, 0, 3), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_by_heads),
        cmocka_unit_test(key_heads_have_copies),
        cmocka_unit_test(fused_qkv),
        cmocka_unit_test(vocabulary_that_does_not_divide),
        cmocka_unit_test(zigzag_then_even),
        cmocka_unit_test(striped),
        cmocka_unit_test(bias_smaller_than_the_ranks),
        cmocka_unit_test(flat_map_of_a_pack),
        cmocka_unit_test(edge_cases),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
