/* chunk.c -- runs the nodes of a chunk number some rows at a time, so that the values between them
 * (logits) exist for a few rows only.
 *
 *   before:  logits [T,V] = linear x w
 *            d.x [T,D] = linear_dx d.logits w
 *            d.w += linear_dw d.logits x
 *   after:   for each chunk of rows the same, on a part of x; d.x is the join of its chunks; d.w
 *            and the loss accumulate from chunk to chunk
 *
 * The number of rows follows from the widest value and a rule (ChunkRule), so that memory is small
 * but GEMMs stay efficient. It depends on shapes alone and is the same on all ranks. */
#include "compile/compile.h"

#include <string.h>
#include "ir/build.h"

enum { MAX_CHUNKS = 1024, TILE_ROWS = 128 };

typedef struct {
    Graph *g;
    int32_t number; /* of the nodes */
    int n_old;      /* nodes and values before */
    Value n_values;
    Dim rows;
    int64_t size; /* rows per chunk */
    int n_chunks;
    Value *copy;   /* [n_values]: this chunk's version of a value, or NO_VALUE */
    Value **piece; /* [n_values][n_chunks]: the chunks of each value made here */
} Chunker;

static bool is_inside(const Chunker *c, Value v)
{
    for (int i = 0; i < c->n_old; i++)
        for (int j = 0; j < c->g->node[i].n_out && c->g->node[i].chunk == c->number; j++)
            if (c->g->node[i].out[j] == v) return true;
    return false;
}

static bool read_outside(const Chunker *c, Value v)
{
    for (int i = 0; i < c->n_old; i++)
        for (int j = 0; j < c->g->node[i].n_in && c->g->node[i].chunk != c->number; j++)
            if (c->g->node[i].in[j] == v) return true;
    return false;
}

static Dim chunk_rows(const Chunker *c, int k)
{
    const int64_t left = c->rows.cap - k * c->size;
    return dim_part(c->rows, k * c->size, left < c->size ? left : c->size);
}

/* True if dim 0 of the operand is the rows that are chunked. */
static bool has_rows(const Operand *o) { return o->ndim == -1 || operand_dim(o, 't') == 0; }

static Value chunk_input(Chunker *c, const Operand *o, Value v, int k)
{
    if (c->copy[v] != NO_VALUE) return c->copy[v];
    if (!has_rows(o)) return v; /* no rows: the whole value, in every chunk */
    c->copy[v] = part(c->g, v, 0, k * c->size, chunk_rows(c, k));
    return c->copy[v];
}

static Err copy_node(Chunker *c, int index, int k)
{
    const Node old = c->g->node[index];
    const Signature sig = op_signature(old.op);
    Value in[MAX_IN];
    Dims given[MAX_OUT];
    for (int i = 0; i < old.n_in; i++) in[i] = chunk_input(c, &sig.in[i], old.in[i], k);
    for (int i = 0; i < old.n_out; i++) {
        given[i] = c->g->value[old.out[i]].dims;
        if (has_rows(&sig.out[i])) given[i].dim[0] = chunk_rows(c, k);
    }
    Node *n = graph_node(c->g, old.op, &old.attr, old.n_in, in, given, old.n_out);
    if (!n) return graph_err(c->g);
    n->queue = old.queue;
    for (int i = 0; i < old.n_out; i++) {
        const Value was = old.out[i];
        n->keep[i] = old.keep[i];
        if (role_accumulates(c->g->value[was].role)) {
            n->out[i] = was;
            if (k > 0) n->keep[i] = SLOT_ONE;
            continue;
        }
        c->copy[was] = n->out[i];
        c->piece[was][k] = n->out[i];
        c->g->value[n->out[i]].dtype = c->g->value[was].dtype;
    }
    return OK;
}

static Err join_pieces(Chunker *c)
{
    for (Value v = 0; v < c->n_values; v++) {
        if (role_accumulates(c->g->value[v].role) || !is_inside(c, v)) continue;
        if (!read_outside(c, v) && c->g->value[v].role == ROLE_LOCAL) continue;
        const Value all = join(c->g, c->n_chunks, c->piece[v], 0, c->g->value[v].dims);
        if (all == NO_VALUE) return graph_err(c->g);
        c->g->node[c->g->n_nodes - 1].out[0] = v; /* readers, role and name stay */
    }
    return OK;
}

