/* panels_store.c -- a tile of sums goes to c while the next one is multiplied.
 *
 *     multiply   tile 0        | tile 1        | tile 2        |
 *     store      -             | tile 0        | tile 1        |      a few rows at each step along k
 *     ask for    rows of 0     | rows of 1     | rows of 2     |      lines of c, to be written next
 *
 * A step of tiles keeps their unit at work for 64 cycles, in which the rest of the core has nothing to do:
 * rounding and storing a row takes ten. One after the other they took a quarter of a product of 768 terms.
 * Other units use the same ports as stores do; for them a tile is stored as soon as it is whole. */
#include "device/cpu/simd/gemm/panels.h"

/* The box of a matrix, where its columns are neighbours. */
static Prefetch prefetch_block(const Tensor *t, const Box *b)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype), step = t->stride[0] * size;
    if (t->stride[1] != 1) return (Prefetch){.row = NULL};
    const char *at = (const char *)t->data + b->row * step + b->column * size;
    return prefetch_rows(at, b->n * size, b->m, step);
}

static void prefetch_tile(const Stores *s, PrefetchQueue *w, int64_t times)
{
    const Finish *f = &s->tile[s->now];
    const Tensor *c = &f->call->out[0];
    w->c = prefetch_block(c, &f->box);
    if (f->old != c && f->call->number[0] != 0) w->addend = prefetch_block(f->old, &f->box);
    prefetch_spread(&w->c, times);
    prefetch_spread(&w->addend, times);
    for (int i = 0; i < MAX_EPILOGUE_OPERANDS; i++) {
        const Tensor *near = f->beside->near[i];
        w->operand[i] = near ? prefetch_block(near, &f->box) : (Prefetch){.row = NULL};
        prefetch_spread(&w->operand[i], times);
    }
}

/* Whether a unit may finish the tile itself: a whole one, with columns that are neighbours. */
static bool ends_in_unit(const Stores *s, MicrokernelStore *end)
{
    const Finish *f = &s->tile[s->now];
    const Tensor *c = &f->call->out[0], *old = f->old;
    const Box *b = &f->box;
    const int64_t size = (int64_t)dtype_bytes(c->dtype);
    const bool whole = b->m == s->kernel->rows && b->n == s->kernel->columns;
    const bool plain = c->stride[1] == 1 && old->stride[1] == 1 && c->dtype == old->dtype;
    if (!s->kernel->stores_c || !whole || !plain || (c->dtype != F32 && c->dtype != BF16))
        return false;
    *end = (MicrokernelStore){.rows = s->kernel->rows,
                              .type = c->dtype,
                              .c = (char *)c->data + (b->row * c->stride[0] + b->column) * size,
                              .old = (const char *)old->data +
                                     (b->row * old->stride[0] + b->column) * size,
                              .c_step = c->stride[0] * size,
                              .old_step = old->stride[0] * size,
                              .keep = (float)f->call->number[0],
                              .bias = f->bias};
    return true;
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
}

void stores_end(Stores *s)
{
    s->each = s->left;
    if (s->left > 0) store_some(s);
}

void stores_multiply(Stores *s, MicrokernelArgs *m, bool whole)
{
    const int64_t steps = s->kernel->meanwhile ? most(1, m->words / s->kernel->group) : 1;
    MicrokernelStore end;
    m->end = whole && ends_in_unit(s, &end) ? &end : NULL;
    m->to = whole ? s->sum[s->now] : m->c;
    s->tile[s->now].sum = m->to;
    if (whole) prefetch_tile(s, m->prefetch, most(1, blocks_of(m->words, PREFETCH_DWORDS)));
    s->each = blocks_of(s->left, steps);
    m->meanwhile = s->kernel->meanwhile ? meanwhile : NULL;
    m->work = s;
    s->kernel->multiply(m);
    stores_end(s); /* of no words there are no steps */
    if (!whole || m->end) return;
    s->left = s->tile[s->now].box.m;
    s->now = !s->now;
    if (!s->kernel->meanwhile) stores_end(s);
}
