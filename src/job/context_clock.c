/* context_clock.c -- plays an attention plan: visits take the seconds of cost/cost.h, and moves run
 * beside them.
 *
 *     rank 0   0x0 ---------| 0x2 ---------| 0x1 ----       a visit starts when its blocks are here
 *     link     == kv0>1 ==    == kv2>1 ==                   hidden, if shorter than a visit
 *
 * A move starts when both ranks have listed it and their links are free. As in the programs that
 * compile/context writes, it waits for the sends before the last visit. The player of the checker
 * (compile/context/check_play.c) proves that lists finish; this one trusts them. */
#include "job/context_clock.h"

#include <math.h>

typedef struct {
    const ContextPlan *p;
    const ContextLoad *load;
    int ranks;
    int *at;           /* [rank]: its next step */
    int *waited;       /* [rank]: sends before this step have been waited for */
    int *visit;        /* [rank]: its last visit; 0: none */
    int **partner;     /* [rank][step]: the step of rank `to` that receives what this one sends */
    int **source;      /* [rank][step]: the step of rank `from` that sends what this one receives */
    double **posted_s; /* [rank][step] */
    ContextSpans spans; /* of visits and of what arrives; start_s NULL: not asked */
    double **sent_s;    /* [rank][step]: end of its send */
    double *now_s, *wait_s, *moving_s, *done_s; /* [rank]; done_s: end of its last receive */
    double *out_free_s, *in_free_s;             /* [rank]: of its link */
    double *here_s[N_PAYLOADS]; /* [rank][block]: the newest one is here; INFINITY: on its way */
} PlanClock;

static int64_t pair_at(const PlanClock *w, int rank, int block)
{
    return (int64_t)rank * w->ranks + block;
}

static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

/* Pairs (i, j), both in 0 .. c, with i - j at most e. */
static double pairs_up_to(double c, double e)
{
    if (e <= -c) return 0;
    if (e >= c - 1) return c * c;
    return e < 0 ? (e + c) * (e + c + 1) / 2 : c * c - (c - 1 - e) * (c - e) / 2;
}

/* Pairs of a query and a key of two chunks of c tokens that are `apart` tokens from each other. */
static double chunk_pairs(double c, double apart, double window)
{
    const double least = -apart, most = window > 0 ? window - 1 - apart : (double)INFINITY;
    return larger(0, pairs_up_to(c, most) - pairs_up_to(c, least - 1));
}

static double sequence_pairs(double n, double window)
{
    const double w = window > 0 ? smaller(window, n) : n;
    return w * (w + 1) / 2 + (n - w) * w;
}

double context_pairs(const ContextShape *s, const ContextLoad *load, ContextBlock q, ContextBlock k)
{
    const double c = load->seq_len / (2 * s->ranks);
    double pairs = 0;
    for (int half = 0; half < 4; half++) {
        const int a = half / 2, b = half % 2;
        if (!(q.halves >> a & 1) || !(k.halves >> b & 1)) continue;
        const int from = context_position(s, q.rank, a), to = context_position(s, k.rank, b);
        if (!s->causal)
            pairs += c * c;
        else if (s->tokens == TOKENS_STRIPED) /* all ranks have tokens everywhere */
            pairs += sequence_pairs(load->seq_len, load->window) / (4.0 * s->ranks * s->ranks);
        else
            pairs += chunk_pairs(c, (from - to) * c, load->window);
    }
    return pairs * load->sequences;
}

static double block_rows(const PlanClock *w, ContextBlock b)
{
    const double half = w->load->sequences * w->load->seq_len / (2 * w->ranks);
    return b.halves == HALF_BOTH ? 2 * half : half;
}

double context_visit_seconds(const ContextLoad *load, bool backward, double rows, double keys,
                             double pairs)
{
    const double c = load->head_width, narrow = (double)dtype_bytes(load->dtype),
                 wide = (double)dtype_bytes(dtype_wide(load->dtype));
    const double q = rows * load->heads * c, k = keys * load->key_heads * c;
    const CostWork w = {.op = backward ? OP_attention_part_dx : OP_attention,
                        .dtype = load->dtype,
                        .heavy = (backward ? 10 : 4) * load->heads * c * pairs,
                        .bytes = backward ? (2 * q + 2 * k) * narrow + 2 * (q + 2 * k) * wide
                                          : (q + 2 * k) * narrow + 2 * q * wide,
                        .c = c};
    return cost_work_seconds(load->rates, &w);
}

/* The values of a payload: their number of heads, and whether they are partial results. lse and
 * delta have one number per head. */
typedef struct {
    int values, statistics;
    bool keys, partial;
} PayloadParts;

