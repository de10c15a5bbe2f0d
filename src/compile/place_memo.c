/* place_memo.c -- placements that were found before, by all that the search reads.
 *
 * Layouts that differ in recomputation, in ZeRO or in the ranks along dp and pp have the same
 * placements, and so have all ranks of one layout: the search does not read the rank. An entry
 * lists the distinct layouts once; values and operands are indices into that list. */
#include "compile/place.h"

#include <string.h>

typedef struct {
    PlaceKey key;
    const Layout *layout;                /* the distinct ones */
    const uint16_t *made, *pin;          /* [n_values] */
    const uint16_t *want;                /* of all operands, node by node */
    const uint8_t *max_axes, *copy_sums; /* [n_values] */
    const double *share;                 /* [n_nodes] */
} PlaceEntry;

struct PlaceMemo {
    Arena arena;
    PlaceEntry *entry; /* open addressing; `made` of a free one is NULL */
    int n, size;
};

/* The memo has its bytes for itself: users of the arena may rewind it to a later mark. */
Err place_memo_open(Arena *arena, size_t bytes, PlaceMemo **out)
{
    void *base;
    TRY(ARENA_NEW(arena, 1, out));
    TRY(arena_push(arena, bytes, &base));
    (*out)->arena = (Arena){.name = "placements", .base = base, .cap_bytes = bytes};
    return OK;
}

/* ---- keys ---- */

static void add(PlaceKey *k, uint64_t word)
{
    uint64_t *a = &k->word[0], *b = &k->word[1];
    *a = (*a ^ word) * 0xFF51AFD7ED558CCDu;
    *a ^= *a >> 32;
    *b = (*b + word) * 0x9E3779B97F4A7C15u;
    *b ^= *b >> 29;
}

static void add_bytes(PlaceKey *k, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)data + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        add(k, word);
    }
    add(k, bytes);
}

static void add_text(PlaceKey *k, const char *text) { add_bytes(k, text, strlen(text)); }

static void add_spans(PlaceKey *k, const Span *span, int n)
{
    for (int i = 0; i < n; i++) {
        add(k, (uint64_t)span[i].lo);
        add(k, (uint64_t)span[i].hi);
        add(k, (uint64_t)span[i].step);
    }
    add(k, (uint64_t)n);
}

static void add_map(PlaceKey *k, const SpanMap *m)
{
    add(k, (uint64_t)m->extent);
    add(k, (uint64_t)m->n_parts);
    for (int p = 0; p <= m->n_parts; p++) add(k, (uint64_t)m->first[p]);
    add_spans(k, m->span, m->first[m->n_parts]);
}

static void add_layout(PlaceKey *k, const Layout *l)
{
    add(k, (uint64_t)l->view << 16 | (uint64_t)l->partial << 8 | l->n_cuts);
    for (int i = 0; i < l->n_cuts; i++) {
        const Cut *c = &l->cut[i];
        add(k, (uint64_t)(uint8_t)c->dim << 16 | (uint64_t)c->axes << 8 | (c->map != NULL));
        add(k, (uint64_t)c->grain);
        add(k, (uint64_t)c->group);
        if (c->map) add_map(k, c->map);
    }
}

static void add_value(PlaceKey *k, const ValueInfo *v)
{
    add_text(k, v->name);
    add(k, (uint64_t)v->dtype << 32 | (uint64_t)v->role << 16 | (uint64_t)v->space);
    add(k, (uint64_t)v->index << 32 | (uint32_t)v->span);
    add(k, (uint64_t)v->max_elements);
    add(k, (uint64_t)v->dims.ndim);
    for (int i = 0; i < v->dims.ndim; i++) {
        const Dim *d = &v->dims.dim[i];
        add(k, (uint64_t)d->cap);
        add(k, (uint64_t)d->from);
        add(k, (uint64_t)(uint32_t)d->slot);
        if (d->span) add_spans(k, d->span, d->n_spans);
    }
}

