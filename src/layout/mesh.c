/* mesh.c -- arithmetic of row-major boxes of ranks.
 *
 * The stride of an axis is the product of the sizes after it; a coordinate is (rank / stride) %
 * size. Each function is O(axes), but mesh_group, which is as long as its result. */
#include "layout/mesh.h"

#include <stdio.h>
#include <string.h>

const char *view_name(int view)
{
    static const char *const name[MAX_VIEWS] = {"dense", "expert", "weight"};
    return name[view];
}

static int axis_stride(const View *v, int axis)
{
    int stride = 1;
    for (int i = axis + 1; i < v->n_axes; i++) stride *= v->size[i];
    return stride;
}

static int axis_named(const View *v, const char *name)
{
    for (int i = 0; i < v->n_axes; i++)
        if (strcmp(v->name[i], name) == 0) return i;
    return -1;
}

static const char *view_format(const View *v, char *buffer, size_t bytes)
{
    size_t at = 0;
    buffer[0] = '\0';
    for (int i = 0; i < v->n_axes && at < bytes; i++)
        at += (size_t)snprintf(buffer + at, bytes - at, "%s%s=%d", i ? " " : "", v->name[i],
                               v->size[i]);
    return buffer;
}

static Err view_check(const View *v, const char *name, int world)
{
    char text[256];
    if (v->n_axes < 1 || v->n_axes > MAX_AXES)
        return err_fail(ERR_CONFIG, "mesh: the %s view has %d axes; it can have 1 to %d", name,
                        v->n_axes, MAX_AXES);
    int64_t ranks = 1;
    for (int i = 0; i < v->n_axes; i++) {
        if (v->size[i] < 1)
            return err_fail(ERR_CONFIG, "mesh.%s=%d: an axis has at least 1 rank; 1 turns it off",
                            v->name[i], v->size[i]);
        if (axis_named(v, v->name[i]) != i)
            return err_fail(ERR_CONFIG, "mesh: the %s view names the axis %s twice", name,
                            v->name[i]);
        ranks *= v->size[i];
        if (ranks > INT32_MAX) break; /* already more than any world; do not overflow */
    }
    if (ranks != world)
        return err_fail(ERR_CONFIG,
                        "mesh: the %s view (%s) has %lld ranks, the world has %d; set the axes so "
                        "that their product is %d",
                        name, view_format(v, text, sizeof text), (long long)ranks, world, world);
    return OK;
}

/* ERR_CONFIG unless both views put each rank on the same stage. A parameter's stage must not depend
 * on the view in which its layout is written. */
static Err stages_agree(const View *a, const View *b)
{
    const int i = axis_named(a, "pp"), j = axis_named(b, "pp");
    const int stages_a = i < 0 ? 1 : a->size[i], stages_b = j < 0 ? 1 : b->size[j];
    const bool same =
        stages_a == stages_b && (stages_a == 1 || axis_stride(a, i) == axis_stride(b, j));
    if (same) return OK;
    return err_fail(ERR_CONFIG,
                    "mesh: the dense and another view disagree on stages (pp=%d and pp=%d); "
                    "give both the same pp, as the first axis",
                    stages_a, stages_b);
}

Err mesh_init(Mesh *m, int world, const View *views, int n_views)
{
    if (n_views < 1 || n_views > MAX_VIEWS)
        return err_fail(ERR_CONFIG, "mesh: %d views; there are 1 to %d", n_views, MAX_VIEWS);
    Mesh made = {.world = world, .n_views = n_views};
    for (int v = 0; v < n_views; v++) {
        TRY(view_check(&views[v], view_name(v), world));
        TRY(stages_agree(&views[0], &views[v]));
        made.view[v] = views[v];
    }
    *m = made;
    return OK;
}

Mesh mesh_single(void)
{
    return (Mesh){.world = 1,
                  .n_views = 2,
                  .view = {{4, {1, 1, 1, 1}, {"pp", "dp", "cp", "tp"}},
                           {4, {1, 1, 1, 1}, {"pp", "edp", "ep", "etp"}}}};
}

static int one_if_none(int n) { return n ? n : 1; }

static void add_axis(View *v, const char *name, int size)
{
    v->name[v->n_axes] = name;
    v->size[v->n_axes++] = size;
}

