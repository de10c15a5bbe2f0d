/* choices.c -- records the choices of routers, and replays them in f64. */
#include "verify/choices.h"

#include <math.h>
#include <string.h>
#include "base/math.h"
#include "device/route.h"
#include "job/batch.h"
#include "world/scalars.h"

#define TIE_FACTOR (8 * 1.4142135623730951)
#define UNSET (-(double)INFINITY)

/* Cells of a token: experts, gates, kept, values. */
typedef struct {
    double *expert, *gate, *kept, *value;
} Cells;

static int64_t cells_of_token(const ExpertChoices *r) { return 3 * r->chosen + r->experts; }

static int64_t cells_of_all(const ExpertChoices *r)
{
    return N_ROUTED * r->units * r->global * r->seq_len * cells_of_token(r);
}

static Cells cells_at(const ExpertChoices *r, Routed which, int unit, int64_t token)
{
    const int64_t row = ((int64_t)which * r->units + unit) * r->global * r->seq_len + token;
    double *at = r->cell + row * cells_of_token(r);
    return (Cells){at, at + r->chosen, at + 2 * r->chosen, at + 3 * r->chosen};
}

Err choices_open(const TrialSettings *s, int units, Arena *arena, ExpertChoices *out)
{
    *out = (ExpertChoices){.units = units,
                           .global = s->global,
                           .seq_len = s->job.batch.seq_len,
                           .experts = s->job.config->experts.n,
                           .chosen = s->job.config->experts.chosen,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .given = s->given};
    TRY(ARENA_NEW(arena, cells_of_all(out), &out->cell));
    for (int64_t i = 0; i < cells_of_all(out); i++) out->cell[i] = UNSET;
    return out->given ? ARENA_NEW(arena, units, &out->unit) : OK;
}

/* ---- what a kernel has read and written ---- */

static double element(const Tensor *t, int64_t at)
{
    if (t->dtype == I32) return ((const int32_t *)t->data)[at];
    return t->dtype == F64 ? ((const double *)t->data)[at] : (double)((const float *)t->data)[at];
}

/* The operand as rows of numbers, back to back, in host memory. */
static Err read_rows(const Rank *r, const Tensor *t, Arena *temp, double **out)
{
    const int64_t rows = t->n[0], columns = t->ndim > 1 ? t->n[1] : 1;
    const int64_t across = t->ndim > 1 ? t->stride[1] : 0;
    Tensor here = *t;
    TRY(ARENA_NEW(temp, rows * columns + 1, out));
    if (rows == 0) return OK;
    const int64_t reach = (rows - 1) * t->stride[0] + (columns - 1) * across + 1;
    const size_t bytes = (size_t)reach * dtype_bytes(t->dtype);
    if (!rank_on_host(r)) {
        TRY(arena_push(temp, bytes, &here.data));
        TRY(rank_read(r, t->data, bytes, here.data));
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k++)
            (*out)[i * columns + k] = element(&here, i * t->stride[0] + k * across);
    return OK;
}

/* The token of the step that is row `row` of a tensor, which may have any part of the rows of the
 * slice. */
static int64_t token_of(const ChoiceRank *w, const LinkedAction *l, int32_t tensor, int64_t row)
{
    const LinkedProgram *lp = &w->job->linked;
    const Dim *d = &l->program->tensor[tensor].dim[0];
    const HeldSpans held = {d->span, d->n_spans, d->from, d->cap};
    const BatchSplit split = batch_split(w->job);
    const BatchPart part = batch_part(&split, w->to->global, l->action.micro);
    return part.first * w->to->seq_len + lp->slice_at[l->action.slice] + held_at(&held, row);
}

/* ---- recording ---- */

/* Sets a cell. Another rank may have set it: to the same number, if both are right. */
static void put(ExpertChoices *r, double *cell, double x)
{
    r->differs = r->differs || (*cell != UNSET && *cell != x);
    *cell = x;
}

