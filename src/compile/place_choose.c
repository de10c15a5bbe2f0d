/* place_choose.c -- a row for every node, at the lowest cost: an exact dynamic program.
 *
 * Nodes are taken in their order. The state after node i is the set of placements available for
 * every value that is still to be read. Among all ways to reach one state only the cheapest is
 * kept, so the search is exact:
 *
 *     node 0     node 1          node 2
 *       o --row--> o  cost 0 ------> o
 *         \-row--> o  cost 8 --x---> o      the same state, more expensive: dropped
 *
 * A state has a slot for each value that is live there; a slot is used again when its value dies.
 *
 * Cost is seconds along cp (cost/cost.h), then bytes, transfers and flops. A first search that
 * keeps few states (a beam) finds a bound; the second drops only states that cost more than that. A
 * graph with too many equally cheap states (several experts, gates and partial sums at once) is
 * placed by a wider beam instead: legal, but not proven to be the cheapest. */
#include "compile/place_choose_parts.h"

#include <string.h>

static int compare_cost(const PlacementCost *a, const PlacementCost *b)
{
    if (a->seconds < b->seconds || a->seconds > b->seconds) return a->seconds < b->seconds ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    if (a->steps != b->steps) return a->steps < b->steps ? -1 : 1;
    return a->flops < b->flops ? -1 : a->flops > b->flops;
}

static AvailPlacements avail_only(PlacementId id)
{
    return (AvailPlacements){{id, NO_PLACEMENT, NO_PLACEMENT}};
}

static int avail_find(const AvailPlacements *a, PlacementId id)
{
    for (int i = 0; i <= N_EXTRA; i++)
        if (a->id[i] == id) return i;
    return -1;
}

/* True for a reduction of a partial value. Within a chunk a value exists some rows at a time, and
 * only an elementwise reshard is possible there. */
static bool reshards_by_rows(const Placement *from, const Placement *to)
{
    return (from->kind == PLACEMENT_SUM || from->kind == PLACEMENT_MAX) &&
           to->kind == PLACEMENT_REPLICATE;
}

/* True if the reshard would move rows of experts between ranks. Where tokens are sharded, each rank
 * has sorted its own: row numbers and offsets of two ranks are not parts of one value. */
static bool mixes_rows(const Placement *from, const Placement *to)
{
    return (from->kind == PLACEMENT_SHARD && from->dim == 0) ||
           (to->kind == PLACEMENT_SHARD && to->dim == 0);
}

/* Makes a placement of a value available and adds the cost; returns false if that is impossible. */
static bool reshard_value(const PlacementSearch *search, Value v, PlacementId placement, bool added,
                          SearchState *s)
{
    const PlaceContext *p = search->p;
    AvailPlacements *a = &s->avail[search->slot[v]];
    int steps;
    if (avail_find(a, placement) >= 0) return true;
    const Placement *from = &p->placements.list[a->id[0]], *to = &p->placements.list[placement];
    if (added && from->kind == PLACEMENT_REPLICATE && to->kind == PLACEMENT_SUM) return true;
    if (p->g->value[v].role == ROLE_PARAM) return false;
    /* Summands of 8 bits are not added. */
    if (dtype_is_fp8(p->g->value[v].dtype) && from->copy_sums && !to->copy_sums) return false;
    if (search->inside[v] && !reshards_by_rows(from, to)) return false;
    if (search->ragged[v] && mixes_rows(from, to)) return false;
    const int64_t bytes =
        placement_reshard_bytes(&p->placements, a->id[0], placement, p->bytes[v], &steps);
    if (bytes < 0) return false;
    s->cost.seconds += placement_reshard_seconds(p, a->id[0], placement, p->bytes[v], bytes);
    s->cost.bytes += bytes;
    s->cost.steps += steps;
    const int room = avail_find(a, NO_PLACEMENT);
    if (room > 0) a->id[room] = placement;
    return true;
}

/* True if ranks have summands of the value. */
static bool needs_sum(const Placement *a) { return a->kind == PLACEMENT_SUM || a->copy_sums; }

