/* context_auto.c -- parallel.context=auto: lists the candidates, prices them, takes the fastest. */
#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"
#include "job/job_parts.h"
#include "schedule/gen/generate.h"

/* Candidates whose seconds differ by less than this are equal, as the rates are no better: the
 * first one in the list is taken, which is the simpler one. */
static const double EQUAL = 0.03;

typedef struct {
    const JobSettings *s;
    Arena *arena;
    unsigned rules; /* bit per ContextKind that a layer is given by name */
    bool slices;    /* sequences run in slices, or a schedule file may say so */
    ContextSearch out;
} AutoSearch;

static int64_t at_least_one(int64_t n) { return n < 1 ? 1 : n; }

CostRates job_context_rates(const JobSettings *s)
{
    const ParallelSettings *p = &s->parallel;
    CostRates r = p->cluster ? p->cluster->rates : *cost_default_rates();
    if (p->host_ranks > 0 && r.n_levels > 1) r.level[0].ranks = p->host_ranks;
    return r;
}

/* The ranks of an inner ring: those of cp on one host, if they divide the ring. */
int job_context_inner(const ParallelSettings *p, int ring, int heads)
{
    const int host = p->host_ranks ? p->host_ranks
                     : p->cluster  ? p->cluster->rates.level[0].ranks
                                   : 0;
    if (p->cp_inner) return p->cp_inner;
    if (host == 0) return ring;
    return mesh_largest_part(ring, host / (at_least_one(p->mesh.tp) * heads));
}

/* Causal work is even with zigzag; after an all-to-all to heads every rank has all tokens, and
 * contiguous ones are stored in fewer pieces. */
TokenMap job_context_tokens(TokenMap wanted, unsigned used)
{
    const unsigned heads = 1u << CONTEXT_ULYSSES;
    const unsigned in_order = 1u << CONTEXT_LIGHTSEQ | 1u << CONTEXT_RSA;
    if (wanted != TOKENS_AUTO) return wanted;
    return used == heads || (used & in_order) ? TOKENS_CONTIGUOUS : TOKENS_ZIGZAG;
}

