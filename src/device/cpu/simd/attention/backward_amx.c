/* backward_amx.c -- p and ds of a tile by squares, a strip of 32 queries after another. Tiles have a unit of
 * their own: where all see the tile, they multiply one strip while the other is graded.
 *
 *     tiles      s 0, dp 0    s 1, dp 1    dq 0       dq 1
 *     vectors                 p 0, ds 0    p 1, ds 1             */
#include "device/cpu/simd/attention/backward.h"
#include "device/cpu/simd/attention/amx_gemm.h"

void strips_grade(const Inputs *in, Block keys, const Bounds *b, const Queries *q, KeyState *t)
{
    for (int i = 0; i < SPAN; i += SQUARE) {
        const Graded g = {i, i + SQUARE, &t->s, &t->dp};
        squares_score(in->way, &q->q, &t->k, b, (Strip){i, t->s.at[i]});
        squares_score(in->way, &q->dout, &t->v, b, (Strip){i, t->dp.at[i]});
        words_grade(q->stats, keys, b, &g);
    }
}

/* Queries up to `end` that are to be graded, so many at a time. */
typedef struct {
    const Stats *stats;
    Block keys;
    const Bounds *b;
    Graded g;
    int end, each;
} Grading;

static void grade_some(void *work)
{
    Grading *const w = work;
    if (w->g.from == w->end) return;
    w->g.to = (int)least(w->g.from + w->each, w->end);
    words_grade(w->stats, w->keys, w->b, &w->g);
    w->g.from = w->g.to;
}

static void multiply_beside(Way way, SquareProduct p, Grading *w)
{
    p.meanwhile = grade_some;
    p.work = w;
    way.squares->multiply(&p);
}

static void grade_rest(Grading *w)
{
    while (w->g.from < w->end) grade_some(w);
}

/* Rows of dq, while the last queries are graded. */
static void spread_beside(Way way, const Bounds *b, const Queries *q, KeyState *t, Grading *w)
{
    SquareProduct dq = spread_product(way, &t->dp, &t->k_rows, b, q->dq);
    dq.rows = 1;
    multiply_beside(way, dq, w);
    grade_rest(w);
    dq.a += SQUARE * SPAN / 2;
    dq.c += SQUARE * padded(way.channels);
    way.squares->multiply(&dq);
}

void strips_grade_whole(const Inputs *in, Block keys, const Bounds *b, const Queries *q,
                        KeyState *t)
{
    const Way way = in->way;
    const int64_t steps = SPAN / SQUARE * padded(way.channels) / SQUARE; /* of a strip's product */
    Grading w = {.stats = q->stats, .keys = keys, .b = b, .g = {.s = &t->s, .dp = &t->dp}};
    w.each = (int)pad_to(blocks_of(SQUARE, 2 * steps), 2);
    w.end = SQUARE;
    squares_score(way, &q->q, &t->k, b, (Strip){0, t->s.at[0]});
    squares_score(way, &q->dout, &t->v, b, (Strip){0, t->dp.at[0]});
    multiply_beside(way, score_product(way, &q->q, &t->k, b, (Strip){SQUARE, t->s.at[SQUARE]}), &w);
    multiply_beside(way, score_product(way, &q->dout, &t->v, b, (Strip){SQUARE, t->dp.at[SQUARE]}),
                    &w);
    grade_rest(&w);
    w.each = (int)pad_to(blocks_of(SQUARE, steps), 2);
    w.end = SPAN;
    if (q->dq) spread_beside(way, b, q, t, &w);
    grade_rest(&w);
}