static PayloadParts payload_parts(ContextPayload payload, bool backward)
{
    switch (payload) {
    case PAYLOAD_KV:
        return (PayloadParts){2, 0, true, false};
    case PAYLOAD_DKV:
        return (PayloadParts){2, 0, true, true};
    case PAYLOAD_K:
    case PAYLOAD_V:
        return (PayloadParts){1, 0, true, false};
    case PAYLOAD_DK:
    case PAYLOAD_DV:
        return (PayloadParts){1, 0, true, true};
    case PAYLOAD_Q:
        return (PayloadParts){backward ? 2 : 1, backward ? 2 : 0, false, false};
    case PAYLOAD_O:
        return (PayloadParts){1, 1, false, true};
    default:
        return (PayloadParts){1, 0, false, true};
    }
}

/* Bytes of one value of the payload, and of one of its statistics. */
static void value_bytes(const ContextLoad *load, PayloadParts parts, double rows, double out[2])
{
    const double wide = (double)dtype_bytes(dtype_wide(load->dtype));
    const double type = parts.partial ? wide : (double)dtype_bytes(load->dtype);
    out[0] = rows * (parts.keys ? load->key_heads : load->heads) * load->head_width * type;
    out[1] = rows * load->heads * wide;
}

static double payload_bytes(const ContextPlan *p, const ContextLoad *load, ContextPayload payload,
                            ContextBlock b)
{
    const PlanClock w = {.p = p, .load = load, .ranks = p->shape.ranks};
    const PayloadParts parts = payload_parts(payload, p->backward);
    double bytes[2];
    value_bytes(load, parts, block_rows(&w, parts.keys ? block_whole(b.rank) : b), bytes);
    return parts.values * bytes[0] + parts.statistics * bytes[1];
}

/* Every value of a payload is a message of its own. */
static double move_seconds(const PlanClock *w, const ContextStep *s, int from)
{
    const ContextPayload payload = (ContextPayload)s->payload;
    const PayloadParts parts = payload_parts(payload, w->p->backward);
    const int32_t rank[] = {from * w->load->stride, s->to * w->load->stride};
    const CostGroup group = cost_group(w->load->rates, (RankList){2, rank});
    double bytes[2];
    value_bytes(w->load, parts, block_rows(w, parts.keys ? block_whole(s->out.rank) : s->out),
                bytes);
    return parts.values * cost_transfer_seconds(w->load->rates, COMM_SEND, group, bytes[0]) +
           parts.statistics * cost_transfer_seconds(w->load->rates, COMM_SEND, group, bytes[1]);
}

static const ContextStep *step_at(const PlanClock *w, int rank, int i)
{
    return &w->p->list[rank][i];
}

static void set_span(PlanClock *w, int rank, int i, double start_s, double end_s)
{
    if (!w->spans.start_s) return;
    w->spans.start_s[rank][i] = start_s;
    w->spans.end_s[rank][i] = end_s;
}

/* Both ranks have listed the move: it gets its time. */
static void meet(PlanClock *w, int from, int send, int to, int receive)
{
    const ContextStep *s = step_at(w, from, send);
    if (isinf(w->posted_s[from][send]) || isinf(w->posted_s[to][receive])) return;
    const double seconds = move_seconds(w, s, from);
    const double start = larger(larger(w->posted_s[from][send], w->posted_s[to][receive]),
                                larger(w->out_free_s[from], w->in_free_s[to]));
    const double end = start + seconds;
    w->out_free_s[from] = w->in_free_s[to] = w->sent_s[from][send] = end;
    w->here_s[s->payload][pair_at(w, to, s->out.rank)] = end;
    w->moving_s[to] += seconds;
    set_span(w, to, receive, start, end);
    w->done_s[to] = larger(w->done_s[to], end);
    w->done_s[from] = larger(w->done_s[from], end);
}

/* Waits until `when`; false if that is not known yet. */
static bool wait_until(PlanClock *w, int rank, double when)
{
    if (isinf(when)) return false;
    w->wait_s[rank] += larger(0, when - w->now_s[rank]);
    w->now_s[rank] = larger(w->now_s[rank], when);
    return true;
}

/* The sends before the last visit are done, so that their memory is free. */
static bool wait_for_sends(PlanClock *w, int rank)
{
    for (; w->waited[rank] < w->visit[rank]; w->waited[rank]++) {
        const ContextStep *s = step_at(w, rank, w->waited[rank]);
        const bool sends = s->kind == CONTEXT_MOVE && s->to >= 0;
        if (sends && !wait_until(w, rank, w->sent_s[rank][w->waited[rank]])) return false;
    }
    return true;
}

