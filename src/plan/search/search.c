/* search.c -- the heap of nodes: the smallest key first, equal keys in the order of the space. */
#include "plan/search/parts.h"

#include <math.h>
#include <string.h>

enum { MAX_TWIN = 12 }; /* ZeRO levels x recomputations */

typedef struct {
    const PlanNode *node;
    int *at; /* [n]: indices of nodes */
    int n;
} NodeHeap;

static bool is_before(const PlanNode *node, int a, int b)
{
    if (node[a].key_s != node[b].key_s) return node[a].key_s < node[b].key_s;
    if (node[a].level != node[b].level) return node[a].level > node[b].level;
    return a < b;
}

static void sift_down(NodeHeap *h, int i)
{
    for (int child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && is_before(h->node, h->at[child + 1], h->at[child])) child++;
        if (is_before(h->node, h->at[i], h->at[child])) return;
        const int other = h->at[i];
        h->at[i] = h->at[child];
        h->at[child] = other;
    }
}

static void push(NodeHeap *h, int node)
{
    int i = h->n++;
    for (; i > 0 && is_before(h->node, node, h->at[(i - 1) / 2]); i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = node;
}

static int pop(NodeHeap *h)
{
    const int top = h->at[0];
    h->at[0] = h->at[--h->n];
    sift_down(h, 0);
    return top;
}

/* True if the points differ in the layout of a unit alone: sequence and context parallelism,
 * weights along tp. Flops on one rank do not know it. */
static bool same_flops(const PlanPoint *a, const PlanPoint *b)
{
    return a->zero == b->zero && a->recompute == b->recompute && a->micro == b->micro &&
           a->schedule == b->schedule && a->chunks == b->chunks && a->by_cost == b->by_cost &&
           memcmp(&a->mesh, &b->mesh, sizeof a->mesh) == 0;
}

/* The node of such a plan: they are a few nodes before, in the order of the space. NULL: none. */
static const PlanNode *twin(const PlanNode *node, int before)
{
    for (int back = 1; back <= MAX_TWIN && back <= before; back++)
        if (same_flops(&node->point, &node[-back].point)) return &node[-back];
    return NULL;
}

Err plan_search_open(PlanSearch *s)
{
    PlanPoint *point;
    TRY(plan_points(&s->space, s->arena, &point, &s->n));
    TRY(ARENA_NEW(s->arena, s->n + 1, &s->node));
    s->counts.nodes += s->n;
    for (int i = 0; i < s->n; i++) {
        LayoutBound layout;
        PlanBound bound;
        s->node[i] = (PlanNode){.point = point[i], .time = -1};
        const PlanNode *same = twin(&s->node[i], i);
        if (same) {
            s->node[i] = *same;
            s->node[i].point = point[i];
            s->counts.refused += same->level == LEVEL_REFUSED;
            continue;
        }
        TRY(cache_ideal(s, &point[i], &layout));
        const Err err = search_bound(s, &point[i], &layout, &bound);
        if (err != OK && err != ERR_CONFIG) return err;
        s->node[i].level = err == OK ? LEVEL_IDEAL : LEVEL_REFUSED;
        s->counts.refused += err != OK;
        if (err != OK) continue;
        s->node[i].key_s = bound.step_s;
        s->node[i].memory_bytes = bound.memory_bytes;
    }
    return OK;
}

/* A heap of the nodes that may fit. */
static Err fill_heap(const PlanSearch *s, double limit_bytes, Arena *arena, NodeHeap *h)
{
    *h = (NodeHeap){.node = s->node};
    TRY(ARENA_NEW(arena, s->n + 1, &h->at));
    for (int i = 0; i < s->n; i++)
        if (s->node[i].level != LEVEL_REFUSED && s->node[i].memory_bytes <= limit_bytes)
            h->at[h->n++] = i;
    for (int i = h->n / 2 - 1; i >= 0; i--) sift_down(h, i);
    return OK;
}

static bool is_taken(const PlanSearch *s, const PlanRanking *r, int node)
{
    for (int i = 0; i < r->n; i++)
        if (plan_same_mesh(&s->node[r->node[i]].point, &s->node[node].point)) return true;
    return false;
}

/* True if the next level of the node is beyond a limit of the search. */
static bool is_spent(const PlanSearch *s, const PlanNode *node, const SearchCounts *start)
{
    if (node->level == LEVEL_TIMED) return s->counts.linked - start->linked >= s->max_linked;
    return node->level < LEVEL_PLAYED && s->counts.played - start->played >= s->max_played;
}

Err plan_search(PlanSearch *s, double limit_bytes, int want, bool distinct, PlanRanking *out)
{
    const SearchCounts start = s->counts;
    PlanRanking r = {.bound_s = (double)INFINITY, .complete = true};
    NodeHeap h;
    s->limit_bytes = limit_bytes;
    TRY(ARENA_NEW(s->arena, want, &r.node));
    TRY(fill_heap(s, limit_bytes, s->arena, &h));
    while (h.n > 0 && r.n < want) {
        const int at = pop(&h);
        PlanNode *node = &s->node[at];
        if (distinct && is_taken(s, &r, at)) continue;
        if (node->level == LEVEL_LINKED) {
            if (r.n == 0 && r.complete) r.bound_s = node->key_s;
            r.node[r.n++] = at;
            continue;
        }
        if (is_spent(s, node, &start)) { /* left unexamined: its key bounds it */
            if (r.n == 0 && r.complete) r.bound_s = node->key_s;
            if (r.n == 0) r.complete = false;
            continue;
        }
        TRY(search_raise(s, node));
        if (node->level != LEVEL_REFUSED && node->memory_bytes <= limit_bytes) push(&h, at);
        if (s->progress) s->progress(s->context, &s->counts);
    }
    *out = r;
    return OK;
}