static Err record_route(const ChoiceRank *w, const Rank *r, const LinkedAction *l, const Instr *in,
                        const Call *c)
{
    const int64_t E = w->to->experts, K = w->to->chosen;
    double *s, *bias = NULL, *gate, *expert, p[MAX_EXPERTS];
    TRY(read_rows(r, &c->in[0], w->temp, &s));
    if (c->n_in > 1) TRY(read_rows(r, &c->in[1], w->temp, &bias));
    TRY(read_rows(r, &c->out[0], w->temp, &gate));
    TRY(read_rows(r, &c->out[1], w->temp, &expert));
    pthread_mutex_lock(&w->to->lock);
    for (int64_t t = 0; t < c->out[1].n[0]; t++) {
        const int64_t token = token_of(w, l, in->out[1], t);
        const Cells at = cells_at(w->to, w->which, l->action.unit, token);
        const double *value = route_values(&c->attr, s + t * E, bias, E, p);
        for (int64_t k = 0; k < K; k++) put(w->to, &at.expert[k], expert[t * K + k]);
        for (int64_t k = 0; k < K; k++) at.gate[k] = gate[t * K + k];
        for (int64_t e = 0; e < E; e++) at.value[e] = value[e];
    }
    pthread_mutex_unlock(&w->to->lock);
    return OK;
}

static Err record_limit(const ChoiceRank *w, const Rank *r, const LinkedAction *l, const Instr *in,
                        const Call *c)
{
    const int64_t K = w->to->chosen;
    double *kept;
    TRY(read_rows(r, &c->out[0], w->temp, &kept));
    pthread_mutex_lock(&w->to->lock);
    for (int64_t t = 0; t < c->out[0].n[0]; t++) {
        const int64_t token = token_of(w, l, in->out[0], t);
        const Cells at = cells_at(w->to, w->which, l->action.unit, token);
        for (int64_t k = 0; k < K; k++) put(w->to, &at.kept[k], kept[t * K + k] >= 0);
    }
    pthread_mutex_unlock(&w->to->lock);
    return OK;
}

/* ---- replaying: one rank, so a call has all tokens of a micro-batch ---- */

static bool is_one_of(const int32_t *chosen, int64_t k, int64_t e)
{
    for (int64_t i = 0; i < k; i++)
        if (chosen[i] == e) return true;
    return false;
}

/* True if the router chooses these experts when their values are `width` / 2 higher and all others
 * as much lower. */
static bool chooses(const Attr *a, const double *value, int64_t n, const int32_t *given, int64_t k,
                    double width)
{
    double moved[MAX_EXPERTS];
    int32_t chosen[MAX_EXPERTS];
    for (int64_t e = 0; e < n; e++)
        moved[e] = value[e] + (is_one_of(given, k, e) ? width : -width) / 2;
    route_pick(a, moved, n, k, chosen);
    for (int64_t i = 0; i < k; i++)
        if (!is_one_of(given, k, chosen[i])) return false;
    return true;
}

/* The least such width: without groups, the greatest value that was passed over less the least
 * given one. */
static double tie_width(const Attr *a, const double *value, int64_t n, const int32_t *given,
                        int64_t k)
{
    enum { HALVINGS = 60 };
    double low = 0, high = 1e-6;
    while (!chooses(a, value, n, given, k, high)) {
        if (high > 1e9) return (double)INFINITY;
        low = high;
        high *= 2;
    }
    for (int i = 0; i < HALVINGS; i++) {
        const double middle = (low + high) / 2;
        *(chooses(a, value, n, given, k, middle) ? &high : &low) = middle;
    }
    return high;
}

/* The given experts of a token. */
static void given_experts(const ExpertChoices *r, const Cells *given, int32_t *out)
{
    for (int64_t k = 0; k < r->chosen; k++) {
        MUST(given->expert[k] >= 0 && given->expert[k] < (double)r->experts,
             "choice %lld of a token is expert %g", (long long)k, given->expert[k]);
        out[k] = (int32_t)given->expert[k];
    }
}

