/* attention_rows.c -- attention by squares: scores are [query][key], a strip of 32 queries after another.
 *
 *     q [32, c]  k' [c, keys]  ->  s [32, keys]  ->  weights, in words of two keys  ->  o [queries, c] += p v
 *
 * So weights are the left factor of o = p v as they are made, and no sum has to be turned. A strip of scores is
 * 8 KiB, and stays in the first cache: to store sums of tiles outside of it takes four times as long.
 *
 * Lanes are keys, and to find the max of a row over lanes costs as much as its powers. But any base serves
 * that no score exceeds by far: weights are 2^(s - base), and base is raised, to the max, only when a score
 * exceeds it by more than SLACK. */
#include "device/cpu/simd/attention_side.h"
#include "device/cpu/simd/attention_words.h"
#include "device/cpu/simd/squares.h"

/* In units of log 2: weights are at most 2^8, and sums of 2^110 of them are finite. */
enum { SLACK = 8 };

void rows_open(Way way, const Tensor *q, int64_t head, Side *side)
{
    Panel rows = panel_of(way, side->turned.place.words);
    panel_load(way, q, side->queries, head, &rows);
    memset(side->part, 0, sizeof side->part);
}

/* -inf for pairs that are not seen, of a strip. */
static void strip_hide(const Ranges *r, Block keys, int query, const Bounds *b, Scores *s)
{
    const V hidden = v_set(-HUGE_VALF);
    const int from = b->from[query / MICRO_ROWS], to = b->to[query / MICRO_ROWS];
    for (int j = from; j < to; j += W) {
        const int64_t at = keys.at + j;
        const VI key = keys_from(at);
        for (int i = 0; i < SQUARE; i++) {
            if (r->lo[0][query + i] <= at && r->hi[0][query + i] >= at + W) continue;
            const VI seen = keys_seen_by(r, query + i, key);
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
    const float *const s = scores->at[query % SQUARE];
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

/* A strip; mostly all of it is seen, and the steps are constants. */
DOT_TARGET static void strip_weigh(Way way, Side *side, int query, const Bounds *b, Scores *s)
{
    const Hull all = {0, SPAN};
    const Hull hull = {b->from[query / MICRO_ROWS], b->to[query / MICRO_ROWS]};
    const bool whole = hull.from == all.from && hull.to == all.to;
    for (const int end = query + SQUARE; query < end; query++)
        if (whole)
            row_weigh(way, side, query, all, s);
        else
            row_weigh(way, side, query, hull, s);
}

bool rows_add(Block keys, Sight sight, State *st, Side *side)
{
    const Panel q = panel_of(st->way, side->turned.place.words);
    Reach reach;
    way_reach(st->way, &side->ranges, keys, sight, &reach);
    for (int i = 0; i < SPAN; i += SQUARE) {
        if (reach.queries.to[i / MICRO_ROWS] == 0) continue;
        squares_score(st->way, &q, &st->turned, &reach.queries, (Strip){i, st->s.at[0]});
        if (sight == SEEN_BY_SOME) strip_hide(&side->ranges, keys, i, &reach.queries, &st->s);
        strip_weigh(st->way, side, i, &reach.queries, &st->s);
    }
    return spread(st->way, &st->s, &st->v, &reach.queries, side->o.at);
}

void rows_sum(Side *side)
{
    for (int i = 0; i < SPAN; i++) side->sum[i] = v_sum(v_load(side->part[i]));
}
