/* reshard_test.h -- a reshard executed by all ranks in one process. Every element is compared with
 * the value expected from all ranks' holdings.
 *
 *     storage of `from` on all ranks --pack, send, unpack--> storage of `to` on all ranks
 *
 * Each summand is a different random number. The fold is v * 31 + x, which depends on the order. */
#ifndef TESTS_UNIT_RESHARD_TEST_H
#define TESTS_UNIT_RESHARD_TEST_H

#include "support/expect.h"

#include <stdlib.h>
#include "layout/reshard.h"

enum { MAX_WORLD = 12 };

typedef struct {
    Arena lists, temp, data;
    Reshard r;
    Sharding src, dst; /* as given by the test */
    int world;
    ReshardPart part[MAX_WORLD];
    uint64_t *from[MAX_WORLD], *fold[MAX_WORLD]; /* storage of each rank */
    int64_t *writes[MAX_WORLD], *adds[MAX_WORLD];
    int64_t received[MAX_WORLD]; /* from others */
} Sim;

static inline void sim_open(Sim *s)
{
    memset(s, 0, sizeof *s);
    DO(arena_open(&s->lists, "lists", (size_t)1 << 30));
    DO(arena_open(&s->temp, "temp", (size_t)1 << 30));
    DO(arena_open(&s->data, "data", (size_t)1 << 30));
}

static inline void sim_close(Sim *s)
{
    arena_close(&s->lists);
    arena_close(&s->temp);
    arena_close(&s->data);
}

static inline uint64_t mixed(uint64_t x)
{
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return (x ^ x >> 29) * 0x94d049bb133111ebu;
}

static inline bool sim_has(const Sharding *p, int rank)
{
    const unsigned pp = mesh_axes(p->mesh, p->layout.view, "pp");
    return rank < p->mesh->world &&
           (p->stage == ALL_STAGES || mesh_part(p->mesh, p->layout.view, pp, rank) == p->stage);
}

static inline Holding sim_holding(const Sharding *p, const Shape *s, int rank)
{
    return holding_of(&p->layout, p->mesh, s, rank);
}

/* Adds a summand. Copies are added in rank order, which the oracle cannot derive over two meshes;
 * there the sum is order-independent. */
static inline uint64_t sim_add(const Sim *s, uint64_t v, uint64_t x)
{
    return s->src.sum_copies ? v + x : v * 31 + x;
}

/* The index of the summand that a rank holds: ranks differ along partial axes, and along axes of
 * copies if copies are summed. */
static inline int sim_summand(const Sharding *p, int rank)
{
    unsigned axes = p->layout.partial;
    for (int i = 0; p->sum_copies && i < p->layout.n_cuts; i++) {
        const Cut *c = &p->layout.cut[i];
        if (c->dim != DIM_FLAT && c->map && c->map->copies) axes |= c->axes;
    }
    return mesh_part(p->mesh, p->layout.view, axes, rank);
}

static inline uint64_t sim_value(const Sharding *p, int rank, int64_t element)
{
    return mixed((uint64_t)element * 1000 + (uint64_t)sim_summand(p, rank));
}

/* Writes the addresses of a box in its order, as an odometer. Returns their number. */
static inline int64_t box_addresses(const Box *b, int64_t at, const int64_t *stride, int64_t *out)
{
    int64_t x[MAX_DIMS], n = 0;
    memcpy(x, b->lo, sizeof x);
    for (int d = 0; d >= 0;) {
        int64_t a = at;
        for (d = 0; d < b->ndim; d++) a += (x[d] - b->lo[d]) / (b->skip[d] + 1) * stride[d];
        out[n++] = a;
        for (d = b->ndim - 1; d >= 0 && (x[d] += b->skip[d] + 1) >= b->hi[d]; d--) x[d] = b->lo[d];
    }
    return n;
}