static bool play_move(PlanClock *w, int rank, const ContextStep *s, int i)
{
    if (!wait_for_sends(w, rank)) return false;
    if (s->to >= 0 && !wait_until(w, rank, w->here_s[s->payload][pair_at(w, rank, s->out.rank)]))
        return false;
    if (s->from >= 0) w->here_s[s->payload][pair_at(w, rank, s->in.rank)] = (double)INFINITY;
    w->posted_s[rank][i] = w->now_s[rank];
    if (s->to >= 0) meet(w, rank, i, s->to, w->partner[rank][i]);
    if (s->from >= 0) meet(w, s->from, w->source[rank][i], rank, i);
    return true;
}

static bool play_visit(PlanClock *w, int rank, const ContextStep *s, int i)
{
    const double all = context_pairs(&w->p->shape, w->load, s->q, s->k);
    const double pairs = s->pass == PASS_BOTH ? all : all / 2; /* of scores, or of values */
    const ContextPayload keys = s->pass == PASS_VALUES   ? PAYLOAD_V
                                : s->pass == PASS_SCORES ? PAYLOAD_K
                                                         : PAYLOAD_KV;
    if (!wait_until(w, rank, w->here_s[PAYLOAD_Q][pair_at(w, rank, s->q.rank)])) return false;
    if (!wait_until(w, rank, w->here_s[keys][pair_at(w, rank, s->k.rank)])) return false;
    const double start_s = w->now_s[rank];
    w->now_s[rank] += context_visit_seconds(w->load, w->p->backward, block_rows(w, s->q),
                                            block_rows(w, s->k), pairs);
    w->visit[rank] = i;
    set_span(w, rank, i, start_s, w->now_s[rank]);
    return true;
}

static bool play_rank(PlanClock *w, int rank)
{
    const int first = w->at[rank];
    while (w->at[rank] < w->p->n[rank]) {
        const int i = w->at[rank];
        const ContextStep *s = step_at(w, rank, i);
        if (!(s->kind == CONTEXT_VISIT ? play_visit(w, rank, s, i) : play_move(w, rank, s, i)))
            break;
        w->at[rank]++;
    }
    return w->at[rank] > first;
}

/* The n-th send of a pair of ranks meets its n-th receive. */
static Err match_moves(PlanClock *w, Arena *temp)
{
    const int64_t pairs = (int64_t)w->ranks * w->ranks;
    int *first, **next;
    TRY(ARENA_NEW(temp, pairs, &first));
    TRY(ARENA_NEW(temp, w->ranks, &next));
    for (int64_t i = 0; i < pairs; i++) first[i] = -1;
    for (int rank = 0; rank < w->ranks; rank++) {
        TRY(ARENA_NEW(temp, w->p->n[rank] + 1, &next[rank]));
        for (int i = w->p->n[rank] - 1; i >= 0; i--) {
            const ContextStep *s = step_at(w, rank, i);
            if (s->kind != CONTEXT_MOVE || s->to < 0) continue;
            next[rank][i] = first[pair_at(w, rank, s->to)];
            first[pair_at(w, rank, s->to)] = i;
        }
    }
    for (int rank = 0; rank < w->ranks; rank++)
        for (int i = 0; i < w->p->n[rank]; i++) {
            const ContextStep *s = step_at(w, rank, i);
            if (s->kind != CONTEXT_MOVE || s->from < 0) continue;
            int *send = &first[pair_at(w, s->from, rank)];
            MUST(*send >= 0, "a receive of %s has no send", w->p->row->name);
            w->source[rank][i] = *send;
            w->partner[s->from][*send] = i;
            *send = next[s->from][*send];
        }
    return OK;
}

static Err open_clock(PlanClock *w, Arena *temp)
{
    double **const per_rank[] = {&w->now_s,  &w->wait_s,     &w->moving_s,
                                 &w->done_s, &w->out_free_s, &w->in_free_s};
    const int64_t pairs = (int64_t)w->ranks * w->ranks;
    for (size_t i = 0; i < sizeof per_rank / sizeof *per_rank; i++)
        TRY(ARENA_NEW(temp, w->ranks, per_rank[i]));
    TRY(ARENA_NEW(temp, w->ranks, &w->at));
    TRY(ARENA_NEW(temp, w->ranks, &w->waited));
    TRY(ARENA_NEW(temp, w->ranks, &w->visit));
    TRY(ARENA_NEW(temp, w->ranks, &w->partner));
    TRY(ARENA_NEW(temp, w->ranks, &w->source));
    TRY(ARENA_NEW(temp, w->ranks, &w->posted_s));
    TRY(ARENA_NEW(temp, w->ranks, &w->sent_s));
    for (int i = 0; i < N_PAYLOADS; i++) TRY(ARENA_NEW(temp, pairs, &w->here_s[i]));
    for (int rank = 0; rank < w->ranks; rank++) {
        const int n = w->p->n[rank] + 1;
        TRY(ARENA_NEW(temp, n, &w->partner[rank]));
        TRY(ARENA_NEW(temp, n, &w->source[rank]));
        TRY(ARENA_NEW(temp, n, &w->posted_s[rank]));
        TRY(ARENA_NEW(temp, n, &w->sent_s[rank]));
        for (int i = 0; i < n; i++) w->posted_s[rank][i] = w->sent_s[rank][i] = (double)INFINITY;
    }
    return match_moves(w, temp);
}

