/* forward_amx.c -- attention by squares: scores are [query][key], a strip of 32 queries after another.
 *
 *     q [32, c]  k' [c, keys]  ->  s [32, keys]  ->  weights, in words of two keys  ->  o [queries, c] += p v
 *
 * So weights are the left factor of o = p v as they are made, and no sum has to be turned. Tiles have a unit of
 * their own, so one strip's products go on beside the powers of the other.
 *
 * Lanes are keys, and to find the max of a row over lanes costs as much as its powers. But any base serves
 * that no score exceeds by far: weights are 2^(s - base), and base is raised, to the max, only when a score
 * exceeds it by more than SLACK. */
#include "device/cpu/simd/attention/forward.h"
#include "device/cpu/simd/attention/bf16_dot.h"
#include "device/cpu/simd/attention/amx_gemm.h"

/* In units of log 2: weights are at most 2^8, and sums of 2^110 of them are finite. */
enum { SLACK = 8 };

void rows_open(Way way, const Tensor *q, int64_t head, Side *side)
{
    Panel rows = panel_of(way, side->turned.place.words);
    panel_load(way, q, side->queries, head, &rows);
    memset(side->part, 0, sizeof side->part);
}

/* -inf for pairs that are not seen, of a strip. */
static void strip_hide(const Ranges *r, Block keys, int strip, const Bounds *b, Scores *s)
{
    const V hidden = v_set(-HUGE_VALF);
    const int from = b->from[strip / SMALL_MR], to = b->to[strip / SMALL_MR];
    for (int j = from; j < to; j += W) {
        const int64_t at = keys.at + j;
        const VI key = keys_from(at);
        for (int i = strip; i < strip + SQUARE; i++) {
            if (r->lo[0][i] <= at && r->hi[0][i] >= at + W) continue;
            const VI seen = keys_seen_by(r, i, key);
            v_store(&s->at[i][j], v_pick(seen, v_load(&s->at[i][j]), hidden));
        }
    }
}

/* What the row holds goes to the new base. */
static void row_raise(Side *side, int64_t query, float base, int64_t step)
{
    const V shrink = v_exp2(v_set(side->max[query] - base));
    float *const o = side->o.at + query * step;
    for (int64_t c = 0; c < step; c += W) v_store(o + c, shrink * v_load(o + c));
    v_store(side->part[query], shrink * v_load(side->part[query]));
    side->max[query] = base;
}

/* Scores of a row to weights, of keys that may be seen. */
ALWAYS_INLINE DOT_TARGET static void row_weigh(Way way, Side *side, int query, Hull hull,
                                               Scores *scores)
{
    const float *const s = scores->at[query];
    uint32_t *const to = scores->halves[query];
    V top = v_set(-HUGE_VALF);
    for (int j = hull.from; j < hull.to; j += W) top = v_max(top, v_load(s + j));
    if (v_any(way.factor * top > v_set(side->max[query] + SLACK)))
        row_raise(side, query, way.factor * v_largest(top), padded(way.channels));
    /* A row that has seen nothing yet has weights 2^(-inf - 0) = 0. */
    const V base = v_set(side->max[query] == -HUGE_VALF ? 0 : side->max[query]);
    V sum = v_load(side->part[query]);
    for (int j = hull.from; j < hull.to; j += 2 * W) {
        const V first = v_exp2(way.factor * v_load(s + j) - base);
        const V second = v_exp2(way.factor * v_load(s + j + W) - base);
        store_halves(to + j / 2, first, second);
        sum += first + second;
    }
    v_store(side->part[query], sum);
}

/* Rows of a strip that all see whole: so many at a time, while tiles multiply. */
typedef struct {
    Way way;
    Side *side;
    Scores *s;
    int query, end, each;
} Weighing;

DOT_TARGET static void weigh_some(void *work)
{
    Weighing *const w = work;
    for (int i = 0; i < w->each && w->query < w->end; i++, w->query++)
        row_weigh(w->way, w->side, w->query, (Hull){0, SPAN}, w->s);
}

static void strip_multiply(SquareProduct p, Weighing *w)
{
    p.meanwhile = weigh_some;
    p.work = w;
    w->way.squares->multiply(&p);
    while (w->query < w->end) weigh_some(w);
}

/* A tile that all see: tiles multiply one strip while the weights of the other are made.
 *
 *     tiles      score 0   score 1     spread 0    spread 1
 *     vectors              weights 0   weights 1                  */
static void rows_add_whole(State *st, Side *side, const Bounds *b)
{
    const Panel q = panel_of(st->way, side->turned.place.words);
    const int64_t squares = padded(st->way.channels) / SQUARE, rest = SPAN - SQUARE;
    Weighing w = {.way = st->way, .side = side, .s = &st->s};
    SquareProduct sum = spread_product(st->way, &st->s, &st->v, b, side->o.at);
    w.each = (int)blocks_of(SQUARE, SPAN / SQUARE * squares);
    sum.rows = 1;
    squares_score(st->way, &q, &st->turned, b, (Strip){0, st->s.at[0]});
    w.end = SQUARE;
    strip_multiply(score_product(st->way, &q, &st->turned, b, (Strip){rest, st->s.at[rest]}), &w);
    w.end = SPAN;
    strip_multiply(sum, &w);
    sum.a += rest * SPAN / 2;
    sum.c += rest * padded(st->way.channels);
    st->way.squares->multiply(&sum);
}

/* Where not all see the tile: strip by strip what is seen. */
DOT_TARGET static void strip_add(Block keys, int strip, const Bounds *b, State *st, Side *side)
{
    const Panel q = panel_of(st->way, side->turned.place.words);
    const Hull hull = {b->from[strip / SMALL_MR], b->to[strip / SMALL_MR]};
    if (hull.to == 0) return;
    squares_score(st->way, &q, &st->turned, b, (Strip){strip, st->s.at[strip]});
    strip_hide(&side->ranges, keys, strip, b, &st->s);
    for (int i = strip; i < strip + SQUARE; i++) row_weigh(st->way, side, i, hull, &st->s);
}

bool rows_add(Block keys, Sight sight, State *st, Side *side)
{
    Reach reach;
    way_reach(st->way, &side->ranges, keys, sight, &reach);
    if (sight == SEEN_BY_ALL) {
        rows_add_whole(st, side, &reach.queries);
        return false;
    }
    for (int i = 0; i < SPAN; i += SQUARE) strip_add(keys, i, &reach.queries, st, side);
    return spread(st->way, &st->s, &st->v, &reach.queries, side->o.at);
}

void rows_sum(Side *side)
{
    for (int i = 0; i < SPAN; i++) side->sum[i] = v_sum(v_load(side->part[i]));
}
