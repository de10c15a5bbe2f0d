/* test_mesh.c -- the mesh is arithmetic: checked against the formula in its head comment, and by
 * counting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "layout/mesh.h"

static Mesh mesh_24(void)
{
    /* All sizes differ, and one is 1: a swapped axis cannot hide. */
    const View views[2] = {{4, {2, 3, 1, 4}, {"pp", "dp", "cp", "tp"}},
                           {4, {2, 2, 6, 1}, {"pp", "edp", "ep", "etp"}}};
    Mesh m;
    assert_int_equal(mesh_init(&m, 24, views, 2), OK);
    return m;
}

static void one_rank_is_a_mesh_of_ones(void **state)
{
    (void)state;
    const Mesh m = mesh_single();
    Mesh copy;
    int coord[MAX_AXES];
    assert_int_equal(mesh_init(&copy, 1, m.view, 2), OK);
    mesh_coords(&m, VIEW_EXPERT, 0, coord);
    for (int i = 0; i < 4; i++) assert_int_equal(coord[i], 0);
    assert_int_equal(mesh_axes(&m, VIEW_DENSE, "tp"), 8);
    assert_int_equal(mesh_axes(&m, VIEW_EXPERT, "ep"), 4);
    assert_int_equal(mesh_axes(&m, VIEW_EXPERT, "tp"), 0);
    assert_int_equal(mesh_parts(&m, VIEW_DENSE, 15), 1);
}

static void coordinates_are_row_major(void **state)
{
    (void)state;
    const Mesh m = mesh_24();
    for (int rank = 0; rank < m.world; rank++) {
        int c[MAX_AXES];
        mesh_coords(&m, VIEW_DENSE, rank, c);
        assert_int_equal(((c[0] * 3 + c[1]) * 1 + c[2]) * 4 + c[3], rank);
        assert_int_equal(mesh_rank(&m, VIEW_DENSE, c), rank);
        assert_int_equal(mesh_part(&m, VIEW_DENSE, 2 | 8, rank), c[1] * 4 + c[3]);
        for (int part = 0; part < 12; part++) {
            const int moved = mesh_move(&m, VIEW_DENSE, 2 | 8, part, rank);
            assert_int_equal(mesh_part(&m, VIEW_DENSE, 2 | 8, moved), part);
            assert_int_equal(mesh_part(&m, VIEW_DENSE, 1 | 4, moved),
                             mesh_part(&m, VIEW_DENSE, 1 | 4, rank));
        }
    }
}

/* A group holds exactly the ranks that agree on all other axes, in order, and each member finds the
 * same group. */
static void groups_are_cosets(void **state)
{
    (void)state;
    const Mesh m = mesh_24();
    Arena a;
    assert_int_equal(arena_open(&a, "test", 1 << 20), OK);
    for (int view = 0; view < 2; view++)
        for (unsigned axes = 0; axes < 16; axes++)
            for (int rank = 0; rank < m.world; rank++) {
                RankList g;
                int at = 0;
                arena_rewind(&a, 0);
                assert_int_equal(mesh_group(&m, view, axes, rank, &a, &g), OK);
                for (int other = 0; other < m.world; other++)
                    if (mesh_part(&m, view, 15 & ~axes, other) ==
                        mesh_part(&m, view, 15 & ~axes, rank))
                        assert_int_equal(g.rank[at++], other);
                assert_int_equal(at, g.n);
            }
    arena_close(&a);
}

static void hybrid_sharding_splits_dp(void **state)
{
    (void)state;
    const View v = {5, {1, 2, 3, 1, 2}, {"pp", "dp_replicate", "dp_shard", "cp", "tp"}};
    Mesh m;
    assert_int_equal(mesh_init(&m, 12, &v, 1), OK);
    assert_int_equal(mesh_axes(&m, 0, "dp"), 2 | 4);
    assert_int_equal(mesh_axes(&m, 0, "dp_shard"), 4);
}

/* cp is one axis, or ring x heads; both lie between dp and tp. */
static void context_splits_cp(void **state)
{
    static const struct {
        int cp, heads, axes;
        const char *text;
    } table[] = {{6, 0, 4, "pp=2 dp_replicate=2 dp_shard=3 cp=6 tp=5"},
                 {6, 6, 4, "pp=2 dp_replicate=2 dp_shard=3 cp=6 tp=5"},
                 {6, 2, 4 | 8, "pp=2 dp_replicate=2 dp_shard=3 cp_ring=3 cp_heads=2 tp=5"}};
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        MeshSizes sizes = {2, 3, 5, 2, table[i].cp, table[i].heads, 0, 0, false};
        Mesh m;
        Arena a;
        const char *s;
        assert_int_equal(arena_open(&a, "test", 1 << 20), OK);
        assert_int_equal(mesh_sized(&sizes, &m), OK);
        assert_int_equal(m.world, 2 * 6 * 6 * 5);
        assert_int_equal(mesh_axes(&m, VIEW_DENSE, "cp"), table[i].axes << 1);
        Text t = text_in(&a);
        mesh_view_text(&t, &m, VIEW_DENSE);
        assert_int_equal(text_done(&t, &s), OK);
        assert_string_equal(s, table[i].text);
        arena_close(&a);
        sizes.cp_heads = 4;
        assert_int_equal(mesh_sized(&sizes, &m), ERR_CONFIG);
        assert_non_null(strstr(err_text(), "mesh.cp_heads=4: does not divide mesh.cp=6; "
                                           "set mesh.cp_heads=3 or 6"));
    }
}

