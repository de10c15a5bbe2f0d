/* forward_amx.c -- forward tiles by AMX: scores are [query][key], a row of sub-tiles (32 queries)
 * at a time.
 *
 *     q [32, c]  k' [c, keys]  ->  s [32, keys]  ->  p, pairs of keys  ->  o [queries, c] += p v
 *
 * The owner is the block of keys, so p is the left operand of p v in the layout in which it is
 * computed, and o needs no transposition. AMX runs in parallel with the vector units: the GEMM of
 * one row of sub-tiles overlaps with the exponentials of the other.
 *
 * Lanes are keys here, and a maximum over lanes costs as much as the exponentials of a row. Any
 * base that no score exceeds by much is valid: weights are 2^(s - base). So the base is raised to
 * the max only if a score exceeds it by more than RESCALE_THRESHOLD. */
#include "device/cpu/simd/attention/forward.h"
#include "device/cpu/simd/attention/bf16_dot.h"
#include "device/cpu/simd/attention/amx_gemm.h"

/* In units of log 2: weights are at most 2^8, and a sum of 2^110 of them is finite. */
enum { RESCALE_THRESHOLD = 8 };

void amx_query_block_open(AttentionPath path, const Tensor *q, int64_t head, QueryBlock *block)
{
    Panel rows = panel_of(path, block->q.buffer.dwords);
    panel_load(path, q, block->queries, head, &rows);
    memset(block->lane_sums, 0, sizeof block->lane_sums);
}

/* Sets masked pairs of a row of sub-tiles to -inf. */
static void subtile_row_mask(const Ranges *r, TokenBlock keys, int first, const Bounds *b,
                             Scores *s)
{
    const V masked = v_set(-HUGE_VALF);
    const int from = b->from[first / SMALL_MR], to = b->to[first / SMALL_MR];
    for (int j = from; j < to; j += W) {
        const int64_t at = keys.at + j;
        const VI key = keys_from(at);
        for (int i = first; i < first + SUBTILE; i++) {
            if (r->lo[0][i] <= at && r->hi[0][i] >= at + W) continue;
            const VI visible = keys_attended(r, i, key);
            v_store(&s->f32[i][j], v_pick(visible, v_load(&s->f32[i][j]), masked));
        }
    }
}

/* Rescales a row's sums and o to the new base. */
static void row_raise_base(QueryBlock *block, int64_t query, float base, int64_t step)
{
    const V rescale = v_exp2(v_set(block->max[query] - base));
    float *const o = block->o.f32 + query * step;
    for (int64_t c = 0; c < step; c += W) v_store(o + c, rescale * v_load(o + c));
    v_store(block->lane_sums[query], rescale * v_load(block->lane_sums[query]));
    block->max[query] = base;
}

/* Turns a row's scores in the hull into owner_pairs of weights. */
ALWAYS_INLINE DOT_TARGET static void row_weights(AttentionPath path, QueryBlock *block, int query,
                                                 Hull hull, Scores *scores)
{
    const float *const s = scores->f32[query];
    uint32_t *const to = scores->owner_pairs[query];
    V top = v_set(-HUGE_VALF);
    for (int j = hull.from; j < hull.to; j += W) top = v_max(top, v_load(s + j));
    if (v_any(path.factor * top > v_set(block->max[query] + RESCALE_THRESHOLD)))
        row_raise_base(block, query, path.factor * v_largest(top), padded(path.channels));
    /* While all keys so far are masked, max is -inf, and base 0 gives weights of 0. */
    const V base = v_set(block->max[query] == -HUGE_VALF ? 0 : block->max[query]);
    V sum = v_load(block->lane_sums[query]);
    for (int j = hull.from; j < hull.to; j += 2 * W) {
        const V first = v_exp2(path.factor * v_load(s + j) - base);
        const V second = v_exp2(path.factor * v_load(s + j + W) - base);
        store_adjacent_pairs(to + j / 2, first, second);
        sum += first + second;
    }
    v_store(block->lane_sums[query], sum);
}

/* Background work of a GEMM: the weights of queries up to `end`, `each` rows per call. */
typedef struct {
    AttentionPath path;
    QueryBlock *block;
    Scores *s;
    int query, end, each;
} WeightsWork;

DOT_TARGET static void weights_step(void *work)
{
    WeightsWork *const w = work;
    for (int i = 0; i < w->each && w->query < w->end; i++, w->query++)
        row_weights(w->path, w->block, w->query, (Hull){0, BLOCK}, w->s);
}

static void multiply_with_weights(AmxGemmArgs p, WeightsWork *w)
{
    p.background = weights_step;
    p.work = w;
    w->path.amx->multiply(&p);
    while (w->query < w->end) weights_step(w);
}

/* Adds a full tile: AMX multiplies one row of sub-tiles while vectors make the other's weights.
 *
 *     AMX        s 0       s 1         p v 0       p v 1
 *     vectors              weights 0   weights 1 */
static void add_full_tile(ForwardState *st, QueryBlock *block, const Bounds *b)
{
    const Panel q = panel_of(st->path, block->q.buffer.dwords);
    const int64_t subtiles = padded(st->path.channels) / SUBTILE, rest = BLOCK - SUBTILE;
    WeightsWork w = {.path = st->path, .block = block, .s = &st->s};
    AmxGemmArgs sum = amx_other_args(st->path, &st->s, &st->v, b, block->o.f32);
    w.each = (int)blocks_of(SUBTILE, BLOCK / SUBTILE * subtiles);
    sum.rows = 1;
    amx_score(st->path, &q, &st->k_transposed, b, (SubtileRow){0, st->s.f32[0]});
    w.end = SUBTILE;
    multiply_with_weights(
        amx_score_args(st->path, &q, &st->k_transposed, b, (SubtileRow){rest, st->s.f32[rest]}),
        &w);
    w.end = BLOCK;
    multiply_with_weights(sum, &w);
    sum.a += rest * BLOCK / 2;
    sum.c += rest * padded(st->path.channels);
    st->path.amx->multiply(&sum);
}

/* Scores and weights of a row of sub-tiles in a partial tile. */
DOT_TARGET static void subtile_row_add(TokenBlock keys, int first, const Bounds *b,
                                       ForwardState *st, QueryBlock *block)
{
    const Panel q = panel_of(st->path, block->q.buffer.dwords);
    const Hull hull = {b->from[first / SMALL_MR], b->to[first / SMALL_MR]};
    if (hull.to == 0) return;
    amx_score(st->path, &q, &st->k_transposed, b, (SubtileRow){first, st->s.f32[first]});
    subtile_row_mask(&block->ranges, keys, first, b, &st->s);
    for (int i = first; i < first + SUBTILE; i++) row_weights(st->path, block, i, hull, &st->s);
}

bool amx_query_block_add(TokenBlock keys, Coverage coverage, ForwardState *st, QueryBlock *block)
{
    TileBounds bounds;
    path_tile_bounds(st->path, &block->ranges, keys, coverage, &bounds);
    if (coverage == FULL_TILE) {
        add_full_tile(st, block, &bounds.queries);
        return false;
    }
    for (int i = 0; i < BLOCK; i += SUBTILE) subtile_row_add(keys, i, &bounds.queries, st, block);
    return accumulate_other(st->path, &st->s, &st->v, &bounds.queries, block->o.f32);
}

void amx_query_block_sum(QueryBlock *block)
{
    for (int i = 0; i < BLOCK; i++) block->sum[i] = v_sum(v_load(block->lane_sums[i]));
}