/* True if the step reads or sends the payload of this block. */
static bool uses(const ContextStep *s, ContextPayload payload, int block)
{
    const bool keys = payload_is_keys(payload);
    const bool values = payload == PAYLOAD_V || payload == PAYLOAD_DV;
    if (s->kind == CONTEXT_VISIT && s->pass != PASS_BOTH && values != (s->pass == PASS_VALUES))
        return false;
    if (s->kind == CONTEXT_VISIT) return (keys ? s->k.rank : s->q.rank) == block;
    return s->payload == payload && s->to >= 0 && s->out.rank == block;
}

/* The bytes of other ranks' blocks on a rank, each from its arrival until its last reader.
 * held: [steps + 1], change[i] before step i. */
static double held_bytes(const PlanClock *w, int rank, double *change)
{
    const int n = w->p->n[rank];
    double now = 0, most = 0;
    for (int i = 0; i <= n; i++) change[i] = 0;
    for (int i = 0; i < n; i++) {
        const ContextStep *s = step_at(w, rank, i);
        if (s->kind != CONTEXT_MOVE || s->from < 0 || s->in.rank == rank) continue;
        const ContextPayload payload = (ContextPayload)s->payload;
        const double bytes = payload_bytes(w->p, w->load, payload, s->in);
        int last = i;
        for (int k = i + 1; k < n; k++)
            if (uses(step_at(w, rank, k), payload, s->in.rank)) last = k;
        change[i] += bytes;
        change[last + 1] -= bytes;
    }
    for (int i = 0; i <= n; i++) {
        now += change[i];
        most = larger(most, now);
    }
    return most;
}

/* The first and the last rank: with helpers ranks differ, else all hold the same. */
static Err find_held(const PlanClock *w, Arena *temp, double *most)
{
    double *change;
    TRY(ARENA_NEW(temp, MAX_CONTEXT_STEPS(w->ranks) * 2 + 1, &change));
    *most = larger(held_bytes(w, 0, change), held_bytes(w, w->ranks - 1, change));
    return OK;
}

static Err play(PlanClock *w, ContextTime *out)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < w->ranks; rank++) moved = play_rank(w, rank) || moved;
    }
    for (int rank = 0; rank < w->ranks; rank++) {
        if (w->at[rank] < w->p->n[rank])
            return err_fail(ERR_CHECK, "attention plan %s: rank %d waits forever at step %d",
                            w->p->row->name, rank, w->at[rank]);
        wait_until(w, rank, w->done_s[rank]);
        if (w->now_s[rank] < out->seconds) continue;
        out->seconds = w->now_s[rank];
        out->moving_s = w->moving_s[rank];
        out->wait_s = w->wait_s[rank];
    }
    return OK;
}

Err context_clock(const ContextPlan *p, const ContextLoad *load, Arena *temp, ContextTime *out)
{
    const size_t mark = arena_mark(temp);
    PlanClock w = {.p = p, .load = load, .ranks = p->shape.ranks};
    *out = (ContextTime){0};
    TRY(open_clock(&w, temp));
    TRY(play(&w, out));
    TRY(find_held(&w, temp, &out->held_bytes));
    arena_rewind(temp, mark);
    return OK;
}

static Err open_spans(const ContextPlan *p, Arena *arena, double ***out)
{
    TRY(ARENA_NEW(arena, p->shape.ranks, out));
    for (int rank = 0; rank < p->shape.ranks; rank++)
        TRY(ARENA_NEW(arena, p->n[rank] + 1, &(*out)[rank]));
    return OK;
}

Err context_clock_spans(const ContextPlan *p, const ContextLoad *load, Arena *arena,
                        ContextSpans *out)
{
    PlanClock w = {.p = p, .load = load, .ranks = p->shape.ranks};
    ContextTime time = {0};
    TRY(open_spans(p, arena, &w.spans.start_s));
    TRY(open_spans(p, arena, &w.spans.end_s));
    TRY(open_clock(&w, arena));
    TRY(play(&w, &time));
    *out = w.spans;
    out->seconds = time.seconds;
    return OK;
}