/* No attribute has a pointer yet: those of blocks of keys follow in the pass `context`. */
static void add_node(PlaceKey *k, const Node *n)
{
    add(k, (uint64_t)n->op << 32 | (uint64_t)n->n_in << 16 | (uint64_t)n->n_out);
    for (int i = 0; i < n->n_in; i++) add(k, (uint64_t)n->in[i]);
    for (int i = 0; i < n->n_out; i++) add(k, (uint64_t)n->out[i]);
    add_bytes(k, &n->attr, sizeof n->attr);
    add(k, (uint64_t)n->chunk);
}

static void add_param(PlaceKey *k, const ParamInfo *p)
{
    add_text(k, p->name);
    add(k, (uint64_t)p->view << 8 | (uint64_t)p->ndim);
    for (int i = 0; i < p->ndim; i++) add(k, (uint64_t)p->n[i]);
}

/* Of the mesh: the axes that units or pins know. */
static void add_mesh(PlaceKey *k, const PlacedGraph *p)
{
    const View *v = &p->mesh->view[VIEW_DENSE];
    unsigned axes = place_unit_axes(p->mesh);
    for (Value i = 0; i < p->n_values; i++)
        for (int c = 0; c < p->pin[i].n_cuts; c++) axes |= p->pin[i].cut[c].axes;
    add(k, axes);
    for (int i = 0; i < v->n_axes; i++) {
        add_text(k, v->name[i]);
        add(k, axes >> i & 1 ? (uint64_t)v->size[i] : 0);
    }
}

PlaceKey place_memo_key(const PlacedGraph *p, const unsigned *pinned, const CompileOptions *o)
{
    const Graph *g = p->g;
    PlaceKey k = {{1469598103934665603u, 0}};
    add_text(&k, g->kind);
    add(&k, (uint64_t)g->dtype << 3 | (uint64_t)o->strategy->by_seconds << 2 |
                (uint64_t)o->keep_gathered << 1 | o->strategy->switches);
    add_mesh(&k, p);
    for (Value v = 0; v < p->n_values; v++) {
        add_value(&k, &g->value[v]);
        add_layout(&k, &p->pin[v]);
        add(&k, pinned[v]);
    }
    for (int i = 0; i < p->n_nodes; i++) add_node(&k, &g->node[i]);
    for (int i = 0; i < g->n_params; i++) add_param(&k, &g->param[i]);
    return k;
}

/* ---- the table ---- */

static PlaceEntry *slot_of(const PlaceMemo *m, const PlaceKey *k)
{
    const uint64_t mask = (uint64_t)m->size - 1;
    uint64_t at = k->word[0] & mask;
    while (m->entry[at].made && memcmp(&m->entry[at].key, k, sizeof *k) != 0) at = (at + 1) & mask;
    return &m->entry[at];
}

static Err grow(PlaceMemo *m)
{
    PlaceMemo more = {.size = m->size ? 2 * m->size : 64};
    if (2 * (m->n + 1) <= m->size) return OK;
    TRY(ARENA_NEW(&m->arena, more.size, &more.entry));
    for (int i = 0; i < m->size; i++)
        if (m->entry[i].made) *slot_of(&more, &m->entry[i].key) = m->entry[i];
    m->entry = more.entry;
    m->size = more.size;
    return OK;
}

/* ---- entries ---- */

/* The distinct layouts of a placed graph. */
typedef struct {
    Layout *layout;
    int n;
} LayoutList;

static uint16_t find_layout(LayoutList *list, const Layout *l)
{
    int i = 0;
    while (i < list->n && !layout_equal(&list->layout[i], l)) i++;
    if (i == list->n) list->layout[list->n++] = *l;
    return (uint16_t)i;
}

static int count_operands(const PlacedGraph *p)
{
    int n = 0;
    for (int i = 0; i < p->n_nodes; i++) n += p->g->node[i].n_in;
    return n;
}