static Err text_why(AutoSearch *w, ContextCandidate *c, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static Err text_why(AutoSearch *w, ContextCandidate *c, const char *format, ...)
{
    char buffer[256];
    va_list list;
    va_start(list, format);
    vsnprintf(buffer, sizeof buffer, format, list);
    va_end(list);
    return arena_string(w->arena, buffer, &c->why_not);
}

/* Heads that cannot be shared out to so many ranks. */
static Err heads_obstacle(AutoSearch *w, ContextCandidate *c)
{
    const ModelConfig *m = w->s->config;
    const int64_t tp = at_least_one(w->s->parallel.mesh.tp), left = m->n_heads / tp;
    if (c->heads == 1) return OK;
    if (c->heads > left)
        return text_why(w, c, "%lld heads are left to %d ranks", (long long)left, c->heads);
    if (m->n_kv_heads % tp)
        return text_why(w, c, "mesh.tp=%lld does not divide the %lld key heads", (long long)tp,
                        (long long)m->n_kv_heads);
    return OK;
}

/* A plan that is not defined for the ranks or the tokens. */
static Err plan_obstacle(AutoSearch *w, ContextCandidate *c, int ring)
{
    const ContextShape shape = {ring, c->inner, c->tokens, !w->s->config->full_mask};
    const ContextRow *row;
    if (!context_is_plan(c->kind)) return OK;
    if (c->kind == CONTEXT_DOUBLE_RING && (c->inner == ring || c->inner == 1))
        return text_why(
            w, c, c->inner == 1 ? "each host has one of its ranks" : "one host has all its ranks");
    if (w->slices && context_moves_queries(c->kind))
        return text_why(w, c, "not defined for slices of a sequence");
    if (c->kind == CONTEXT_LIGHTSEQ && w->rules && !(w->rules & 1u << CONTEXT_LIGHTSEQ))
        return text_why(w, c, "layers with a rule have other tokens");
    TRY(context_row(context_name(c->kind), w->arena, &row));
    if (context_row_check(row, &shape, w->arena) == OK) return OK;
    return text_why(w, c, "%s", err_text());
}

/* Bytes of attention that a rank needs in any case: what F keeps of its own tokens, and blocks of
 * other ranks. */
static Err memory_obstacle(AutoSearch *w, ContextCandidate *c)
{
    const JobSettings *s = w->s;
    const ModelConfig *m = s->config;
    const MeshSizes *mesh = &s->parallel.mesh;
    const double limit = s->parallel.cluster ? s->parallel.cluster->memory_bytes : 0;
    const double rows = (double)(s->batch.sequences * s->batch.seq_len) / mesh->cp;
    const double width = 2.0 * (double)((m->n_heads + m->n_kv_heads) * m->head_size);
    const bool keeps = s->compile.recompute == RECOMPUTE_NONE && !s->compile.offload_names;
    const double layers = keeps ? (double)(m->n_layers / at_least_one(mesh->pp)) : 1;
    const double kept =
        rows * width / (double)at_least_one(mesh->tp) * layers * (double)dtype_bytes(s->dtype);
    char needs[24], holds[24], has[24];
    if (limit <= 0 || kept + c->held_bytes <= limit) return OK;
    return text_why(w, c,
                    "attention needs %s, %s of it for blocks of other ranks; the device has "
                    "%s",
                    text_bytes((size_t)(kept + c->held_bytes), needs),
                    text_bytes((size_t)c->held_bytes, holds), text_bytes((size_t)limit, has));
}

static Err add_candidate(AutoSearch *w, ContextKind kind, int heads)
{
    const ParallelSettings *p = &w->s->parallel;
    const int ring = p->mesh.cp / heads, inner = job_context_inner(p, ring, heads);
    ContextCandidate *c = &w->out.list[w->out.n++];
    *c = (ContextCandidate){.kind = kind, .heads = heads, .inner = inner};
    c->tokens = job_context_tokens(p->tokens, w->rules | 1u << kind);
    TRY(heads_obstacle(w, c));
    if (!c->why_not) TRY(plan_obstacle(w, c, ring));
    if (c->why_not) return OK;
    TRY(job_context_cost(w->s, w->arena, c));
    return memory_obstacle(w, c);
}

/* Ranks that share out heads: parts of cp that have enough of them, and all of cp. Layers with
 * rules of their own have one mesh with the others. */
static bool tries_heads(const AutoSearch *w, int heads)
{
    const MeshSizes *m = &w->s->parallel.mesh;
    const int64_t left = w->s->config->n_heads / at_least_one(m->tp);
    if (m->cp % heads) return false;
    if (m->cp_heads) return heads == m->cp_heads;
    return heads == 1 || heads == m->cp || (heads <= left && !w->rules);
}

static Err add_candidates(AutoSearch *w)
{
    const int cp = w->s->parallel.mesh.cp;
    TRY(ARENA_NEW(w->arena, (int64_t)(cp + 1) * N_CONTEXTS, &w->out.list));
    for (int heads = 1; heads <= cp; heads++) {
        if (!tries_heads(w, heads)) continue;
        for (ContextKind kind = CONTEXT_GATHER; kind < N_CAUSAL_CONTEXTS; kind++)
            if ((kind == CONTEXT_ULYSSES) == (heads == cp)) TRY(add_candidate(w, kind, heads));
    }
    return OK;
}

static Err take_best(AutoSearch *w)
{
    ContextSearch *o = &w->out;
    double least = 0;
    for (int i = 0; i < o->n; i++)
        if (!o->list[i].why_not && (least == 0 || o->list[i].seconds < least))
            least = o->list[i].seconds;
    for (o->best = 0; o->best < o->n; o->best++)
        if (!o->list[o->best].why_not && o->list[o->best].seconds <= least * (1 + EQUAL)) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.context=auto: none of %d ways to spread attention over mesh.cp=%d is "
                    "possible; the first, %s: %s",
                    o->n, w->s->parallel.mesh.cp, context_name(o->list[0].kind),
                    o->list[0].why_not);
}

static Err has_slices(const JobSettings *s, Arena *temp, bool *out)
{
    const char *name = job_schedule(s);
    const GeneratorRow *row;
    *out = s->parallel.slices > 1 || schedule_is_file(name);
    if (s->parallel.slices > 0 || *out) return OK;
    TRY(schedule_generator(name, temp, &row));
    *out = row->slices > 1;
    return OK;
}

/* True if parallel.context=auto has a choice. */
static bool asks_context(const JobSettings *s)
{
    const ParallelSettings *p = &s->parallel;
    return s->kind != JOB_GENERATE && p->mesh.cp > 1 && p->context == CONTEXT_AUTO &&
           p->mesh.cp_heads != p->mesh.cp;
}

Err job_choose_context(const JobSettings *s, Arena *arena, ContextSearch *out)
{
    AutoSearch w = {.s = s, .arena = arena, .out = {.heads = s->parallel.mesh.cp_heads == 0}};
    *out = (ContextSearch){0};
    if (!asks_context(s)) return OK;
    for (int u = 1; s->parallel.units && u <= s->config->n_layers; u++)
        if (s->parallel.units[u].context != CONTEXT_AUTO)
            w.rules |= 1u << s->parallel.units[u].context;
    TRY(has_slices(s, arena, &w.slices));
    TRY(add_candidates(&w));
    TRY(take_best(&w));
    *out = w.out;
    return OK;
}

Err job_mesh(const JobSettings *s, Mesh *out)
{
    MeshSizes sizes = s->parallel.mesh;
    ContextSearch search;
    Arena temp;
    TRY(arena_open(&temp, "context", (size_t)1 << 32));
    const Err err = job_choose_context(s, &temp, &search);
    if (err == OK && search.n > 0) sizes.cp_heads = context_heads(&search, s->parallel.mesh.cp);
    arena_close(&temp);
    TRY(err);
    return mesh_sized(&sizes, out);
}