/* Runs the node this way in state `to`; returns false if an operand cannot be resharded. */
static bool run_node(const PlacementSearch *s, int node, const RowChoice *c, SearchState *to)
{
    const PlaceContext *p = s->p;
    const Node *n = &p->g->node[node];
    for (int i = 0; i < n->n_in; i++)
        if (!reshard_value(s, n->in[i], c->in[i], p->sig[node].in[i].added, to)) return false;
    for (int i = 0; i < n->n_out; i++) {
        const Value v = n->out[i];
        to->avail[s->slot[v]] = avail_only(c->out[i]);
        if (p->sum_s && needs_sum(&p->placements.list[c->out[i]])) to->cost.seconds += p->sum_s[v];
        if (p->pin[v] == NO_PLACEMENT) continue;
        if (!reshard_value(s, v, p->pin[v], false, to)) return false;
        to->avail[s->slot[v]] = avail_only(p->pin[v]); /* readers see it as it is pinned */
    }
    to->cost.seconds += c->seconds;
    to->cost.flops += c->flops;
    return true;
}

/* Forward gathers are not kept for the backward phases. */
static void drop_gathers(const PlacementSearch *s, AvailPlacements *avail)
{
    for (int k = 0; k < s->n_slots; k++) {
        AvailPlacements *a = &avail[k];
        if (a->id[0] == NO_PLACEMENT || a->id[0] == OPEN_PLACEMENT) continue;
        if (s->p->placements.list[a->id[0]].kind != PLACEMENT_SHARD) continue;
        for (int i = 1; i <= N_EXTRA; i++) /* the results of an all-to-all are no larger: kept */
            if (a->id[i] == placement_replicate()) a->id[i] = NO_PLACEMENT;
    }
}

/* Drops the values of a step without a later read from the state. */
static void drop_dead(const PlacementSearch *s, int step, AvailPlacements *avail)
{
    const PlaceContext *p = s->p;
    const int node = s->step[step], next = step + 1 < s->n_steps ? s->step[step + 1] : node + 1;
    const Node *n = &p->g->node[node];
    for (int i = 0; i < search_n_operands(n); i++) {
        const Value v = search_operand(s, node, i);
        if (v != NO_VALUE && s->last_read[v] <= node) avail[s->slot[v]] = avail_only(NO_PLACEMENT);
    }
    if (next >= p->n_forward && node < p->n_forward && p->regather) drop_gathers(s, avail);
}