/* Writes the addresses of moves [first, end) of a side, at this rank's end. */
static inline int64_t side_addresses(const ReshardSide *s, bool in, int64_t first, int64_t end,
                                     int64_t *out)
{
    int64_t n = 0;
    for (int64_t i = first; i < end; i++) {
        const Move *m = &s->move[i];
        n += box_addresses(&m->box, in ? m->to_at : m->from_at, in ? m->to_stride : m->from_stride,
                           out + n);
    }
    return n;
}

static inline int64_t *sim_numbers(Sim *s, int64_t n)
{
    int64_t *out;
    DO(ARENA_NEW(&s->data, n + 1, &out));
    return out;
}

/* Moves message i to rank `to`: packs it on the sender, unpacks it on the receiver. The moves of
 * both lists must agree. */
static inline void sim_message(Sim *s, int to, int i)
{
    const ReshardSide *in = &s->part[to].in;
    const int from = in->peers.rank[i];
    const ReshardSide *out = &s->part[from].out;
    int j = 0;
    while (j < out->peers.n && out->peers.rank[j] != to) j++;
    assert_true(j < out->peers.n);
    assert_int_equal(in->count[i], out->count[j]);
    assert_int_equal(in->first[i + 1] - in->first[i], out->first[j + 1] - out->first[j]);

    const size_t mark = arena_mark(&s->data);
    int64_t *at_from = sim_numbers(s, in->count[i]), *at_to = sim_numbers(s, in->count[i]);
    int64_t n = side_addresses(out, false, out->first[j], out->first[j + 1], at_from);
    assert_int_equal(n, in->count[i]);
    assert_int_equal(side_addresses(in, true, in->first[i], in->first[i + 1], at_to), n);
    n = 0;
    for (int64_t m = in->first[i]; m < in->first[i + 1]; m++) {
        const Move *move = &in->move[m], *twin = &out->move[out->first[j] + m - in->first[i]];
        assert_int_equal(move->from, from);
        assert_int_equal(move->to, to);
        assert_memory_equal(&move->box, &twin->box, sizeof move->box);
        assert_int_equal(move->add, twin->add);
        for (const int64_t end = n + box_count(&move->box); n < end; n++) {
            const uint64_t x = s->from[from][at_from[n]];
            uint64_t *v = &s->fold[to][at_to[n]];
            *v = move->add ? sim_add(s, *v, x) : x;
            if (move->add)
                s->adds[to][at_to[n]]++;
            else
                s->writes[to][at_to[n]]++;
            if (move->add) assert_int_equal(s->writes[to][at_to[n]], 1); /* written before added */
        }
    }
    if (from != to) s->received[to] += n;
    arena_rewind(&s->data, mark);
}

/* "direct" is true exactly when the addresses are 0, 1, 2, ... */
static inline void sim_check_direct(Sim *s, const ReshardSide *side, bool in)
{
    const ReshardKind k = s->r.kind;
    const bool alike =
        k == RESHARD_ALL_REDUCE || k == (in ? RESHARD_REDUCE_SCATTER : RESHARD_ALL_GATHER);
    const size_t mark = arena_mark(&s->data);
    int64_t count = 0;
    bool direct = true;
    for (int i = 0; i < side->peers.n; i++) count += side->count[i];
    int64_t *at = sim_numbers(s, count);
    const int64_t n = side_addresses(side, in, 0, side->first[alike ? 1 : side->peers.n], at);
    for (int64_t i = 0; i < n; i++) direct = direct && at[i] == i;
    assert_int_equal(side->direct, direct);
    arena_rewind(&s->data, mark);
}

/* Checks that the group of a collective equals both lists of peers, and that its counts are those
 * of the kind. */
