/* shadow_graph.c -- what the shadow device notes instead of running it, and runs when it is told to.
 *
 *     compute  | begin | a ... record e ............ wait f | b | end          noted: a, c, b
 *     d2h      |                wait e | c | record f
 *
 * A queue notes when it has waited for an event of the graph, and its work must be waited for before the
 * end, as a GPU demands; then any order that keeps to events is right, and a graph runs in the order
 * in which it was noted. Numbers and addresses of operations are those of the capture. */
#include <stdlib.h>
#include <string.h>

#include "support/shadow_parts.h"

static int64_t refused_at = -1;
static int epoch;

void shadow_refuses(int64_t at) { refused_at = at; }

void shadow_moves(void) { epoch++; }

static void go_wrong(DeviceGraph *g, const char *what)
{
    if (!g->wrong) g->wrong = what;
}

void graph_note(DeviceQueue *q, Op *op)
{
    DeviceGraph *g = q->graph;
    *g->last = op;
    g->last = &op->next;
    q->noted++;
    if (g->n++ == refused_at) go_wrong(g, "a library cannot be captured");
}

void graph_record(DeviceQueue *q, DeviceEvent *e)
{
    *e = (DeviceEvent){.queue = q, .number = q->noted, .graph = q->graph};
}

void graph_wait(DeviceQueue *q, const DeviceEvent *e)
{
    DeviceGraph *g = q->graph ? q->graph : e->queue->graph;
    MUST(g, "shadow: an event is waited for that is of a graph");
    if (!e->graph) {
        go_wrong(g, "it waits for an event that is not of it");
        return;
    }
    q->graph = g;
    if (q == g->queue && e->number > e->queue->joined) e->queue->joined = e->number;
}

Err graph_wrong(const DeviceQueue *q)
{
    if (!q->graph || !q->graph->wrong) return OK;
    return err_fail(ERR_IO, "shadow: the capture fails: %s", q->graph->wrong);
}

Err graph_forbids(const DeviceContext *c, const char *what)
{
    pthread_mutex_lock(&shadow_all.lock);
    DeviceGraph *g = c->queue[QUEUE_COMPUTE].graph;
    if (g) go_wrong(g, "the host waits, or allocates");
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

Err shadow_capture_end(DeviceQueue *q, DeviceGraph **out)
{
    DeviceGraph *g = q->graph;
    MUST(g && g->queue == q, "shadow: the end of no capture");
    pthread_mutex_lock(&shadow_all.lock);
    for (int i = 0; i < N_DEVICE_QUEUES; i++) {
        DeviceQueue *lane = &q->context->queue[i];
        if (lane != q && lane->joined < lane->noted)
            go_wrong(g, "a queue has work in it that nobody waits for");
        lane->graph = NULL;
        lane->noted = lane->joined = 0;
    }
    pthread_mutex_unlock(&shadow_all.lock);
    const char *wrong = g->wrong;
    if (out && !wrong)
        *out = g;
    else
        shadow_graph_close(g);
    return wrong ? err_fail(ERR_IO, "shadow: the capture fails: %s", wrong) : OK;
}

static Op *again(const Op *op)
{
    Op *copy = op_new(op->what);
    *copy = *op;
    copy->next = NULL;
    if (op->what == DO_FOLD) copy->fold.x = copy->x, copy->fold.out = copy->out;
    return copy;
}

Err shadow_graph_run(DeviceQueue *q, DeviceGraph *g)
{
    MUST(shadow_graph_fits(g), "shadow: a graph that no longer fits is run");
    for (const Op *op = g->first; op; op = op->next) TRY(put(q, again(op)));
    return OK;
}

bool shadow_graph_fits(const DeviceGraph *g) { return g->epoch == epoch; }

void shadow_graph_close(DeviceGraph *g)
{
    for (Op *op = g->first, *next; op; op = next) {
        next = op->next;
        free(op);
    }
    pthread_mutex_lock(&shadow_all.lock);
    shadow_all.count.graphs--;
    pthread_mutex_unlock(&shadow_all.lock);
    free(g);
}