static int64_t rows_by_rule(const ChunkRule *rule, int64_t width)
{
    const int64_t max_rows = rule->max_elements / width;
    const int64_t wanted = rule->wanted_rows < max_rows ? rule->wanted_rows : max_rows;
    int64_t rows = rule->elements / width;
    if (rows < wanted) rows = wanted;
    return rows < rule->min_rows ? rule->min_rows : rows;
}

static int64_t parts_of(int64_t n, int64_t each) { return (n + each - 1) / each; }

/* Sets the rows and the chunk size, from the widest value of the chunk's nodes. Returns false if
 * one chunk is enough. */
static bool measure(Chunker *c, const ChunkRule *rule)
{
    int64_t widest = 0;
    for (int i = 0; i < c->n_old; i++) {
        const Node *n = &c->g->node[i];
        const Signature sig = op_signature(n->op);
        for (int j = 0; j < n->n_out && n->chunk == c->number; j++) {
            if (!has_rows(&sig.out[j])) continue;
            const ValueInfo *info = &c->g->value[n->out[j]];
            const Dims *d = &info->dims;
            const int64_t count = info->max_elements ? info->max_elements : dims_count(d);
            const int64_t width = d->dim[0].cap ? count / d->dim[0].cap : 0;
            c->rows = d->dim[0];
            if (width > widest) widest = width;
        }
    }
    if (!widest) return false;
    const int64_t wanted = rows_by_rule(rule, widest), least = parts_of(c->rows.cap, MAX_CHUNKS);
    /* sizes are multiples of this */
    const int64_t whole = wanted < TILE_ROWS && least < TILE_ROWS ? 1 : TILE_ROWS;
    c->size = wanted - wanted % whole;
    if (c->size < least) c->size = least;
    c->size = parts_of(parts_of(c->rows.cap, parts_of(c->rows.cap, c->size)), whole) * whole;
    c->n_chunks = (int)parts_of(c->rows.cap, c->size);
    return c->n_chunks > 1;
}

/* Replaces the old nodes by the new ones, chunk by chunk: the values of one chunk die before the
 * next begins. */
static Err splice(Chunker *c)
{
    Graph *g = c->g;
    Node *list;
    int n = 0;
    bool put = false;
    TRY(ARENA_NEW(g->arena, g->n_nodes, &list));
    for (int i = 0; i < c->n_old; i++) {
        const bool old = g->node[i].chunk == c->number;
        if (!old) list[n++] = g->node[i];
        for (int k = c->n_old; k < g->n_nodes && old && !put; k++) list[n++] = g->node[k];
        put = put || old;
    }
    g->node = list;
    g->n_nodes = n;
    g->cap_nodes = n;
    return graph_tidy(g);
}

static Err chunk_number(Graph *g, int32_t number, const ChunkRule *rule)
{
    Chunker c = {.g = g, .number = number, .n_old = g->n_nodes, .n_values = g->n_values};
    if (!measure(&c, rule)) return OK;
    TRY(ARENA_NEW(g->arena, c.n_values, &c.copy));
    TRY(ARENA_NEW(g->arena, c.n_values, &c.piece));
    for (Value v = 0; v < c.n_values; v++)
        if (is_inside(&c, v)) TRY(ARENA_NEW(g->arena, c.n_chunks, &c.piece[v]));
    for (int k = 0; k < c.n_chunks; k++) {
        for (Value v = 0; v < c.n_values; v++) c.copy[v] = NO_VALUE;
        for (int i = 0; i < c.n_old; i++)
            if (g->node[i].chunk == number) TRY(copy_node(&c, i, k));
    }
    TRY(join_pieces(&c));
    return splice(&c);
}

Err chunk(Graph *g, const ChunkRule *rule)
{
    int32_t max_chunk = 0;
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i].chunk > max_chunk) max_chunk = g->node[i].chunk;
    for (int32_t number = 1; number <= max_chunk; number++) TRY(chunk_number(g, number, rule));
    for (int i = 0; i < g->n_nodes; i++) g->node[i].chunk = 0;
    return graph_check(g);
}