static inline void sim_check_group(Sim *s, int rank)
{
    const ReshardPart *p = &s->part[rank];
    RankList g;
    for (int i = 0; s->r.kind == RESHARD_EXCHANGE && i < p->out.peers.n; i++)
        assert_true(p->out.count[i] > 0);
    if (s->r.kind < RESHARD_ALL_GATHER || s->r.kind > RESHARD_ALL_TO_ALL) return;
    DO(mesh_group(s->src.mesh, s->src.layout.view, s->r.axes, rank, &s->data, &g));
    assert_int_equal(p->in.peers.n, g.n);
    assert_int_equal(p->out.peers.n, g.n);
    assert_memory_equal(p->in.peers.rank, g.rank, sizeof *g.rank * (size_t)g.n);
    assert_memory_equal(p->out.peers.rank, g.rank, sizeof *g.rank * (size_t)g.n);
    for (int i = 1; i < g.n; i++) {
        const bool same_in = s->r.kind == RESHARD_REDUCE_SCATTER || s->r.kind == RESHARD_ALL_REDUCE;
        const bool same_out = s->r.kind == RESHARD_ALL_GATHER || s->r.kind == RESHARD_ALL_REDUCE;
        if (same_in) assert_int_equal(p->in.count[i], p->in.count[0]);
        if (same_out) assert_int_equal(p->out.count[i], p->out.count[0]);
    }
}

static inline void sim_fill(Sim *s, int rank)
{
    const Sharding *from = &s->src, *to = &s->dst;
    if (sim_has(from, rank)) {
        const Holding h = sim_holding(from, &s->r.shape, rank);
        DO(ARENA_NEW(&s->data, holding_count(&h) + 1, &s->from[rank]));
        for (int64_t i = 0; i < holding_count(&h); i++)
            s->from[rank][i] = sim_value(from, rank, holding_global(&h, i));
    }
    if (sim_has(to, rank)) {
        const Holding h = sim_holding(to, &s->r.shape, rank);
        DO(ARENA_NEW(&s->data, holding_count(&h) + 1, &s->fold[rank]));
        s->writes[rank] = sim_numbers(s, holding_count(&h));
        s->adds[rank] = sim_numbers(s, holding_count(&h));
    }
}

typedef struct {
    int order, distance;
    uint64_t value;
} Summand;

