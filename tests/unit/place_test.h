/* place_test.h -- units compiled for every rank along tp; nothing runs.
 *
 *     Ranks r;
 *     ranks_open(&r, &unit, &options, 3)      a program for each of 3 ranks
 *     ranks_agree(&r, "llama")                checks that their transfers match
 *     ranks_sent(&r, phase, OP_all_gather)    elements that all ranks send */
#ifndef TESTS_UNIT_PLACE_TEST_H
#define TESTS_UNIT_PLACE_TEST_H

#include "support/graph_test.h"

#include <stdio.h>
#include "comm/backend.h"
#include "support/models.h"

enum { MAX_TP = 16 };

typedef struct {
    Arena arena;
    Mesh mesh;
    int n;
    Program program[MAX_TP];
    Graph placed[MAX_TP]; /* after place */
} Ranks;

static inline Mesh mesh_tp(int tp)
{
    Mesh m;
    DO(mesh_sized(&(MeshSizes){.tp = tp}, &m));
    return m;
}

static inline Err keep_placed(void *context, const char *pass, const Graph *g)
{
    Graph *out = context;
    return strcmp(pass, "place") == 0 ? graph_clone(g, g->arena, out) : OK;
}

/* Compiling checks each program. */
static inline void ranks_open_mesh(Ranks *r, const Graph *unit, const CompileOptions *o,
                                   const Mesh *mesh)
{
    DO(arena_open(&r->arena, "ranks", (size_t)1 << 32));
    r->mesh = *mesh;
    r->n = mesh->world;
    for (int k = 0; k < r->n; k++) {
        CompileOptions mine = *o;
        mine.mesh = &r->mesh;
        mine.rank = k;
        DO(compile_unit(unit, &mine, keep_placed, &r->placed[k], &r->arena, &r->program[k]));
    }
}

static inline void ranks_open(Ranks *r, const Graph *unit, const CompileOptions *o, int tp)
{
    const Mesh mesh = mesh_tp(tp);
    ranks_open_mesh(r, unit, o, &mesh);
}

static inline void ranks_close(Ranks *r) { arena_close(&r->arena); }

static inline int64_t count_of(const ProgTensor *t)
{
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->dim[i].cap;
    return count;
}

/* The nth transfer of a phase, or NULL. */
static inline const Instr *nth_transfer(const Program *p, Phase phase, int nth)
{
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        if (op_transfers(p->instr[i].op) && nth-- == 0) return &p->instr[i];
    return NULL;
}

/* The transfer that the executor makes of an instruction. */
static inline Transfer transfer_of(const Program *p, const Instr *in)
{
    static const CommKind kind[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_REDUCE_SCATTER,
                                    COMM_ALL_TO_ALL, COMM_SEND,       COMM_RECV};
    const TransferPart *m = &p->move[in->attr.move.index];
    const ProgTensor *to = &p->tensor[in->out[0]], *from = in->n_in ? &p->tensor[in->in[0]] : to;
    return (Transfer){.kind = kind[in->op - OP_all_reduce],
                      .reduce = m->reduce,
                      .group = m->group,
                      .from = {m->peer, 0, 0, count_of(from), from->dtype},
                      .to = {m->peer, 0, 0, count_of(to), to->dtype},
                      .from_counts = m->from_counts,
                      .to_counts = m->to_counts,
                      .tag = m->number};
}

/* A model and its two strategies. */
typedef struct {
    Arena arena;
    ModelConfig config;
    Model model;
    Strategy plain, sequence;
} ModelBed;

/* T rows: 2 x 7, a count that few tp divide. */
enum { ROWS = 14 };

static inline void model_bed_open(ModelBed *m, const ModelConfig *config)
{
    DO(arena_open(&m->arena, "model", (size_t)1 << 30));
    m->config = *config;
    DO(model_build(&m->config, F32, (BatchShape){2, 7}, &m->arena, &m->model));
    const ModelConfig *c = &m->config;
    m->plain = strategy_with_heads(&strategy_tp, c->n_heads, c->n_kv_heads, c->head_size);
    m->sequence =
        strategy_with_heads(&strategy_tp_sequence, c->n_heads, c->n_kv_heads, c->head_size);
}

static inline void model_bed_close(ModelBed *m) { arena_close(&m->arena); }

/* Heads that share key heads, so that 3 or 8 parts are cut within groups; a vocabulary that no tp
 * divides. */
static inline ModelConfig wide_model(void)
{
    ModelConfig c = *test_model("llama");
    c.name = "wide";
    c.n_heads = 8;
    c.n_kv_heads = 2;
    c.head_size = 4;
    c.width = 10;
    c.ff_width = 21;
    c.vocab = 50257;
    return c;
}

/* True if the elements are contiguous and in order, as a transfer requires. */
static inline bool is_dense(const ProgTensor *t)
{
    int64_t step = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->dim[i].cap > 1 && t->stride[i] != step && count_of(t) > 0) return false;
        step *= t->dim[i].cap;
    }
    return true;
}

#define AGREE(what, ...)                                                                           \
    do {                                                                                           \
        if (!(what)) fail_msg(__VA_ARGS__);                                                        \
    } while (0)

/* Checks that the parts of one side of a transfer sum to the whole. */
static inline void counts_agree(const char *name, const Transfer *t, int n, const int64_t *counts,
                                const Ref *whole)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += part_count(counts, whole->count, n, i);
    AGREE(sum == whole->count, "%s: %s, tag %d: parts sum to %lld, not %lld", name,
          comm_kind_name(t->kind), (int)t->tag, (long long)sum, (long long)whole->count);
}

