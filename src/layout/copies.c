/* copies.c -- the runs of a rank: found along the one dim that has copies, then repeated for the
 * dims before it.
 *
 * Two neighbors in a part are in one run if they are neighbors in every part that holds one of
 * them. That does not depend on the rank, so all holders find the same runs. */
#include "layout/copies.h"

#include <stdlib.h>

typedef struct {
    int64_t at, count; /* elements of the dim, in the rank's order */
    int64_t first;     /* coordinate of the first */
} DimRun;

typedef struct {
    const Cut *cut;
    int parts, n;
    HeldSpans mine;
    DimRun *run;
} Finder;

static Err find_cut(const Layout *l, const Cut **out)
{
    *out = NULL;
    for (int i = 0; i < l->n_cuts; i++) {
        const Cut *c = &l->cut[i];
        if (!c->map || !c->map->copies) continue;
        if (*out)
            return err_fail(ERR_CHECK, "dims %d and %d are both cut with copies; one may be",
                            (*out)->dim, c->dim);
        *out = c;
    }
    for (int i = 0; *out && i < l->n_cuts; i++)
        if (&l->cut[i] != *out && l->cut[i].dim == (*out)->dim)
            return err_fail(ERR_CHECK, "dim %d is cut with copies, and cut once more", (*out)->dim);
    return OK;
}

static bool same_run(const Finder *f, int64_t x, int64_t y)
{
    for (int part = 0; part < f->parts; part++) {
        const HeldSpans h = held_map(f->cut->map, part);
        const int64_t at = held_find(&h, x), next = held_find(&h, y);
        if (at < 0 ? next >= 0 : next != at + 1) return false;
    }
    return true;
}

static int holders(const Finder *f, int64_t x)
{
    int n = 0;
    for (int part = 0; part < f->parts; part++) {
        const HeldSpans h = held_map(f->cut->map, part);
        n += held_find(&h, x) >= 0;
    }
    return n;
}

static int by_coordinate(const void *a, const void *b)
{
    const int64_t x = ((const DimRun *)a)->first, y = ((const DimRun *)b)->first;
    return (x > y) - (x < y);
}

static void find_runs(Finder *f)
{
    for (int64_t i = 0; i < f->mine.count; i++) {
        const int64_t x = held_at(&f->mine, i);
        if (i > 0 && same_run(f, held_at(&f->mine, i - 1), x)) {
            f->run[f->n - 1].count++;
            continue;
        }
        f->run[f->n++] = (DimRun){i, 1, x};
    }
    int kept = 0;
    for (int i = 0; i < f->n; i++)
        if (holders(f, f->run[i].first) > 1) f->run[kept++] = f->run[i];
    f->n = kept;
    qsort(f->run, (size_t)f->n, sizeof *f->run, by_coordinate);
}

static Err holder_list(const Finder *f, const Mesh *m, int view, int rank, int64_t x, Arena *a,
                       RankList *out)
{
    int32_t *list;
    int n = 0;
    TRY(ARENA_NEW(a, f->parts, &list));
    for (int part = 0; part < f->parts; part++) {
        const HeldSpans h = held_map(f->cut->map, part);
        if (held_find(&h, x) >= 0) list[n++] = mesh_move(m, view, f->cut->axes, part, rank);
    }
    *out = (RankList){n, list};
    return OK;
}

Err copies_of(const Layout *l, const Mesh *m, const Shape *s, int rank, Arena *a,
              const CopyRun **out, int *n)
{
    const Holding held = holding_of(l, m, s, rank);
    Finder f = {0};
    CopyRun *run;
    *n = 0;
    *out = NULL;
    TRY(find_cut(l, &f.cut));
    if (!f.cut || holding_count(&held) == 0) return OK;
    f.parts = mesh_parts(m, l->view, f.cut->axes);
    f.mine = held.dim[f.cut->dim];
    TRY(ARENA_NEW(a, f.mine.count, &f.run));
    find_runs(&f);
    const int64_t stride = held.stride[f.cut->dim], each = f.mine.count * stride;
    const int64_t outer = shape_count(&held.kept) / each;
    TRY(ARENA_NEW(a, f.n * outer, &run));
    for (int i = 0; i < f.n; i++) {
        RankList who;
        TRY(holder_list(&f, m, l->view, rank, f.run[i].first, a, &who));
        for (int64_t o = 0; o < outer; o++) {
            const int64_t lo = o * each + f.run[i].at * stride;
            run[(*n)++] = (CopyRun){lo, lo + f.run[i].count * stride, who};
        }
    }
    *out = run;
    return OK;
}