static uint32_t hash_of(const AvailPlacements *avail, int n)
{
    uint64_t h = 1469598103934665603u, word;
    for (size_t i = 0; i < (size_t)n * sizeof *avail; i += sizeof word) {
        memcpy(&word, (const char *)avail + i, sizeof word);
        h = (h ^ word) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

/* The entry of a state of the layer that is equal, or the free one where it belongs. */
static int *find_state(const PlacementSearch *s, int layer, const SearchState *state)
{
    const uint32_t mask = (uint32_t)s->table_size - 1;
    const size_t bytes = (size_t)s->n_slots * sizeof *state->avail;
    for (uint32_t at = state->hash & mask;; at = (at + 1) & mask) {
        if (!s->table[at]) return &s->table[at];
        const SearchState *old = &s->layer[layer][s->table[at] - 1];
        if (old->hash == state->hash && memcmp(old->avail, state->avail, bytes) == 0)
            return &s->table[at];
    }
}

/* Keeps half of the table free for one more state of the layer. */
static Err grow_table(PlacementSearch *s, int layer)
{
    if (2 * (s->n[layer] + 1) <= s->table_size) return OK;
    s->table_size *= 4;
    TRY(ARENA_NEW(s->p->arena, s->table_size, &s->table));
    for (int i = 0; i < s->n[layer]; i++) *find_state(s, layer, &s->layer[layer][i]) = i + 1;
    return OK;
}

/* Grows a layer for one more state. */
static Err grow_layer(PlacementSearch *s, int layer)
{
    SearchState *more;
    if (s->n[layer] < s->cap[layer]) return OK;
    s->cap[layer] = s->cap[layer] ? 4 * s->cap[layer] : 32;
    TRY(ARENA_NEW(s->p->arena, s->cap[layer], &more));
    if (s->n[layer]) memcpy(more, s->layer[layer], (size_t)s->n[layer] * sizeof *more);
    s->layer[layer] = more;
    return OK;
}

/* Keeps the state unless the layer has the same one at no higher cost. */
static Err keep_state(PlacementSearch *s, int layer, SearchState *state)
{
    state->hash = hash_of(state->avail, s->n_slots);
    TRY(grow_table(s, layer));
    int *at = find_state(s, layer, state);
    if (*at) {
        SearchState *old = &s->layer[layer][*at - 1];
        if (compare_cost(&state->cost, &old->cost) >= 0) return OK;
        AvailPlacements *buffer = old->avail;
        *old = *state;
        old->avail = buffer;
        return OK;
    }
    if (s->n[layer] == (s->p->open ? MAX_OPEN_STATES : MAX_STATES)) {
        s->full = true;
        return OK;
    }
    TRY(grow_layer(s, layer));
    SearchState *kept = &s->layer[layer][s->n[layer]++];
    *kept = *state;
    TRY(ARENA_NEW(s->p->arena, s->n_slots, &kept->avail));
    memcpy(kept->avail, state->avail, (size_t)s->n_slots * sizeof *state->avail);
    *at = s->n[layer];
    return OK;
}

/* Open weights are pinned where this state has them. */
static void pin_open(const PlacementSearch *s, int node, const AvailPlacements *of)
{
    for (int i = 0; i < search_n_operands(&s->p->g->node[node]); i++) {
        const Value v = search_operand(s, node, i);
        if (search_is_open(s->p, v)) s->p->pin[v] = of[s->slot[v]].id[0];
    }
}

/* The choices of a node in a state; they depend on the placements of its inputs alone, and on those
 * of the weights whose gradients it makes. */
static Err find_rows(PlacementSearch *s, int node, const AvailPlacements *of, const NodeRows **out)
{
    const Node *n = &s->p->g->node[node];
    NodeRows key = {.next = s->rows[node]}, *found;
    RowChoice choice[MAX_CHOICES];
    int n_avail[MAX_IN] = {0};
    for (int i = 0; i < n->n_in; i++)
        for (int k = 0; k <= N_EXTRA; k++) {
            const PlacementId id = of[s->slot[n->in[i]]].id[k];
            if (id != NO_PLACEMENT) key.avail[i][n_avail[i]++] = id;
        }
    for (int i = 0; i < n->n_in; i++)
        for (int k = n_avail[i]; k < MAX_AVAIL; k++) key.avail[i][k] = NO_PLACEMENT;
    for (int i = 0; i < MAX_OUT; i++) {
        const Value w = i < n->n_out ? s->weight_of[n->out[i]] : NO_VALUE;
        key.use[i] = w == NO_VALUE ? NO_PLACEMENT : of[s->slot[w]].id[0];
    }
    for (*out = key.next; *out; *out = (*out)->next)
        if (memcmp((*out)->avail, key.avail, sizeof key.avail) == 0 &&
            memcmp((*out)->use, key.use, sizeof key.use) == 0)
            return OK;
    pin_open(s, node, of);
    TRY(rows_of_node(s->p, node, key.avail, n_avail, choice, &key.n));
    TRY(ARENA_NEW(s->p->arena, 1, &found));
    TRY(ARENA_NEW(s->p->arena, key.n + 1, &key.choice));
    memcpy(key.choice, choice, (size_t)key.n * sizeof *choice);
    *found = key;
    *out = s->rows[node] = found;
    return OK;
}

/* True if no end from here, after `node`, costs as little as the bound. The rest takes at least the
 * seconds of its nodes, divided by all ranks. Sums of seconds in another order may differ. */
static bool exceeds(const PlaceContext *p, int node, const PlacementCost *cost,
                    const PlacementCost *bound)
{
    if (!p->rates) return compare_cost(cost, bound) > 0;
    return cost->seconds + p->rest[node + 1] > bound->seconds * (1 + 1e-12);
}

/* A state that is extended by a step; `avail`: its placements, with open weights chosen. */
typedef struct {
    int step, from; /* from: its index in the layer */
    PlacementCost cost;
    const PlacementCost *bound;
    SearchState *next; /* room for successors */
} Extension;

/* Adds the successors of one state to the next layer. */
static Err extend(PlacementSearch *s, const Extension *e, const AvailPlacements *avail)
{
    const int node = s->step[e->step];
    const NodeRows *rows;
    AvailPlacements *buffer = e->next->avail;
    TRY(find_rows(s, node, avail, &rows));
    for (int i = 0; i < rows->n; i++) {
        *e->next = (SearchState){e->cost, e->from, 0, rows->choice[i], buffer};
        memcpy(buffer, avail, (size_t)s->n_slots * sizeof *buffer);
        if (!run_node(s, node, &rows->choice[i], e->next)) continue;
        if (e->bound && exceeds(s->p, node, &e->next->cost, e->bound)) continue;
        drop_dead(s, e->step, buffer);
        TRY(keep_state(s, e->step + 1, e->next));
    }
    return OK;
}

/* The first weight that the node reads and that the state leaves open; NO_VALUE: none. */
static Value open_read(const PlacementSearch *s, int node, const AvailPlacements *avail)
{
    const Node *n = &s->p->g->node[node];
    for (int i = 0; i < n->n_in && s->p->open; i++)
        if (avail[s->slot[n->in[i]]].id[0] == OPEN_PLACEMENT) return n->in[i];
    return NO_VALUE;
}

/* Extends the state by each placement of the open weights that the step reads. depth: how many are
 * chosen. */
static Err extend_open(PlacementSearch *s, Extension e, const AvailPlacements *avail, int depth)
{
    const Value v = open_read(s, s->step[e.step], avail);
    if (v == NO_VALUE) return extend(s, &e, avail);
    MUST(depth < MAX_OPEN_READS, "%d", depth);
    const OpenWeight *w = &s->p->open[v];
    const double before = e.cost.seconds;
    memcpy(s->open[depth], avail, (size_t)s->n_slots * sizeof *avail);
    for (int i = 0; i < w->n; i++) {
        s->open[depth][s->slot[v]] = avail_only(w->id[i]);
        e.cost.seconds = before + w->seconds[i];
        TRY(extend_open(s, e, s->open[depth], depth + 1));
    }
    return OK;
}

/* Moves the cheapest `keep` states of a layer to its front and drops the others. */
static void prune(SearchState *state, int *n, int keep)
{
    for (int i = 0; i < keep && i < *n; i++) {
        int least = i;
        for (int k = i + 1; k < *n; k++)
            if (compare_cost(&state[k].cost, &state[least].cost) < 0) least = k;
        const SearchState swap = state[i];
        state[i] = state[least];
        state[least] = swap;
    }
    if (*n > keep) *n = keep;
}

static void first_state(const PlacementSearch *s, AvailPlacements *avail)
{
    const Graph *g = s->p->g;
    for (int k = 0; k < s->n_slots; k++) avail[k] = avail_only(NO_PLACEMENT);
    for (Value v = 0; v < g->n_values; v++)
        if (s->given[v])
            avail[s->slot[v]] = avail_only(search_is_open(s->p, v) ? OPEN_PLACEMENT : s->p->pin[v]);
}

static Err no_row(const Graph *g, int node)
{
    return err_fail(ERR_CHECK,
                    "graph %s: node %d, %s: no row of the op fits the layouts that the strategy "
                    "pins around it",
                    g->kind, node, op_info(g->node[node].op)->name);
}

/* One search over the nodes; *best: the cost of the cheapest end. */
static Err search_nodes(PlacementSearch *s, const PlacementCost *bound, int beam,
                        PlacementCost *best)
{
    const Graph *g = s->p->g;
    SearchState next = {0};
    TRY(ARENA_NEW(s->p->arena, s->n_slots, &next.avail));
    first_state(s, next.avail);
    s->n[0] = 0;
    TRY(grow_layer(s, 0));
    s->layer[0][s->n[0]++] = next;
    TRY(ARENA_NEW(s->p->arena, s->n_slots, &next.avail));
    for (int i = 0; i < s->n_steps; i++) {
        s->n[i + 1] = 0;
        memset(s->table, 0, (size_t)s->table_size * sizeof *s->table);
        for (int k = 0; k < s->n[i] && !(s->full && !beam); k++) {
            const SearchState *from = &s->layer[i][k]; /* this layer does not grow */
            TRY(extend_open(s, (Extension){i, k, from->cost, bound, &next}, from->avail, 0));
        }
        if (s->full && !beam) return OK; /* not exact any more */
        if (s->n[i + 1] == 0) return beam ? s->dead = s->step[i], OK : no_row(g, s->step[i]);
        if (beam) prune(s->layer[i + 1], &s->n[i + 1], beam);
    }
    prune(s->layer[s->n_steps], &s->n[s->n_steps], 1);
    *best = s->layer[s->n_steps][0].cost;
    return OK;
}

Err place_choose(PlaceContext *p, RowChoice **choice)
{
    PlacementSearch s = {.p = p, .dead = -1};
    PlacementCost bound, best;
    int at = 0;
    TRY(place_search_open(&s));
    TRY(search_nodes(&s, NULL, BEAM, &bound));
    const bool found = s.dead < 0;
    s.full = false; /* a beam may leave out states */
    TRY(search_nodes(&s, found ? &bound : NULL, 0, &best));
    s.dead = -1;
    if (s.full) TRY(search_nodes(&s, NULL, WIDE_BEAM, &best));
    if (s.dead >= 0) return no_row(p->g, s.dead);
    for (int i = s.n_steps; i > 0; i--) {
        (*choice)[s.step[i - 1]] = s.layer[i][at].choice;
        at = s.layer[i][at].parent;
    }
    p->seconds = best.seconds;
    p->beamed = s.full;
    return OK;
}