/* Copies the layouts, and the span maps that they borrow, into the memo. */
static Err copy_layouts(PlaceMemo *m, const LayoutList *list, const Layout **out)
{
    Layout *copy;
    TRY(ARENA_NEW(&m->arena, list->n, &copy));
    for (int i = 0; i < list->n; i++) {
        copy[i] = list->layout[i];
        for (int c = 0; c < copy[i].n_cuts; c++) {
            const SpanMap *map = copy[i].cut[c].map;
            if (map)
                TRY(spans_map(&m->arena, map->extent, map->n_parts, map->first, map->span,
                              &copy[i].cut[c].map));
        }
    }
    *out = copy;
    return OK;
}

static Err copy_bytes(Arena *a, const void *from, size_t bytes, void *out)
{
    void *to;
    TRY(arena_push(a, bytes + 1, &to));
    memcpy(to, from, bytes);
    memcpy(out, &to, sizeof to);
    return OK;
}

static Err add_entry(PlaceMemo *m, const PlaceKey *key, const PlacedGraph *p, Arena *temp)
{
    const size_t values = (size_t)p->n_values, nodes = (size_t)p->n_nodes;
    const int operands = count_operands(p);
    PlaceEntry e = {.key = *key};
    LayoutList list = {0};
    uint16_t *made, *pin, *want, *next;
    TRY(ARENA_NEW(temp, 2 * p->n_values + operands + 1, &list.layout));
    TRY(ARENA_NEW(&m->arena, p->n_values + 1, &made));
    TRY(ARENA_NEW(&m->arena, p->n_values + 1, &pin));
    TRY(ARENA_NEW(&m->arena, operands + 1, &want));
    for (Value v = 0; v < p->n_values; v++) {
        made[v] = find_layout(&list, &p->made[v]);
        pin[v] = find_layout(&list, &p->pin[v]);
    }
    next = want;
    for (int i = 0; i < p->n_nodes; i++)
        for (int j = 0; j < p->g->node[i].n_in; j++) *next++ = find_layout(&list, &p->want[i][j]);
    TRY(copy_layouts(m, &list, &e.layout));
    TRY(copy_bytes(&m->arena, p->max_axes, values * sizeof *e.max_axes, &e.max_axes));
    TRY(copy_bytes(&m->arena, p->copy_sums, values * sizeof *e.copy_sums, &e.copy_sums));
    TRY(copy_bytes(&m->arena, p->share, nodes * sizeof *e.share, &e.share));
    e.made = made;
    e.pin = pin;
    e.want = want;
    TRY(grow(m));
    *slot_of(m, key) = e;
    m->n++;
    return OK;
}

Err place_memo_keep(PlaceMemo *m, const PlaceKey *key, const PlacedGraph *p, Arena *temp)
{
    const size_t mark = arena_mark(&m->arena);
    const Err err = add_entry(m, key, p, temp);
    if (err == ERR_NOMEM) arena_rewind(&m->arena, mark); /* it is full: no more are kept */
    return err == ERR_NOMEM ? OK : err;
}

bool place_memo_find(const PlaceMemo *m, const PlaceKey *key, PlacedGraph *p)
{
    const PlaceEntry *e = m->size ? slot_of(m, key) : NULL;
    if (!e || !e->made) return false;
    const uint16_t *want = e->want;
    for (Value v = 0; v < p->n_values; v++) {
        p->made[v] = e->layout[e->made[v]];
        p->pin[v] = e->layout[e->pin[v]];
    }
    for (int i = 0; i < p->n_nodes; i++)
        for (int j = 0; j < p->g->node[i].n_in; j++) p->want[i][j] = e->layout[*want++];
    memcpy(p->max_axes, e->max_axes, (size_t)p->n_values * sizeof *e->max_axes);
    memcpy(p->copy_sums, e->copy_sums, (size_t)p->n_values * sizeof *e->copy_sums);
    memcpy(p->share, e->share, (size_t)p->n_nodes * sizeof *e->share);
    return true;
}
