/* panels_store.c -- a tile of sums goes to c while the next one is multiplied.
 *
 *     multiply   tile 0        | tile 1        | tile 2        |
 *     store      -             | tile 0        | tile 1        |      a few rows at each step along k
 *     fetch      rows of 0     | rows of 1     | rows of 2     |      lines of c, to be written next
 *
 * A step of tiles keeps their unit at work for 64 cycles, in which the rest of the core has nothing to do:
 * rounding and storing a row takes ten. One after the other they took a quarter of a product of 768 terms.
 * Other units use the same ports as stores do; for them a tile is stored as soon as it is whole. */
#include "device/cpu/simd/panels.h"

static void fetch_row(const Tensor *t, const Box *b, int64_t row)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype);
    const char *at = (const char *)t->data + ((b->row + row) * t->stride[0] + b->column) * size;
    if (t->stride[1] != 1) return;
    for (int64_t j = 0; j < b->n * size; j += 64) __builtin_prefetch(at + j, 1, 3);
}

static void fetch_some(Stores *s)
{
    const Finish *f = &s->tile[s->now];
    const Tensor *c = &f->call->out[0];
    for (int64_t end = most(0, s->to_fetch - s->at_once); s->to_fetch > end; s->to_fetch--) {
        fetch_row(c, &f->box, s->to_fetch - 1);
        if (f->old != c) fetch_row(f->old, &f->box, s->to_fetch - 1);
    }
}

static void store_some(Stores *s)
{
    const Finish *f = &s->tile[!s->now];
    const int64_t rows = least(s->left, s->each);
    panels_finish(f, f->box.m - s->left, rows);
    s->left -= rows;
}

static void meanwhile(void *work)
{
    Stores *const s = work;
    if (s->left > 0) store_some(s);
    if (s->to_fetch > 0) fetch_some(s);
}

void stores_end(Stores *s)
{
    s->each = s->left;
    if (s->left > 0) store_some(s);
}

void stores_multiply(Stores *s, Micro *m, bool whole)
{
    const int64_t steps = s->unit->meanwhile ? most(1, m->words / s->unit->group) : 1;
    m->to = whole ? s->sum[s->now] : m->c;
    s->tile[s->now].sum = m->to;
    s->to_fetch = whole ? s->tile[s->now].box.m : 0;
    s->at_once = blocks_of(s->to_fetch, steps);
    s->each = blocks_of(s->left, steps);
    m->meanwhile = s->unit->meanwhile ? meanwhile : NULL;
    m->work = s;
    if (whole && !s->unit->meanwhile) fetch_some(s);
    s->unit->multiply(m);
    stores_end(s); /* of no words there are no steps */
    if (!whole) return;
    s->left = s->tile[s->now].box.m;
    s->now = !s->now;
    if (!s->unit->meanwhile) stores_end(s);
}
