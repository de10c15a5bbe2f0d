/* rows.c -- the tokens of each rank, and the halves of them that a plan moves.
 *
 * A zigzag map gives rank r chunks r and 2P-1-r of each sequence: its first and its later half.
 * Rows are stored in ascending order, so with two sequences the halves of a block alternate:
 *
 *     block of rank 0    0 1 | 14 15 | 16 17 | 30 31       two sequences of 16 on 4 ranks
 *     first half         rows 0 1 4 5 of the block
 *     later half         rows 2 3 6 7 */
#include "base/math.h"
#include "compile/context/write.h"
#include "ir/build.h"

static void push_rows(ContextRows *p, Span micro, int64_t at)
{
    const int64_t n = span_count(micro);
    Span *last = p->n_spans ? &p->of_micro[p->n_spans - 1] : NULL;
    p->count += n;
    if (last && last->hi == micro.lo && last->step == 1 && micro.step == 1) {
        last->hi = micro.hi;
        p->of_block[p->n_spans - 1].hi += n;
        return;
    }
    p->of_micro[p->n_spans] = micro;
    p->of_block[p->n_spans++] = (Span){at, at + n, 1};
}

static Err rows_open(ContextRows *r, int64_t most, Arena *arena)
{
    TRY(ARENA_NEW(arena, most, &r->of_micro));
    return ARENA_NEW(arena, most, &r->of_block);
}

static Dim rows_dim(const HeldSpans *h, int32_t slot)
{
    return slot == NO_SLOT ? dim_of(h->count) : dim_held(slot, h);
}

/* Cuts rows with step 1 at the middle and the end of each sequence. */
static void push_pieces(ContextTokens *t, Span s, int64_t at, int64_t seq_len, int64_t middle)
{
    while (s.lo < s.hi) {
        const int64_t start = s.lo - s.lo % seq_len, bound = start + middle;
        const int piece = s.lo >= bound;
        const int64_t end = min_i64(s.hi, piece ? start + seq_len : bound);
        push_rows(&t->piece[piece], (Span){s.lo, end, 1}, at);
        at += end - s.lo;
        s.lo = end;
    }
}

/* The spans of a block as kernels read them, unless it is one run of rows. */
static Err rows_spans(ContextTokens *t, Arena *arena)
{
    int64_t *span;
    if (t->all.n_spans == 0 || (t->all.n_spans == 1 && t->all.of_micro[0].step == 1)) return OK;
    TRY(ARENA_NEW(arena, 3 * t->all.n_spans, &span));
    for (int i = 0; i < t->all.n_spans; i++) {
        span[3 * i] = t->all.of_micro[i].lo;
        span[3 * i + 1] = t->all.of_micro[i].hi;
        span[3 * i + 2] = t->all.of_micro[i].step;
    }
    t->span = span;
    return OK;
}

Err context_rows_find(const HeldSpans *h, Dim all, int64_t seq_len, int ranks, Arena *arena,
                      ContextTokens *out)
{
    ContextTokens t = {0};
    const int64_t sequences = seq_len > 0 ? (all.cap + seq_len - 1) / seq_len : 0;
    const int64_t middle = seq_len > 0 ? even_part(seq_len, 1, 2 * ranks, ranks).lo : 0;
    TRY(rows_open(&t.all, h->n_spans + 1, arena));
    for (int i = 0; i < MAX_PIECES; i++) TRY(rows_open(&t.piece[i], 2 * sequences + 2, arena));
    HeldCursor cursor = {0, 0};
    for (int64_t i = 0; i < h->count;) {
        const Span s = held_span_next(h, i, &cursor);
        push_rows(&t.all, s, i);
        if (seq_len > 0 && s.step == 1) push_pieces(&t, s, i, seq_len, middle);
        i += span_count(s);
    }
    t.all.rows = rows_dim(h, all.slot);
    for (int i = 0; i < MAX_PIECES; i++) {
        ContextRows *r = &t.piece[i];
        const HeldSpans held = {r->count ? r->of_micro : NULL, r->n_spans, 0, r->count};
        r->rows = rows_dim(&held, all.slot);
    }
    TRY(rows_spans(&t, arena));
    *out = t;
    return OK;
}

/* A copy of boxes of rows. */
static Value pack_rows(Graph *g, Value x, Dim rows, const BoxCopy *copy, int64_t n)
{
    const TransferPart move = {.copy = copy, .n_copies = n};
    const OpAttr attr = {.move = {graph_move(g, &move)}};
    if (g->err != OK) return NO_VALUE;
    const DType dtype = g->value[x].dtype;
    Dims dims = g->value[x].dims;
    dims.dim[0] = rows;
    const Node *node = graph_node(g, OP_pack, &attr, 1, &x, &dims, 1);
    if (!node) return NO_VALUE;
    g->value[node->out[0]].dtype = dtype;
    return node->out[0];
}

static int64_t row_width(const Graph *g, Value x)
{
    int64_t width = 1;
    for (int i = 1; i < g->value[x].dims.ndim; i++) width *= g->value[x].dims.dim[i].cap;
    return width;
}

static BoxCopy box_rows(Span from, int64_t to, int64_t width)
{
    return (BoxCopy){.ndim = 2,
                     .n = {span_count(from), width},
                     .from_at = from.lo * width,
                     .from_stride = {from.step * width, 1},
                     .to_at = to * width,
                     .to_stride = {width, 1}};
}

Value context_rows_take(Graph *g, Value x, const ContextRows *rows, const Span *span)
{
    BoxCopy *copy;
    if (g->err != OK) return NO_VALUE;
    if (rows->n_spans == 0 || (rows->n_spans == 1 && span[0].step == 1))
        return part(g, x, 0, rows->n_spans ? span[0].lo : 0, rows->rows);
    g->err = ARENA_NEW(g->arena, rows->n_spans, &copy);
    if (g->err != OK) return NO_VALUE;
    int64_t at = 0;
    for (int i = 0; i < rows->n_spans; i++) {
        copy[i] = box_rows(span[i], at, row_width(g, x));
        at += span_count(span[i]);
    }
    return pack_rows(g, x, rows->rows, copy, rows->n_spans);
}

bool context_rows_ascend(const ContextTokens *t)
{
    return t->piece[0].n_spans <= 1 && t->piece[1].n_spans <= 1;
}

Value context_rows_merge(Graph *g, Value x, const ContextTokens *t)
{
    BoxCopy *copy;
    int n = 0;
    if (g->err == OK)
        g->err = ARENA_NEW(g->arena, t->piece[0].n_spans + t->piece[1].n_spans, &copy);
    if (g->err != OK) return NO_VALUE;
    int64_t at = 0;
    for (int p = 0; p < MAX_PIECES; p++)
        for (int i = 0; i < t->piece[p].n_spans; i++) {
            const Span to = t->piece[p].of_block[i];
            copy[n++] = box_rows((Span){at, at + span_count(to), 1}, to.lo, row_width(g, x));
            at += span_count(to);
        }
    return pack_rows(g, x, t->all.rows, copy, n);
}
