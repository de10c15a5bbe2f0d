/* test_layout_words.c -- layouts as words: compared, simplified, printed, refused. test_layout.c
 * checks their meaning. */
#include "support/test_arena.h"

#include <string.h>

#include "layout/layout.h"
#include "layout/tokens.h"

static Mesh mesh_of(int dp, int cp, int tp)
{
    const View v = {4, {2, dp, cp, tp}, {"pp", "dp", "cp", "tp"}};
    Mesh m;
    assert_int_equal(mesh_init(&m, 2 * dp * cp * tp, &v, 1), OK);
    return m;
}

enum { DP = 2, CP = 4, TP = 8 };

static Layout dense(void) { return layout_replicate(VIEW_DENSE); }

static void equal_and_simple(void **state)
{
    (void)state;
    const SpanMap *a, *b, *c;
    assert_int_equal(tokens_map(&test_arena, TOKENS_ZIGZAG, 1, 16, 2, &a), OK);
    assert_int_equal(tokens_map(&test_arena, TOKENS_ZIGZAG, 1, 16, 2, &b), OK);
    assert_int_equal(tokens_map(&test_arena, TOKENS_STRIPED, 1, 16, 2, &c), OK);
    const Layout x = layout_cut_map(dense(), 0, CP, a), y = layout_cut_map(dense(), 0, CP, b);
    const Layout z = layout_cut_map(dense(), 0, CP, c), even = layout_cut(dense(), 0, CP, 1);
    const Layout other[] = {z,
                            even,
                            dense(),
                            layout_partial(x, TP),
                            layout_cut_map(dense(), 1, CP, a),
                            layout_cut_map(dense(), 0, DP, a)};
    assert_true(layout_equal(&x, &y));
    for (int i = 0; i < 6; i++) assert_false(layout_equal(&x, &other[i]));

    const Mesh one = mesh_single(), two = mesh_of(2, 1, 1);
    const Layout full = layout_partial(layout_cut(layout_cut(dense(), 0, TP, 2), 1, DP, 1), CP);
    const Layout simple = layout_simplify(&full, &one), dp = layout_simplify(&full, &two);
    const Layout want = layout_cut(dense(), 1, DP, 1);
    assert_false(layout_is_replicate(&full));
    assert_true(layout_is_replicate(&simple));
    assert_true(layout_equal(&dp, &want));

    const Span swapped[2] = {{4, 8, 1}, {0, 4, 1}};
    const SpanMap *swap;
    assert_int_equal(spans_map(&test_arena, 8, 1, (int32_t[]){0, 2}, swapped, &swap), OK);
    const Layout reorders = layout_cut_map(dense(), 0, TP, swap);
    const Layout kept = layout_simplify(&reorders, &one);
    assert_int_equal(kept.n_cuts, 1); /* one part, but not in order: not replicate */
}

static void prints(const Layout *l, const Mesh *m, const char *want)
{
    const char *got;
    Text t = text_in(&test_arena);
    layout_text(&t, l, m);
    assert_int_equal(text_done(&t, &got), OK);
    assert_string_equal(got, want);
}

static void printed(void **state)
{
    (void)state;
    const Mesh m = mesh_of(2, 2, 3);
    const SpanMap *zigzag, *keys;
    assert_int_equal(tokens_map(&test_arena, TOKENS_ZIGZAG, 1, 16, 2, &zigzag), OK);
    assert_int_equal(spans_key_heads(&test_arena, 8, 2, 4, 3, &keys), OK);
    Layout l = dense();
    prints(&l, &m, "replicate");
    l = layout_partial(l, DP);
    prints(&l, &m, "partial on dp");
    l = layout_cut(l, 0, TP, 1);
    prints(&l, &m, "shard(0) on tp, partial on dp");
    l = layout_cut(layout_cut(dense(), 1, TP, 64), DIM_FLAT, DP | CP, 16);
    prints(&l, &m, "shard(1 by 64) on tp, shard(flat by 16) on dp x cp");
    l = layout_cut(layout_cut_map(dense(), 0, CP, zigzag), 0, TP, 1);
    prints(&l, &m, "shard(0 by 3 spans) on cp, shard(0) on tp");
    l = layout_cut_map(dense(), 0, TP, keys);
    prints(&l, &m, "shard(0 by 3 spans with copies) on tp");
}

