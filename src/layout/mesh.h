/* mesh.h -- the coordinates of each rank. Pure data: describes 16,384 ranks as well as 2.
 *
 * A mesh arranges the ranks as a box with named axes, row-major. Neighbors on the last axis are
 * neighbors on the machine, so the axis with the most traffic comes last. A view is another box
 * over the same ranks; experts use one.
 *
 *     dense   pp=2 dp=2 cp=1 tp=4        rank = ((pp * 2 + dp) * 1 + cp) * 4 + tp
 *     expert  pp=2 edp=1 ep=8 etp=1
 *
 * An axis of size 1 is legal and free; it means "off". Sets of axes are bits: axis i of a view is
 * 1u << i. dp may be two axes, dp_replicate and dp_shard; the name "dp" means both. So may cp:
 * cp_ring and cp_heads. */
#ifndef LAYOUT_MESH_H
#define LAYOUT_MESH_H

#include <stdint.h>
#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/ranks.h"
#include "base/text.h"

enum { MAX_AXES = 8, MAX_VIEWS = 3 };
enum { VIEW_DENSE, VIEW_EXPERT, VIEW_WEIGHT };

typedef struct {
    int n_axes, size[MAX_AXES];
    const char *name[MAX_AXES]; /* the caller's: outlives the mesh */
} View;

typedef struct {
    int world, n_views;
    View view[MAX_VIEWS];
} Mesh;

/* Local. ERR_CONFIG unless every view multiplies to world and all agree on pp. */
Err mesh_init(Mesh *m, int world, const View *views, int n_views);
/* Local. One rank: pp dp cp tp and pp edp ep etp, all of size 1. */
Mesh mesh_single(void);

/* Ranks along each axis; 0 is read as 1. */
typedef struct {
    int dp_replicate, dp_shard, tp, pp;
    int cp, cp_heads; /* cp_heads divides cp: the ranks that share out heads of attention; 0 leaves
                       * it to the job, 1 means none */
    int ep, etp;      /* of the expert view: ep x etp divides dp x cp x tp; edp is the rest */
    bool stream_weights; /* the mesh has the weight view: weights are sharded over cp too */
} MeshSizes;
/* Local. ERR_CONFIG, with the nearest divisors, unless `heads` divides cp. `origin`: where the
 * value was set, or NULL. */
Err mesh_check_heads(const char *origin, int64_t cp, int64_t heads);
/* Local. ERR_CONFIG, with the nearest divisor, unless ep x etp divides the ranks of a stage, which
 * are dp x cp x tp. `origin` as above. */
Err mesh_check_experts(const char *origin, int64_t stage, int64_t ep, int64_t etp);
/* Local. The largest divisor of n that is not above `most`. */
int mesh_largest_part(int n, int64_t most);
/* Local. The dense view pp dp cp tp and its expert view. dp is two axes, dp_replicate and dp_shard,
 * if dp_replicate > 1; cp is two, cp_ring and cp_heads, if 1 < cp_heads < cp. The weight view is
 * the same box as the dense one, so axis bits of one are those of the other; its axis `weight` is
 * cp. ERR_CONFIG if cp_heads does not divide cp, or ep x etp the ranks of a stage. */
Err mesh_sized(const MeshSizes *sizes, Mesh *out);
/* Local. The data axes of a view: ranks along them have the same part of a parameter in use and
 * compute its gradient from other tokens. dp and cp in the dense view, edp in the expert view, dp
 * in the weight view. */
unsigned mesh_data_axes(const Mesh *m, int view);
/* Local. The data axes that ZeRO shards over: all but dp_replicate. */
unsigned mesh_shard_axes(const Mesh *m, int view);

/* Local. The axes that a name means in that view, as bits; 0 if none. */
unsigned mesh_axes(const Mesh *m, int view, const char *name);
/* Local. All axes of the view, as bits. */
unsigned mesh_all_axes(const Mesh *m, int view);
/* Local. The coordinates of a rank, one per axis of the view; and the inverse. */
void mesh_coords(const Mesh *m, int view, int rank, int coord[MAX_AXES]);
int mesh_rank(const Mesh *m, int view, const int coord[MAX_AXES]);

/* Local. The number of parts of a cut over `axes`, and the rank's part: row-major. */
int mesh_parts(const Mesh *m, int view, unsigned axes);
int mesh_part(const Mesh *m, int view, unsigned axes, int rank);
/* Local. The rank that `rank` becomes when its coordinate over `axes` becomes that part. */
int mesh_move(const Mesh *m, int view, unsigned axes, int part, int rank);
/* Local. Ranks that differ from `rank` only along `axes` of that view, in order of their part. The
 * list lives in the arena. */
Err mesh_group(const Mesh *m, int view, unsigned axes, int rank, Arena *a, RankList *out);

/* "dense", "expert", "weight". */
const char *view_name(int view);
/* Local. "pp=2 dp=2 cp=1 tp=4", and "dp x tp". */
void mesh_view_text(Text *t, const Mesh *m, int view);
void mesh_axes_text(Text *t, const Mesh *m, int view, unsigned axes);

#endif