/* Adds an axis, or the two that it consists of if both have more than one rank. */
static void add_pair(View *v, const char *name, const char *outer_name, int outer,
                     const char *inner_name, int inner, bool two)
{
    if (two) {
        add_axis(v, outer_name, outer);
        add_axis(v, inner_name, inner);
    } else
        add_axis(v, name, outer * inner);
}

/* The dense view with cp as an axis that shards weights. */
static View weight_view(const View *dense)
{
    static const char *const name[][2] = {
        {"cp", "weight"}, {"cp_ring", "weight_ring"}, {"cp_heads", "weight_heads"}};
    View v = *dense;
    for (int i = 0; i < v.n_axes; i++)
        for (int k = 0; k < 3; k++)
            if (strcmp(v.name[i], name[k][0]) == 0) v.name[i] = name[k][1];
    return v;
}

int mesh_largest_part(int n, int64_t most)
{
    int best = 1;
    for (int i = 1; i <= n && i <= most; i++)
        if (n % i == 0) best = i;
    return best;
}

Err mesh_check_heads(const char *origin, int64_t cp, int64_t heads)
{
    char above[32] = "";
    if (cp < 1 || heads < 1)
        return err_fail(ERR_CONFIG, "mesh.cp=%lld and mesh.cp_heads=%lld must be at least 1",
                        (long long)cp, (long long)heads);
    if (cp % heads == 0) return OK;
    int64_t next = heads;
    while (next < cp && cp % next != 0) next++;
    if (heads < cp) snprintf(above, sizeof above, " or %lld", (long long)next);
    return err_fail(ERR_CONFIG,
                    "%s%smesh.cp_heads=%lld: does not divide mesh.cp=%lld; set mesh.cp_heads=%d%s, "
                    "or leave it out",
                    origin ? origin : "", origin ? ": " : "", (long long)heads, (long long)cp,
                    mesh_largest_part((int)cp, heads), above);
}

Err mesh_check_experts(const char *origin, int64_t stage, int64_t ep, int64_t etp)
{
    if (ep < 1 || etp < 1)
        return err_fail(ERR_CONFIG, "mesh.ep=%lld and mesh.etp=%lld must be at least 1",
                        (long long)ep, (long long)etp);
    if (stage % etp == 0 && stage / etp % ep == 0) return OK;
    const int most = stage % etp == 0 ? mesh_largest_part((int)(stage / etp), ep) : 1;
    return err_fail(
        ERR_CONFIG,
        "%s%smesh.ep=%lld x mesh.etp=%lld does not divide the %lld rank%s of a pipeline "
        "stage, dp x cp x tp; set mesh.ep=%d%s",
        origin ? origin : "", origin ? ": " : "", (long long)ep, (long long)etp, (long long)stage,
        stage == 1 ? "" : "s", most, stage % etp == 0 ? "" : " and mesh.etp=1");
}

Err mesh_sized(const MeshSizes *sizes, Mesh *out)
{
    const int replicate = one_if_none(sizes->dp_replicate), shard = one_if_none(sizes->dp_shard);
    const int tp = one_if_none(sizes->tp), pp = one_if_none(sizes->pp);
    const int cp = one_if_none(sizes->cp), heads = one_if_none(sizes->cp_heads);
    const int ep = one_if_none(sizes->ep), etp = one_if_none(sizes->etp);
    View dense = {0};
    TRY(mesh_check_heads(NULL, cp, heads));
    int64_t stage = (int64_t)replicate * shard;
    if (stage > 0 && stage <= INT32_MAX) stage *= cp;
    if (stage > 0 && stage <= INT32_MAX) stage *= tp;
    if (stage < 1 || pp < 1 || stage > INT32_MAX / pp)
        return err_fail(ERR_CONFIG,
                        "mesh: pp=%d dp_replicate=%d dp_shard=%d cp=%d tp=%d is no number of ranks",
                        pp, replicate, shard, cp, tp);
    add_axis(&dense, "pp", pp);
    add_pair(&dense, "dp", "dp_replicate", replicate, "dp_shard", shard, replicate > 1);
    add_pair(&dense, "cp", "cp_ring", cp / heads, "cp_heads", heads, heads > 1 && heads < cp);
    add_axis(&dense, "tp", tp);
    TRY(mesh_check_experts(NULL, stage, ep, etp));
    const int edp = (int)stage / (ep * etp);
    const View view[] = {
        dense, {4, {pp, edp, ep, etp}, {"pp", "edp", "ep", "etp"}}, weight_view(&dense)};
    return mesh_init(out, (int)stage * pp, view, sizes->stream_weights ? 3 : 2);
}