/* The expert view folds ep and etp into the ranks of a stage; edp is the rest. */
static void experts_fold_into_a_stage(void **state)
{
    MeshSizes sizes = {.dp_shard = 4, .cp = 3, .tp = 2, .pp = 2, .ep = 6, .etp = 2};
    Mesh m;
    Arena a;
    const char *s;
    (void)state;
    assert_int_equal(arena_open(&a, "test", 1 << 20), OK);
    assert_int_equal(mesh_sized(&sizes, &m), OK);
    Text t = text_in(&a);
    mesh_view_text(&t, &m, VIEW_EXPERT);
    assert_int_equal(text_done(&t, &s), OK);
    assert_string_equal(s, "pp=2 edp=2 ep=6 etp=2");
    assert_int_equal(m.world, 48);
    assert_int_equal(mesh_part(&m, VIEW_EXPERT, mesh_axes(&m, VIEW_EXPERT, "ep"), 24 + 17), 2);
    arena_close(&a);
    sizes.ep = 7;
    assert_int_equal(mesh_sized(&sizes, &m), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "mesh.ep=7 x mesh.etp=2 does not divide the 24 ranks of a "
                                       "pipeline stage, dp x cp x tp; set mesh.ep=6"));
    sizes.etp = 5;
    assert_int_equal(mesh_sized(&sizes, &m), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "set mesh.ep=1 and mesh.etp=1"));
}

static void refuses(int world, const View *views, int n, const char *words)
{
    Mesh m = mesh_single();
    assert_int_equal(mesh_init(&m, world, views, n), ERR_CONFIG);
    if (!strstr(err_text(), words)) fail_msg("'%s' is not in '%s'", words, err_text());
    assert_int_equal(m.world, 1); /* written only on success */
}

static void bad_meshes_are_refused(void **state)
{
    (void)state;
    const View eight = {2, {2, 4}, {"pp", "tp"}};
    refuses(6, &eight, 1, "(pp=2 tp=4) has 8 ranks, the world has 6");
    refuses(8, &(View){2, {8, 0}, {"pp", "tp"}}, 1, "mesh.tp=0");
    refuses(8, &(View){2, {2, 4}, {"tp", "tp"}}, 1, "twice");
    refuses(8, &(View){9, {8}, {"pp"}}, 1, "9 axes");
    refuses(8, &(View){3, {1 << 20, 1 << 20, 1 << 30}, {"a", "b", "c"}}, 1, "the world has 8");
    const View other[2] = {eight, {2, {4, 2}, {"pp", "etp"}}};
    refuses(8, other, 2, "pp=2 and pp=4");
    const View inner[2] = {eight, {2, {4, 2}, {"etp", "pp"}}}; /* same size, other ranks */
    refuses(8, inner, 2, "as the first axis");
}

/* Ranks along dp and cp have other tokens; ZeRO shards over both, but not over dp_replicate. */
static void data_axes(void **state)
{
    (void)state;
    const View hybrid[2] = {
        {5, {1, 2, 3, 4, 2}, {"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
        {4, {1, 6, 8, 1}, {"pp", "edp", "ep", "etp"}},
    };
    Mesh m = mesh_24();
    assert_int_equal(mesh_data_axes(&m, VIEW_DENSE), 2 | 4);
    assert_int_equal(mesh_shard_axes(&m, VIEW_DENSE), 2 | 4);
    assert_int_equal(mesh_data_axes(&m, VIEW_EXPERT), 2);
    assert_int_equal(mesh_init(&m, 48, hybrid, 2), OK);
    assert_int_equal(mesh_data_axes(&m, VIEW_DENSE), 2 | 4 | 8);
    assert_int_equal(mesh_shard_axes(&m, VIEW_DENSE), 4 | 8);
    assert_int_equal(mesh_data_axes(&m, VIEW_EXPERT), 2);
    assert_int_equal(mesh_shard_axes(&m, VIEW_EXPERT), 2);
}

static void views_are_printed(void **state)
{
    (void)state;
    const Mesh m = mesh_24();
    Arena a;
    const char *s;
    assert_int_equal(arena_open(&a, "test", 1 << 20), OK);
    Text t = text_in(&a);
    mesh_view_text(&t, &m, VIEW_DENSE);
    text_add(&t, "; ");
    mesh_axes_text(&t, &m, VIEW_EXPERT, 2 | 4);
    assert_int_equal(text_done(&t, &s), OK);
    assert_string_equal(s, "pp=2 dp=3 cp=1 tp=4; edp x ep");
    arena_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_is_a_mesh_of_ones),
        cmocka_unit_test(coordinates_are_row_major),
        cmocka_unit_test(groups_are_cosets),
        cmocka_unit_test(hybrid_sharding_splits_dp),
        cmocka_unit_test(bad_meshes_are_refused),
        cmocka_unit_test(views_are_printed),
        cmocka_unit_test(data_axes),
        cmocka_unit_test(context_splits_cp),
        cmocka_unit_test(experts_fold_into_a_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