static inline int by_order(const void *a, const void *b)
{
    const Summand *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

/* Finds all different summands of an element that rank `to` must add, in order, from all ranks'
 * holdings. *own: true if the rank holds one of them. */
static inline int sim_summands(const Sim *s, int to, int64_t element, Summand *out, bool *own)
{
    const Sharding *from = &s->src;
    const unsigned stay = layout_simplify(&s->dst.layout, s->dst.mesh).partial;
    const int view = from->layout.view;
    int n = 0;
    *own = false;
    for (int rank = 0; rank < from->mesh->world; rank++) {
        if (!sim_has(from, rank)) continue;
        if (stay &&
            mesh_part(from->mesh, view, stay, rank) != mesh_part(from->mesh, view, stay, to))
            continue;
        const Holding h = sim_holding(from, &s->r.shape, rank);
        if (holding_find(&h, element) < 0) continue;
        if (rank == to) *own = true;
        const Summand x = {.order = sim_summand(from, rank),
                           .value = sim_value(from, rank, element)};
        int i = 0;
        while (i < n && out[i].order != x.order) i++;
        if (i == n) out[n++] = x;
    }
    if (n > 0) qsort(out, (size_t)n, sizeof *out, by_order);
    return n;
}

static inline void sim_fail(const Sim *s, int rank, int64_t at)
{
    Arena a;
    const char *text = "";
    DO(arena_open(&a, "text", (size_t)1 << 20));
    Text t = text_in(&a);
    text_add(&t, "%d dims, ", s->r.shape.ndim);
    reshard_text(&t, &s->r);
    text_add(&t, ": from ");
    layout_text(&t, &s->src.layout, s->src.mesh);
    text_add(&t, " (");
    mesh_view_text(&t, s->src.mesh, s->src.layout.view);
    text_add(&t, ", stage %d%s) to ", s->src.stage, s->src.sum_copies ? ", copies summed" : "");
    layout_text(&t, &s->dst.layout, s->dst.mesh);
    text_add(&t, " (");
    mesh_view_text(&t, s->dst.mesh, s->dst.layout.view);
    text_add(&t, ", stage %d)", s->dst.stage);
    DO(text_done(&t, &text));
    fail_msg("rank %d has a wrong value at %lld: %s", rank, (long long)at, text);
}

/* Checks that every element of the rank has its expected value, and that it came from as few other
 * ranks as possible. */
static inline void sim_check_rank(const Sim *s, int rank)
{
    const Holding h = sim_holding(&s->dst, &s->r.shape, rank);
    int64_t received = 0;
    for (int64_t i = 0; i < holding_count(&h); i++) {
        Summand x[MAX_WORLD];
        bool own;
        const int n = sim_summands(s, rank, holding_global(&h, i), x, &own);
        uint64_t want = x[0].value;
        if (n == 0) sim_fail(s, rank, i);
        for (int j = 1; j < n; j++) want = sim_add(s, want, x[j].value);
        if (s->fold[rank][i] != want) sim_fail(s, rank, i);
        assert_int_equal(s->writes[rank][i], 1);
        assert_int_equal(s->adds[rank][i], n - 1);
        received += n - own;
    }
    assert_int_equal(s->received[rank], received);
    if (s->r.kind == RESHARD_NONE)
        assert_memory_equal(s->fold[rank], s->from[rank],
                            sizeof **s->fold * (size_t)holding_count(&h));
}

/* Plans, executes and checks a reshard. */
static inline void sim_run(Sim *s, const Sharding *from, const Sharding *to, const Shape *shape)
{
    arena_rewind(&s->lists, 0);
    arena_rewind(&s->data, 0);
    memset(s->received, 0, sizeof s->received);
    s->src = *from;
    s->dst = *to;
    DO(reshard_plan(from, to, shape, "tensor", &s->r));
    s->world = from->mesh->world > to->mesh->world ? from->mesh->world : to->mesh->world;
    assert_true(s->world <= MAX_WORLD);
    for (int rank = 0; rank < s->world; rank++) {
        const size_t mark = arena_mark(&s->temp);
        DO(reshard_for_rank(&s->r, rank, &s->lists, &s->temp, &s->part[rank]));
        assert_int_equal(arena_mark(&s->temp), mark);
        sim_fill(s, rank);
    }
    int64_t sent = 0, received = 0, messages = 0;
    for (int rank = 0; rank < s->world; rank++) {
        const ReshardPart *p = &s->part[rank];
        int64_t elements;
        for (int i = 0; i < p->in.peers.n; i++) sim_message(s, rank, i);
        if (sim_has(&s->dst, rank)) sim_check_direct(s, &p->in, true);
        if (sim_has(&s->src, rank)) sim_check_direct(s, &p->out, false);
        if (sim_has(&s->src, rank)) sim_check_group(s, rank);
        DO(reshard_sent(&s->r, rank, &s->temp, &elements));
        assert_int_equal(elements, p->sent);
        messages += p->in.peers.n - p->out.peers.n;
        sent += p->sent;
        received += s->received[rank];
    }
    assert_int_equal(messages, 0);       /* every message that is sent is received */
    if (s->r.kind == RESHARD_ALL_REDUCE) /* each rank gets p - 1 summands; 2 (p - 1) / p are sent */
        received = received * 2 / mesh_parts(from->mesh, from->layout.view, s->r.axes);
    assert_int_equal(sent, received);
    for (int rank = 0; rank < s->world; rank++)
        if (sim_has(&s->dst, rank)) sim_check_rank(s, rank);
    if (s->r.kind == RESHARD_NONE || s->r.kind == RESHARD_LOCAL) assert_int_equal(sent, 0);
}

#endif
