/* fuse_loss.c -- the loss in one op, if the vocabulary is not sharded.
 *
 *     before:  m = row_max logits;  z = row_sums logits m targets;  loss += loss z weights
 *              d.logits = loss_dx logits m z targets weights
 *     after:   d.logits, loss += token_loss_dx logits targets weights       logits are read once
 *
 * Without a gradient, the result is token_loss. Over a sharded vocabulary transfers stand between
 * the ops, and they stay as they are. */
#include "compile/fuse.h"

/* The nodes of one loss; dx is NO_NODE if there is no gradient. */
typedef struct {
    int max, sums, loss, dx;
} LossNodes;

static int maker_as(const Graph *g, Value v, OpId op, int32_t chunk)
{
    const int maker = graph_maker(g, v);
    return maker != NO_NODE && g->node[maker].op == op && g->node[maker].chunk == chunk ? maker
                                                                                        : NO_NODE;
}

static int find_dx(const Graph *g, const Node *sums, const Node *loss)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        if (n->op != OP_loss_dx || n->chunk != loss->chunk || n->in[2] != loss->in[0]) continue;
        if (n->in[0] == sums->in[0] && n->in[1] == sums->in[1] && n->in[3] == sums->in[2] &&
            n->in[4] == loss->in[1])
            return i;
    }
    return NO_NODE;
}

static bool find_loss_nodes(const Graph *g, int index, LossNodes *s)
{
    const Node *loss = &g->node[index];
    if (loss->op != OP_loss || !loss->n_out) return false;
    *s = (LossNodes){.loss = index, .sums = maker_as(g, loss->in[0], OP_row_sums, loss->chunk)};
    if (s->sums == NO_NODE) return false;
    const Node *sums = &g->node[s->sums];
    s->max = maker_as(g, sums->in[1], OP_row_max, loss->chunk);
    if (s->max == NO_NODE || g->node[s->max].in[0] != sums->in[0]) return false;
    s->dx = find_dx(g, sums, loss);
    const int readers = s->dx == NO_NODE ? 1 : 2; /* and no other node */
    return graph_readers(g, sums->in[1]) == readers && graph_readers(g, loss->in[0]) == readers;
}

Err fuse_loss(Graph *g, bool *found)
{
    LossNodes s;
    for (int i = 0; i < g->n_nodes; i++) {
        if (!find_loss_nodes(g, i, &s)) continue;
        const bool back = s.dx != NO_NODE;
        Node *loss = &g->node[s.loss], *n = &g->node[back ? s.dx : s.loss];
        const Node *sums = &g->node[s.sums];
        Value *in;
        TRY(ARENA_NEW(g->arena, 3, &in));
        in[0] = sums->in[0];
        in[1] = sums->in[2];
        in[2] = loss->in[1];
        n->op = back ? OP_token_loss_dx : OP_token_loss;
        n->attr = sums->attr;
        n->in = in;
        n->n_in = 3;
        if (back) {
            n->out[1] = loss->out[0];
            n->keep[1] = loss->keep[0];
            n->n_out = 2;
            loss->n_out = 0;
        }
        g->node[s.sums].n_out = g->node[s.max].n_out = 0;
        *found = true;
        return graph_tidy(g);
    }
    return OK;
}
