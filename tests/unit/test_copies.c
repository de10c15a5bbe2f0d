/* test_copies.c -- runs of copies against brute force: the holders of each element, and the runs
 * that each rank lists, in order. */
#include "support/expect.h"

#include <stdlib.h>

#include "layout/copies.h"

typedef struct {
    Mesh mesh;
    Shape shape;
    Layout layout;
    Arena arena;
} Case;

static uint64_t mix(uint64_t *x) /* splitmix64 */
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool holds(const Case *c, int rank, int64_t global)
{
    const Holding h = holding_of(&c->layout, &c->mesh, &c->shape, rank);
    return holding_find(&h, global) >= 0;
}

static bool in_group(const CopyRun *r, int rank)
{
    for (int i = 0; i < r->holders.n; i++)
        if (r->holders.rank[i] == rank) return true;
    return false;
}

/* Checks a rank's runs: each element is in at most one, and in one exactly if another rank along tp
 * holds it too; the group is all of these. */
static void check_rank(Case *c, int rank, const CopyRun *run, int n)
{
    const unsigned tp = mesh_axes(&c->mesh, VIEW_DENSE, "tp");
    const Holding h = holding_of(&c->layout, &c->mesh, &c->shape, rank);
    RankList all;
    DO(mesh_group(&c->mesh, VIEW_DENSE, tp, rank, &c->arena, &all));
    for (int64_t e = 0; e < holding_count(&h); e++) {
        const int64_t global = holding_global(&h, e);
        int found = 0, holders = 0;
        for (int i = 0; i < all.n; i++) holders += holds(c, all.rank[i], global);
        for (int r = 0; r < n; r++) {
            if (e < run[r].lo || e >= run[r].hi) continue;
            found++;
            assert_int_equal(run[r].holders.n, holders);
            for (int i = 0; i < all.n; i++)
                assert_int_equal(in_group(&run[r], all.rank[i]), holds(c, all.rank[i], global));
        }
        assert_int_equal(found, holders > 1);
    }
}

/* All members of a group list the same elements for it, run for run, in one order. */
static void check_pair(const Case *c, int a, int b, const CopyRun *run[], const int n[])
{
    const Holding ha = holding_of(&c->layout, &c->mesh, &c->shape, a),
                  hb = holding_of(&c->layout, &c->mesh, &c->shape, b);
    int j = 0;
    for (int i = 0; i < n[a]; i++) {
        if (!in_group(&run[a][i], b)) continue;
        while (j < n[b] && !in_group(&run[b][j], a)) j++;
        assert_true(j < n[b]);
        assert_int_equal(run[b][j].hi - run[b][j].lo, run[a][i].hi - run[a][i].lo);
        for (int64_t e = 0; e < run[a][i].hi - run[a][i].lo; e++)
            assert_int_equal(holding_global(&ha, run[a][i].lo + e),
                             holding_global(&hb, run[b][j].lo + e));
        j++;
    }
    while (j < n[b] && !in_group(&run[b][j], a)) j++;
    assert_int_equal(j, n[b]);
}

/* Two runs of one group that are adjacent on all holders would be one. */
static void check_longest(const Case *c, const CopyRun *run[], const int n[])
{
    for (int a = 0; a < c->mesh.world; a++)
        for (int i = 0; i + 1 < n[a]; i++) {
            const CopyRun *r = &run[a][i], *s = &run[a][i + 1];
            bool adjacent = r->hi == s->lo && r->holders.n == s->holders.n;
            for (int k = 0; adjacent && k < r->holders.n; k++) {
                const int b = r->holders.rank[k];
                const Holding ha = holding_of(&c->layout, &c->mesh, &c->shape, a),
                              hb = holding_of(&c->layout, &c->mesh, &c->shape, b);
                adjacent = r->holders.rank[k] == s->holders.rank[k] &&
                           holding_find(&hb, holding_global(&ha, s->lo)) ==
                               holding_find(&hb, holding_global(&ha, r->hi - 1)) + 1;
            }
            assert_false(adjacent);
        }
}

static void check_case(Case *c)
{
    const CopyRun *run[16];
    int n[16];
    for (int rank = 0; rank < c->mesh.world; rank++) {
        DO(copies_of(&c->layout, &c->mesh, &c->shape, rank, &c->arena, &run[rank], &n[rank]));
        check_rank(c, rank, run[rank], n[rank]);
    }
    for (int a = 0; a < c->mesh.world; a++)
        for (int b = 0; b < c->mesh.world; b++)
            if (a != b) check_pair(c, a, b, run, n);
    check_longest(c, run, n);
}

static void key_heads(void **state)
{
    (void)state;
    static const int heads[][2] = {{8, 2}, {4, 2}, {6, 3}, {12, 1}, {4, 4}, {6, 2}};
    for (int h = 0; h < 6; h++)
        for (int tp = 1; tp <= 8; tp++) {
            Case c = {.shape = {2, {heads[h][1] * 3, 5}}};
            const SpanMap *map;
            DO(arena_open(&c.arena, "test", (size_t)1 << 24));
            DO(mesh_sized(&(MeshSizes){1, 2, tp, 1, 0, 0, 0, 0, false}, &c.mesh));
            DO(spans_key_heads(&c.arena, heads[h][0], heads[h][1], 3, tp, &map));
            c.layout = layout_cut_map(layout_replicate(VIEW_DENSE), 0,
                                      mesh_axes(&c.mesh, VIEW_DENSE, "tp"), map);
            check_case(&c);
            arena_close(&c.arena);
        }
}

/* Any spans, in any order, striped too; on either dim, with an even cut of the other. */
static void random_maps(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint64_t x = seed;
        const int tp = 2 + (int)(mix(&x) % 3), dim = (int)(mix(&x) % 2);
        const int64_t extent = 4 + (int64_t)(mix(&x) % 9);
        Case c = {.shape = {2, {dim ? 3 : extent, dim ? extent : 3}}};
        int32_t first[8] = {0};
        Span span[64];
        const SpanMap *map;
        DO(arena_open(&c.arena, "test", (size_t)1 << 24));
        DO(mesh_sized(&(MeshSizes){1, 2, tp, 1, 0, 0, 0, 0, false}, &c.mesh));
        int n = 0;
        for (int part = 0; part < tp; part++) {
            const int64_t cut = (int64_t)(mix(&x) % (uint64_t)extent);
            const bool swap = mix(&x) % 2, stripe = mix(&x) % 3 == 0, all = part == 0;
            if (stripe && !all)
                span[n++] = (Span){cut % 2, extent, 2};
            else {
                const Span low = {0, cut, 1}, high = {all ? cut : cut + 1, extent, 1};
                if (cut > 0) span[n++] = swap && high.lo < extent ? high : low;
                if (high.lo < extent) span[n++] = swap && cut > 0 ? low : high;
            }
            first[part + 1] = n;
        }
        DO(spans_map(&c.arena, extent, tp, first, span, &map));
        c.layout = layout_cut_map(layout_replicate(VIEW_DENSE), dim,
                                  mesh_axes(&c.mesh, VIEW_DENSE, "tp"), map);
        if (seed % 2)
            c.layout = layout_cut(c.layout, 1 - dim, mesh_axes(&c.mesh, VIEW_DENSE, "dp"), 1);
        DO(layout_check(&c.layout, &c.mesh, &c.shape, "w", &c.arena));
        check_case(&c);
        arena_close(&c.arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(key_heads), cmocka_unit_test(random_maps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