/* Judges the given choices of a token by the values s in f64, and puts them in place of its own. */
static void replay_token(const ChoiceRank *w, const Call *c, ChoiceErrors *u, const Cells *given,
                         int64_t t, const double *s, const double *bias)
{
    const int64_t E = w->to->experts, K = w->to->chosen;
    const Tensor *gate = &c->out[0], *expert = &c->out[1];
    double p[MAX_EXPERTS], all[MAX_EXPERTS], score[MAX_EXPERTS], sum;
    int32_t chosen[MAX_EXPERTS];
    given_experts(w->to, given, chosen);
    const double *value = route_values(&c->attr, s, bias, E, p);
    for (int64_t e = 0; e < E; e++) {
        const double error = given->value[e] - value[e];
        u->value_squares += error * error;
        u->n_values++;
    }
    if (!chooses(&c->attr, value, E, chosen, K, 0)) {
        u->ties++;
        u->tie = fmax(u->tie, tie_width(&c->attr, value, E, chosen, K));
    }
    route_scores(&c->attr, s, E, chosen, K, all, score);
    const double factor = route_factor(&c->attr, score, K, &sum);
    for (int64_t k = 0; k < K; k++) {
        const double error = given->gate[k] - factor * score[k];
        u->gate_squares += error * error;
        u->n_gates++;
        ((double *)gate->data)[t * gate->stride[0] + k * gate->stride[1]] = factor * score[k];
        ((int32_t *)expert->data)[t * expert->stride[0] + k * expert->stride[1]] = chosen[k];
    }
}

static Err replay_route(const ChoiceRank *w, const Rank *r, const LinkedAction *l, const Instr *in,
                        const Call *c)
{
    const int64_t E = w->to->experts, K = w->to->chosen, T = c->out[1].n[0];
    const Tensor *load = &c->out[2];
    double *s, *bias = NULL, *expert;
    TRY(read_rows(r, &c->in[0], w->temp, &s));
    if (c->n_in > 1) TRY(read_rows(r, &c->in[1], w->temp, &bias));
    for (int64_t t = 0; t < T; t++) {
        const int64_t token = token_of(w, l, in->out[1], t);
        const Cells given = cells_at(w->to->given, w->which, l->action.unit, token);
        replay_token(w, c, &w->to->unit[l->action.unit], &given, t, s + t * E, bias);
    }
    TRY(read_rows(r, &c->out[1], w->temp, &expert));
    for (int64_t e = 0; e < E; e++) ((double *)load->data)[e * load->stride[0]] = 0;
    for (int64_t i = 0; i < T * K; i++)
        ((double *)load->data)[(int64_t)expert[i] * load->stride[0]]++;
    return OK;
}

/* Differences in what is dropped of an expert: the greatest gate that only the given choices drop,
 * and the least that only they keep, in f64. */
typedef struct {
    double dropped, kept;
    int64_t fewer; /* rows that are kept, less those that are given */
} DropTie;

static Err replay_limit(const ChoiceRank *w, const Rank *r, const LinkedAction *l, const Instr *in,
                        const Call *c)
{
    const int64_t K = w->to->chosen;
    const Tensor *out = &c->out[0];
    ChoiceErrors *u = &w->to->unit[l->action.unit];
    double *expert, *gate, *own;
    DropTie tie[MAX_EXPERTS];
    for (int64_t e = 0; e < w->to->experts; e++)
        tie[e] = (DropTie){-(double)INFINITY, (double)INFINITY, 0};
    TRY(read_rows(r, &c->in[0], w->temp, &expert));
    TRY(read_rows(r, &c->in[1], w->temp, &gate));
    TRY(read_rows(r, out, w->temp, &own));
    for (int64_t i = 0; i < out->n[0] * K; i++) {
        const int64_t token = token_of(w, l, in->out[0], i / K);
        const bool kept = cells_at(w->to->given, w->which, l->action.unit, token).kept[i % K] > 0;
        DropTie *e = &tie[(int64_t)expert[i]];
        ((int32_t *)out->data)[i / K * out->stride[0] + i % K * out->stride[1]] =
            kept ? (int32_t)expert[i] : -1;
        if (kept == (own[i] >= 0)) continue;
        u->ties++;
        if (kept) e->kept = fmin(e->kept, gate[i]);
        if (!kept) e->dropped = fmax(e->dropped, gate[i]);
        e->fewer += kept ? -1 : 1;
    }
    for (int64_t e = 0; e < w->to->experts; e++) {
        if (tie[e].kept > 1e300 && tie[e].dropped < -1e300) continue; /* no difference */
        const bool legal = c->attr.limit.by_gate && tie[e].fewer == 0;
        u->drop = fmax(u->drop, legal ? tie[e].dropped - tie[e].kept : (double)INFINITY);
    }
    return OK;
}