static void bad_maps_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t extent;
        int32_t first[3];
        Span span[3];
        const char *words;
    } bad[] = {
        {9, {0, 1, 2}, {{0, 4, 1}, {5, 9, 1}}, "element 4 of 9 is in no part"},
        {9, {0, 1, 2}, {{0, 4, 1}, {4, 8, 1}}, "element 8 of 9 is in no part"},
        {9, {0, 1, 2}, {{1, 4, 1}, {4, 9, 1}}, "element 0 of 9 is in no part"},
        {9, {0, 2, 3}, {{0, 4, 1}, {3, 5, 1}, {5, 9, 1}}, "part 0 holds element 3 twice"},
        {9, {0, 2, 3}, {{0, 9, 2}, {4, 5, 1}, {1, 9, 2}}, "part 0 holds element 4 twice"},
        {9, {0, 1, 2}, {{0, 4, 1}, {4, 10, 1}}, "[4, 10) by 1"},
        {9, {0, 1, 2}, {{0, 4, 1}, {4, 9, 0}}, "[4, 9) by 0"},
        {9, {0, 2, 1}, {{0, 4, 1}, {4, 9, 1}}, "begins at span 2 and ends at 1"},
        {9, {1, 1, 2}, {{0, 4, 1}, {4, 9, 1}}, "from span 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const SpanMap *map = NULL;
        assert_int_equal(spans_map(&test_arena, bad[i].extent, 2, bad[i].first, bad[i].span, &map),
                         ERR_CHECK);
        if (!strstr(err_text(), bad[i].words))
            fail_msg("'%s' is not in '%s'", bad[i].words, err_text());
        assert_null(map);
    }
}

static void bad_layouts_are_refused(void **state)
{
    (void)state;
    const Mesh m = mesh_of(2, 2, 3);
    const Shape s = {2, {16, 6}}, scalar = {0, {0}};
    const SpanMap *two, *keys;
    assert_int_equal(tokens_map(&test_arena, TOKENS_ZIGZAG, 1, 16, 2, &two), OK);
    assert_int_equal(spans_key_heads(&test_arena, 8, 2, 24, 2, &keys), OK);
    const Layout none = layout_cut(dense(), 0, DP, 1);
    const Layout flat = layout_cut(dense(), DIM_FLAT, DP, 1);
    const Span twice[2] = {{0, 96, 1}, {90, 96, 1}};
    const SpanMap *copies;
    assert_int_equal(spans_map(&test_arena, 96, 2, (int32_t[]){0, 1, 2}, twice, &copies), OK);
    const struct {
        Layout l;
        const char *words;
    } bad[] = {
        {layout_cut(dense(), 2, TP, 1), "w: cut 0 is of dim 2; the tensor has 2"},
        {layout_cut(dense(), 0, 16, 1), "over axes 0x10"},
        {layout_cut(dense(), 0, 0, 1), "over axes 0x0"},
        {layout_cut(none, 1, DP | TP, 1), "an earlier cut used (0x2)"},
        {layout_partial(none, DP), "both cut and partial (0x2)"},
        {layout_cut(dense(), 0, TP, 0), "a grain of 0"},
        {layout_cut(flat, 0, TP, 1), "follows a flat cut"},
        {layout_cut_map(none, 0, CP, two), "not the first cut of its dim"},
        {layout_cut_map(dense(), 0, TP, two), "2 parts over axes of 3 ranks"},
        {layout_cut_map(dense(), 1, CP, two), "16 elements on dim 1, which has 6"},
        {layout_cut_map(dense(), DIM_FLAT, DP, copies), "copies come from cuts of dims"},
        {layout_cut_map(dense(), DIM_FLAT, DP, two), "is in no part"},
        {layout_partial(dense(), 32), "partial over axes 0x20"},
        {layout_replicate(VIEW_EXPERT), "view 1; the mesh has 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(layout_check(&bad[i].l, &m, &s, "w", &test_arena), ERR_CHECK);
        if (!strstr(err_text(), bad[i].words))
            fail_msg("'%s' is not in '%s'", bad[i].words, err_text());
    }
    assert_int_equal(layout_check(&flat, &m, &scalar, "w", &test_arena), ERR_CHECK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_and_simple),
        cmocka_unit_test(printed),
        cmocka_unit_test(bad_maps_are_refused),
        cmocka_unit_test(bad_layouts_are_refused),
    };
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