/* Checks one transfer across its members: kind, type, tag, group and counts. */
static inline void members_agree(const char *name, const Transfer *t, int n)
{
    const Transfer *a = &t[0];
    for (int k = 0; k < n; k++) {
        const Transfer *b = &t[k];
        AGREE(a->kind == b->kind && a->reduce == b->reduce && a->tag == b->tag &&
                  a->from.dtype == b->from.dtype && b->from.dtype == b->to.dtype,
              "%s: rank 0 begins %s with tag %d, rank %d %s with tag %d", name,
              comm_kind_name(a->kind), (int)a->tag, k, comm_kind_name(b->kind), (int)b->tag);
        AGREE(b->group.n == n && group_index(b->group, k) == k,
              "%s: tag %d: rank %d is not in its place", name, (int)b->tag, k);
        const bool gathers = a->kind == COMM_ALL_GATHER, all = a->kind == COMM_ALL_TO_ALL;
        const bool scatters = a->kind == COMM_REDUCE_SCATTER;
        if (gathers || all) counts_agree(name, b, n, b->to_counts, &b->to);
        if (scatters || all) counts_agree(name, b, n, b->from_counts, &b->from);
        for (int i = 0; i < n; i++) { /* k receives from i as many elements as i sends to k */
            const int64_t in =
                gathers || all ? part_count(b->to_counts, b->to.count, n, i) : b->to.count;
            const int64_t out = scatters || all
                                    ? part_count(t[i].from_counts, t[i].from.count, n, k)
                                    : t[i].from.count;
            AGREE(in == out, "%s: %s, tag %d: rank %d takes %lld elements, rank %d gives %lld",
                  name, comm_kind_name(a->kind), (int)a->tag, k, (long long)in, i, (long long)out);
        }
    }
}

/* Checks that all ranks have the same transfers in the same order; returns the number of
 * transfers. */
static inline int ranks_agree(const Ranks *r, const char *name)
{
    int found = 0;
    for (int phase = 0; phase < N_PHASES; phase++)
        for (int nth = 0;; nth++, found++) {
            Transfer t[MAX_TP];
            const Instr *first = nth_transfer(&r->program[0], (Phase)phase, nth);
            for (int k = 0; k < r->n; k++) {
                const Program *p = &r->program[k];
                const Instr *in = nth_transfer(p, (Phase)phase, nth);
                AGREE(!in == !first,
                      "%s: %s: ranks 0 and %d differ in how many transfers they begin", name,
                      phase_name((Phase)phase), k);
                if (!in) continue;
                AGREE(is_dense(&p->tensor[in->in[0]]) && is_dense(&p->tensor[in->out[0]]),
                      "%s: rank %d: %s of what is not stored side by side", name, k,
                      op_info(in->op)->name);
                t[k] = transfer_of(p, in);
            }
            if (!first) break;
            members_agree(name, t, r->n);
        }
    return found;
}

/* The nth send to, or receive from, a rank in a phase, or NULL. */
static inline const Instr *nth_pair(const Program *p, Phase phase, OpId op, int peer, int nth)
{
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        if (p->instr[i].op == op && p->move[p->instr[i].attr.move.index].peer == peer && nth-- == 0)
            return &p->instr[i];
    return NULL;
}

/* Checks that the nth send from a to b meets the nth receive on b from a: tag, type and elements.
 * Returns the number of such pairs. */
static inline int pairs_agree(const Ranks *r, const char *name)
{
    int found = 0;
    for (int phase = 0; phase < N_PHASES; phase++)
        for (int k = 0; k < r->n * r->n; k++)
            for (int a = k / r->n, b = k % r->n, nth = 0;; nth++, found++) {
                const Instr *send = nth_pair(&r->program[a], (Phase)phase, OP_send, b, nth);
                const Instr *recv = nth_pair(&r->program[b], (Phase)phase, OP_recv, a, nth);
                AGREE(!send == !recv, "%s: %s: rank %d and %d differ in their transfers", name,
                      phase_name((Phase)phase), a, b);
                if (!send) break;
                const Transfer s = transfer_of(&r->program[a], send);
                const Transfer t = transfer_of(&r->program[b], recv);
                AGREE(s.tag == t.tag && s.from.dtype == t.to.dtype && s.from.count == t.to.count,
                      "%s: %s: send %d from %d to %d has tag %d and %d elements, not %d and %d",
                      name, phase_name((Phase)phase), nth, a, b, (int)s.tag, (int)s.from.count,
                      (int)t.tag, (int)t.to.count);
            }
    return found;
}

/* Elements that all ranks together send by this op in a phase. */
static inline int64_t ranks_sent(const Ranks *r, Phase phase, OpId op)
{
    int64_t sent = 0;
    for (int k = 0; k < r->n; k++)
        for (int nth = 0; nth_transfer(&r->program[k], phase, nth); nth++) {
            const Instr *in = nth_transfer(&r->program[k], phase, nth);
            const Transfer t = transfer_of(&r->program[k], in);
            if (in->op == op) sent += (int64_t)(transfer_sent(&t, k) / dtype_bytes(t.from.dtype));
        }
    return sent;
}

static inline int64_t ranks_sent_all(const Ranks *r, Phase phase)
{
    int64_t sent = 0;
    for (OpId op = OP_all_reduce; op <= OP_recv; op++) sent += ranks_sent(r, phase, op);
    return sent;
}

#endif