unsigned mesh_data_axes(const Mesh *m, int view)
{
    return mesh_axes(m, view, "dp") | mesh_axes(m, view, "cp") | mesh_axes(m, view, "edp");
}

unsigned mesh_shard_axes(const Mesh *m, int view)
{
    return mesh_data_axes(m, view) & ~mesh_axes(m, view, "dp_replicate");
}

unsigned mesh_axes(const Mesh *m, int view, const char *name)
{
    const View *v = &m->view[view];
    const int axis = axis_named(v, name);
    if (axis >= 0) return 1u << axis;
    static const char *const pair[][3] = {{"dp", "dp_replicate", "dp_shard"},
                                          {"cp", "cp_ring", "cp_heads"},
                                          {"weight", "weight_ring", "weight_heads"}};
    unsigned axes = 0;
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, pair[i][0]) != 0) continue;
        const int outer = axis_named(v, pair[i][1]), inner = axis_named(v, pair[i][2]);
        axes |= (outer < 0 ? 0 : 1u << outer) | (inner < 0 ? 0 : 1u << inner);
    }
    return axes;
}

unsigned mesh_all_axes(const Mesh *m, int view) { return (1u << m->view[view].n_axes) - 1; }

void mesh_coords(const Mesh *m, int view, int rank, int coord[MAX_AXES])
{
    const View *v = &m->view[view];
    MUST(rank >= 0 && rank < m->world, "rank %d of %d", rank, m->world);
    for (int i = v->n_axes - 1; i >= 0; i--) {
        coord[i] = rank % v->size[i];
        rank /= v->size[i];
    }
}

int mesh_rank(const Mesh *m, int view, const int coord[MAX_AXES])
{
    const View *v = &m->view[view];
    int rank = 0;
    for (int i = 0; i < v->n_axes; i++) rank = rank * v->size[i] + coord[i];
    return rank;
}

int mesh_parts(const Mesh *m, int view, unsigned axes)
{
    const View *v = &m->view[view];
    int parts = 1;
    for (int i = 0; i < v->n_axes; i++)
        if (axes >> i & 1) parts *= v->size[i];
    return parts;
}

int mesh_part(const Mesh *m, int view, unsigned axes, int rank)
{
    const View *v = &m->view[view];
    int coord[MAX_AXES], part = 0;
    mesh_coords(m, view, rank, coord);
    for (int i = 0; i < v->n_axes; i++)
        if (axes >> i & 1) part = part * v->size[i] + coord[i];
    return part;
}

int mesh_move(const Mesh *m, int view, unsigned axes, int part, int rank)
{
    const View *v = &m->view[view];
    int coord[MAX_AXES];
    mesh_coords(m, view, rank, coord);
    for (int i = v->n_axes - 1; i >= 0; i--) {
        if (!(axes >> i & 1)) continue;
        coord[i] = part % v->size[i];
        part /= v->size[i];
    }
    return mesh_rank(m, view, coord);
}

Err mesh_group(const Mesh *m, int view, unsigned axes, int rank, Arena *a, RankList *out)
{
    const int n = mesh_parts(m, view, axes);
    int32_t *list;
    TRY(ARENA_NEW(a, n, &list));
    for (int part = 0; part < n; part++) list[part] = mesh_move(m, view, axes, part, rank);
    *out = (RankList){n, list};
    return OK;
}

void mesh_view_text(Text *t, const Mesh *m, int view)
{
    char text[256];
    text_add(t, "%s", view_format(&m->view[view], text, sizeof text));
}

void mesh_axes_text(Text *t, const Mesh *m, int view, unsigned axes)
{
    const char *between = "";
    for (int i = 0; i < m->view[view].n_axes; i++) {
        if (!(axes >> i & 1)) continue;
        text_add(t, "%s%s", between, m->view[view].name[i]);
        between = " x ";
    }
}
