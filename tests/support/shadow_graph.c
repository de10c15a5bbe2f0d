/* shadow_graph.c -- captures of the shadow device: operations recorded instead of run.
 *
 *     compute  | begin | a ... record e ............ wait f | b | end          graph: a, c, b
 *     d2h      |                wait e | c | record f
 *
 * A queue joins the capture when it waits for an event of the graph, and must itself be waited for
 * before the end, as a GPU requires. A launch puts the operations into the same queues with the
 * same waits, so that a branch that waits for another rank holds up no other branch. Numbers and
 * addresses of operations are those of the capture. */
#include <stdlib.h>
#include <string.h>

#include "support/shadow_parts.h"

static int64_t refused_at = -1;
static int epoch;

void shadow_refuse_capture_at(int64_t at) { refused_at = at; }

void shadow_invalidate_graphs(void) { epoch++; }

static void set_error(DeviceGraph *g, const char *what)
{
    if (!g->wrong) g->wrong = what;
}

static void append(DeviceQueue *q, ShadowOp *op)
{
    op->of = q;
    *q->graph->last = op;
    q->graph->last = &op->next;
    q->appended++;
}

void graph_capture_op(DeviceQueue *q, ShadowOp *op)
{
    DeviceGraph *g = q->graph;
    append(q, op);
    if (g->n++ == refused_at) set_error(g, "a library cannot be captured");
}

void graph_record(DeviceQueue *q, DeviceEvent *e)
{
    *e = (DeviceEvent){.queue = q, .number = q->appended, .graph = q->graph};
}

void graph_wait(DeviceQueue *q, const DeviceEvent *e)
{
    DeviceGraph *g = q->graph ? q->graph : e->queue->graph;
    MUST(g, "shadow: a wait outside a capture for an event inside one");
    if (!e->graph) {
        set_error(g, "it waits for an event outside the capture");
        return;
    }
    q->graph = g;
    ShadowOp *op = op_new(DO_WAIT);
    op->queue = e->queue;
    op->number = e->number;
    append(q, op);
    if (q == g->queue && e->number > e->queue->joined) e->queue->joined = e->number;
}

Err graph_error(const DeviceQueue *q)
{
    if (!q->graph || !q->graph->wrong) return OK;
    return err_fail(ERR_IO, "shadow: the capture fails: %s", q->graph->wrong);
}

Err graph_forbids(const DeviceContext *c, const char *what)
{
    pthread_mutex_lock(&shadow_all.lock);
    DeviceGraph *g = c->queue[QUEUE_COMPUTE].graph;
    if (g) set_error(g, "the host waits, or allocates");
    pthread_mutex_unlock(&shadow_all.lock);
    if (!g) return OK;
    return err_fail(ERR_IO, "shadow: %s within a capture", what);
}

Err shadow_capture_begin(DeviceQueue *q)
{
    MUST(!q->graph, "shadow: a capture within a capture");
    DeviceGraph *g = calloc(1, sizeof *g);
    MUST(g, "shadow: no memory");
    *g = (DeviceGraph){.queue = q, .last = &g->first, .epoch = epoch};
    pthread_mutex_lock(&shadow_all.lock);
    q->graph = g;
    shadow_all.count.graphs++;
    pthread_mutex_unlock(&shadow_all.lock);
    return OK;
}

static void leave(DeviceQueue *q, DeviceGraph *g)
{
    if (q != g->queue && q->joined < q->appended)
        set_error(g, "a queue has work that is not waited for");
    q->graph = NULL;
    q->appended = q->joined = 0;
}

Err shadow_capture_end(DeviceQueue *q, DeviceGraph **out)
{
    DeviceGraph *g = q->graph;
    MUST(g && g->queue == q, "shadow: a capture ends that did not begin");
    pthread_mutex_lock(&shadow_all.lock);
    for (int i = 0; i < N_DEVICE_QUEUES; i++) leave(&q->context->queue[i], g);
    for (DeviceQueue *more = q->context->more; more; more = more->more) leave(more, g);
    pthread_mutex_unlock(&shadow_all.lock);
    const char *wrong = g->wrong;
    if (out && !wrong)
        *out = g;
    else
        shadow_graph_close(g);
    return wrong ? err_fail(ERR_IO, "shadow: the capture fails: %s", wrong) : OK;
}

static ShadowOp *copy_op(const ShadowOp *op)
{
    ShadowOp *copy = op_new(op->what);
    *copy = *op;
    copy->next = NULL;
    if (op->what == DO_FOLD) copy->fold.x = copy->x, copy->fold.out = copy->out;
    return copy;
}

Err shadow_graph_run(DeviceQueue *q, DeviceGraph *g)
{
    MUST(shadow_graph_fits(g), "shadow: a graph that no longer fits is run");
    DeviceContext *c = q->context;
    pthread_mutex_lock(&shadow_all.lock);
    for (int i = 0; i < N_DEVICE_QUEUES; i++) c->queue[i].base = c->queue[i].put;
    for (DeviceQueue *more = c->more; more; more = more->more) more->base = more->put;
    pthread_mutex_unlock(&shadow_all.lock);
    for (const ShadowOp *op = g->first; op; op = op->next) {
        ShadowOp *copy = copy_op(op);
        if (op->what == DO_WAIT) copy->number += op->queue->base;
        TRY(put(op->of, copy));
    }
    return OK;
}

bool shadow_graph_fits(const DeviceGraph *g) { return g->epoch == epoch; }

void shadow_graph_close(DeviceGraph *g)
{
    for (ShadowOp *op = g->first, *next; op; op = next) {
        next = op->next;
        if (op->drop) op->drop(op->arg);
        free(op);
    }
    pthread_mutex_lock(&shadow_all.lock);
    shadow_all.count.graphs--;
    pthread_mutex_unlock(&shadow_all.lock);
    free(g);
}
