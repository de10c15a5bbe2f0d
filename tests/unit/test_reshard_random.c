/* test_reshard_random.c -- reshards between random layouts on random meshes: each element
 * arrives once, from as few other ranks as possible; and back. */
#include "reshard_test.h"

#include "base/philox.h"
#include "layout/tokens.h"

static Arena arena;
static Random stream;
static uint64_t drawn;

static int64_t draw(int64_t n) { return (int64_t)(random_bits(&stream, drawn++) % (uint64_t)n); }

enum { N_MESHES = 11 };
static Mesh mesh[N_MESHES];

static void make_meshes(void)
{
    static const int size[N_MESHES][5] = {{1, 1, 1, 1, 1}, {1, 1, 2, 1, 1}, {1, 1, 1, 1, 3},
                                          {1, 2, 1, 1, 2}, {1, 1, 7, 1, 1}, {2, 1, 2, 1, 2},
                                          {1, 2, 2, 1, 3}, {1, 1, 3, 2, 2}, {1, 1, 1, 4, 3},
                                          {3, 2, 1, 2, 1}, {1, 1, 5, 1, 2}};
    for (int i = 0; i < N_MESHES; i++) {
        View v[2] = {{5, {0}, {"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
                     {3, {0}, {"pp", "edp", "ep"}}};
        int world = 1;
        for (int a = 0; a < 5; a++) world *= v[0].size[a] = size[i][a];
        const int stage = world / size[i][0], edp = stage % 2 == 0 ? 2 : 1;
        v[1].size[0] = size[i][0];
        v[1].size[1] = edp;
        v[1].size[2] = stage / edp;
        DO(mesh_init(&mesh[i], world, v, 2));
    }
}

/* Parts of [0, n) that overlap at random and together hold it all. */
static const SpanMap *random_copies(int64_t n, int parts)
{
    const SpanMap *map;
    int32_t *first;
    Span *span;
    DO(ARENA_NEW(&arena, parts + 1, &first));
    DO(ARENA_NEW(&arena, 2 * parts, &span));
    for (int p = 0; p < parts; p++) {
        const Span mine = even_part(n, 1, parts, p);
        Span s = {mine.lo - draw(4), mine.hi + draw(4), 1};
        if (s.lo < 0) s.lo = 0;
        if (s.hi > n) s.hi = n;
        first[p + 1] = first[p];
        if (s.lo >= s.hi) continue;
        const int64_t middle = s.lo + draw(s.hi - s.lo);
        if (middle > s.lo) { /* stored in two runs, the later one first */
            span[first[p + 1]++] = (Span){middle, s.hi, 1};
            s.hi = middle;
        }
        span[first[p + 1]++] = s;
    }
    DO(spans_map(&arena, n, parts, first, span, &map));
    return map;
}

static const SpanMap *everything(int64_t n, int parts)
{
    const SpanMap *map;
    int32_t *first;
    Span *span;
    DO(ARENA_NEW(&arena, parts + 1, &first));
    DO(ARENA_NEW(&arena, parts, &span));
    for (int p = 0; p < parts; p++) {
        span[p] = (Span){0, n, 1};
        first[p + 1] = n > 0 ? p + 1 : 0;
    }
    DO(spans_map(&arena, n, parts, first, span, &map));
    return map;
}

static const SpanMap *random_map(int64_t n, int parts)
{
    const SpanMap *map;
    const int64_t width[2] = {n / 3, n - n / 3}, grain[2] = {1, 2};
    switch (draw(n % 4 == 0 && n > 0 ? 6 : 5)) {
    case 0:
        DO(tokens_map(&arena, TOKENS_ZIGZAG, 1, n, parts, &map));
        return map;
    case 1:
        DO(tokens_map(&arena, TOKENS_STRIPED, 1, n, parts, &map));
        return map;
    case 2:
        DO(spans_fused(&arena, width, grain, 2, parts, &map));
        return map;
    case 3:
        return random_copies(n, parts);
    case 4:
        return everything(n, parts);
    default:
        DO(spans_key_heads(&arena, 8, 4, n / 4, parts, &map));
        return map;
    }
}

/* A flat map that reuses the axes of earlier cuts: each remainder is cut separately. */
static const SpanMap *remainder_map(const Layout *l, const Mesh *m, const Shape *s, unsigned axes,
                                    unsigned fresh)
{
    const int n = mesh_parts(m, l->view, axes);
    const int64_t grain = 1 + draw(4);
    const SpanMap *map;
    int32_t *first;
    Span *span;
    int64_t extent = 0;
    DO(ARENA_NEW(&arena, n + 1, &first));
    DO(ARENA_NEW(&arena, n, &span));
    for (int p = 0; p < n; p++) {
        const int rank = mesh_move(m, l->view, axes, p, 0);
        const Holding h = holding_of(l, m, s, rank);
        const Span mine = even_part(holding_count(&h), grain, mesh_parts(m, l->view, fresh),
                                    mesh_part(m, l->view, fresh, rank));
        if (extent < holding_count(&h)) extent = holding_count(&h);
        first[p + 1] = first[p];
        if (mine.lo < mine.hi) span[first[p + 1]++] = mine;
    }
    DO(spans_map(&arena, extent, n, first, span, &map));
    return map;
}

static unsigned some_axes(const Mesh *m, int view, unsigned of)
{
    const unsigned axes = of & (unsigned)draw(1 << m->view[view].n_axes);
    return mesh_parts(m, view, axes) > 1 || draw(8) == 0 ? axes : 0; /* size 1: now and then */
}

static Layout add_flat(Layout l, const Mesh *m, const Shape *s, unsigned *left, unsigned used)
{
    const unsigned axes = some_axes(m, l.view, *left);
    if (!axes) return l;
    *left &= ~axes;
    if (draw(2) == 0) return layout_cut(l, DIM_FLAT, axes, 1 + draw(6));
    return layout_cut_map(l, DIM_FLAT, axes | used, remainder_map(&l, m, s, axes | used, axes));
}

static Layout random_layout(const Mesh *m, const Shape *s)
{
    Layout l = layout_replicate((int)draw(4) == 0 ? VIEW_EXPERT : VIEW_DENSE);
    unsigned left = mesh_all_axes(m, l.view) & ~mesh_axes(m, l.view, "pp"), used = 0;
    bool is_cut[MAX_DIMS] = {false};
    for (int64_t i = draw(4); i > 0 && s->ndim > 0; i--) {
        const int dim = (int)draw(s->ndim);
        const unsigned axes = some_axes(m, l.view, left);
        if (!axes) continue;
        if (draw(2) == 0)
            l = layout_cut(l, dim, axes, 1 + draw(5));
        else if (!is_cut[dim])
            l = layout_cut_map(l, dim, axes, random_map(s->n[dim], mesh_parts(m, l.view, axes)));
        else
            continue;
        is_cut[dim] = true;
        left &= ~axes;
        used |= axes;
    }
    if (s->ndim > 0 && draw(3) == 0) l = add_flat(l, m, s, &left, used);
    if (draw(3) == 0) l = layout_partial(l, some_axes(m, l.view, left));
    DO(layout_check(&l, m, s, "random", &arena));
    return l;
}

static Sharding random_place(const Shape *s)
{
    Sharding p = {.mesh = &mesh[draw(N_MESHES)], .stage = ALL_STAGES};
    p.layout = random_layout(p.mesh, s);
    const unsigned pp = mesh_axes(p.mesh, p.layout.view, "pp");
    if (draw(2) == 0) p.stage = (int)draw(mesh_parts(p.mesh, p.layout.view, pp));
    p.sum_copies = draw(4) == 0;
    return p;
}

/* Another layout on the same mesh, or one with a common prefix; unreduced sums may stay so. */
static Sharding related_place(const Sharding *p, const Shape *s)
{
    Sharding q = *p;
    q.sum_copies = false;
    if (draw(2) == 0)
        q.layout = random_layout(p->mesh, s);
    else
        q.layout.n_cuts = (uint8_t)draw(p->layout.n_cuts + 1);
    q.layout.partial = 0;
    unsigned used = 0;
    for (int i = 0; i < q.layout.n_cuts; i++) used |= q.layout.cut[i].axes;
    if (q.layout.view == p->layout.view && draw(3) == 0)
        q.layout.partial = (uint8_t)(p->layout.partial & ~used & (unsigned)draw(256));
    return q;
}

static const Shape shapes[] = {{2, {12, 8}}, {2, {7, 5}}, {1, {5}},  {3, {3, 4, 5}},
                               {0, {0}},     {2, {0, 6}}, {1, {24}}, {4, {2, 3, 1, 4}}};

static void any_layout_to_any_other(void **state)
{
    (void)state;
    Sim sim;
    int kinds[N_RESHARD_KINDS] = {0};
    sim_open(&sim);
    for (int i = 0; i < 4000; i++) {
        const size_t mark = arena_mark(&arena);
        const Shape *s = &shapes[draw((int64_t)(sizeof shapes / sizeof *shapes))];
        const Sharding from = random_place(s);
        Sharding to = draw(2) == 0 ? related_place(&from, s) : random_place(s);
        if (to.mesh != from.mesh) to.layout.partial = 0;
        to.sum_copies = false;
        Reshard r;
        if (reshard_plan(&from, &to, s, "w", &r) != OK) to.layout.partial = 0;
        sim_run(&sim, &from, &to, s);
        kinds[sim.r.kind]++;
        arena_rewind(&arena, mark);
    }
    for (int k = 0; k < N_RESHARD_KINDS; k++)
        if (kinds[k] < 20) fail_msg("only %d reshards of kind %d", kinds[k], k);
    sim_close(&sim);
}

/* A round trip restores all holders. The reverse reshard begins with the values that the first one
 * ends with, since both ends are checked against the element. */
static void round_trip(void **state)
{
    (void)state;
    Sim sim;
    sim_open(&sim);
    for (int i = 0; i < 300; i++) {
        const size_t mark = arena_mark(&arena);
        const Shape *s = &shapes[draw(4)];
        Sharding from = random_place(s), to = random_place(s);
        from.layout.partial = to.layout.partial = 0;
        from.sum_copies = to.sum_copies = false;
        sim_run(&sim, &from, &to, s);
        uint64_t *kept[MAX_WORLD];
        for (int rank = 0; rank < to.mesh->world; rank++) {
            const Holding h = holding_of(&to.layout, to.mesh, s, rank);
            if (!sim_has(&to, rank)) continue;
            DO(ARENA_NEW(&arena, holding_count(&h) + 1, &kept[rank]));
            memcpy(kept[rank], sim.fold[rank], sizeof(uint64_t) * (size_t)holding_count(&h));
        }
        sim_run(&sim, &to, &from, s);
        for (int rank = 0; rank < to.mesh->world; rank++) {
            const Holding h = holding_of(&to.layout, to.mesh, s, rank);
            if (sim_has(&to, rank))
                assert_memory_equal(kept[rank], sim.from[rank],
                                    sizeof(uint64_t) * (size_t)holding_count(&h));
        }
        arena_rewind(&arena, mark);
    }
    sim_close(&sim);
}

static int open_all(void **state)
{
    (void)state;
    stream = random_named(7, "reshards");
    if (arena_open(&arena, "test", (size_t)1 << 30) != OK) return -1;
    make_meshes();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    arena_close(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_to_any_other),
        cmocka_unit_test(round_trip),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