/* ---- the observer ---- */

static Err after_kernel(void *context, const Rank *r, const LinkedAction *l, const Instr *in,
                        const Call *c)
{
    const ChoiceRank *w = context;
    if (in->op != OP_route && in->op != OP_limit_choices) return OK;
    const bool limits = in->op == OP_limit_choices;
    const size_t mark = arena_mark(w->temp);
    Err err;
    if (w->to->given)
        err = (limits ? replay_limit : replay_route)(w, r, l, in, c);
    else
        err = (limits ? record_limit : record_route)(w, r, l, in, c);
    arena_rewind(w->temp, mark);
    return err;
}

RankObserver choices_observer(ChoiceRank *r)
{
    return (RankObserver){r->to ? after_kernel : NULL, r};
}

/* ---- processes ---- */

/* True if the cell has an expert, or whether it is kept. */
static bool is_choice(const ExpertChoices *r, int64_t cell)
{
    const int64_t at = cell % cells_of_token(r);
    return at / r->chosen == 0 || at / r->chosen == 2;
}

/* Maxima of x and of -x: they are those of one number, if all that have one have the same. */
static Err merge_cells(WorldRank *w, ExpertChoices *r, int64_t first, int64_t n)
{
    double *at, *cell = r->cell + first;
    TRY(world_agree(w, ARENA_NEW(w->arena, 2 * n, &at)));
    for (int64_t i = 0; i < n; i++) {
        at[i] = cell[i];
        at[n + i] = cell[i] == UNSET ? UNSET : -cell[i];
    }
    TRY(comm_register(w->comm, ARENA_NUMBERS, at, 2 * (size_t)n * sizeof *at));
    TRY(world_reduce(w, ARENA_NUMBERS, 2 * n, F64, REDUCE_MAX));
    for (int64_t i = 0; i < n; i++) {
        const bool two = at[i] != UNSET && at[i] != -at[n + i];
        r->differs = r->differs || (two && is_choice(r, first + i));
        cell[i] = at[i];
    }
    return OK;
}

Err choices_merge(WorldRank *w, ExpertChoices *r)
{
    enum { CHUNK = 1 << 15 };
    for (int64_t i = 0; i < cells_of_all(r); i += CHUNK) {
        const size_t mark = arena_mark(w->arena);
        TRY(merge_cells(w, r, i, min_i64(CHUNK, cells_of_all(r) - i)));
        arena_rewind(w->arena, mark);
    }
    return OK;
}

/* ---- comparing ---- */

bool choices_same(const ExpertChoices *a, const ExpertChoices *b)
{
    const int64_t each = cells_of_token(a);
    for (int64_t row = 0; row < cells_of_all(a) / each; row++)
        for (int64_t k = 0; k < a->chosen; k++) {
            const int64_t expert = row * each + k, kept = expert + 2 * a->chosen;
            if (a->cell[expert] != b->cell[expert] || a->cell[kept] != b->cell[kept]) return false;
        }
    return true;
}

bool choices_wider(const ChoiceTies *a, const ChoiceTies *b)
{
    return a->tie > 0 && !(a->tie * b->bound <= b->tie * a->bound && b->tie > 0);
}

ChoiceTies choices_ties(const ExpertChoices *exact, const ExpertChoices *one)
{
    ChoiceTies t = {0};
    for (int u = 0; u < exact->units; u++) {
        const ChoiceErrors *x = &exact->unit[u], *y = &one->unit[u];
        t.ties += (int64_t)x->ties;
        if (y->n_values == 0) continue;
        const double value = TIE_FACTOR * sqrt(y->value_squares / y->n_values);
        const double gate = TIE_FACTOR * sqrt(y->gate_squares / y->n_gates);
        const ChoiceTies by_value = {0, x->tie, value, u}, by_gate = {0, x->drop, gate, u};
        const ChoiceTies wider = choices_wider(&by_gate, &by_value) ? by_gate : by_value;
        if (!choices_wider(&wider, &t)) continue;
        t.tie = wider.tie;
        t.bound = wider.bound;
        t.unit = u;
    }
    return t;
}
