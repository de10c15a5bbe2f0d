/* links.c -- transfers: collectives along every axis that a mesh can have, and all pairs.
 *
 *     4 ranks    members 2, contiguous   {0 1} {2 3}     groups of one axis run at the same time,
 *                members 2, strided      {0 2} {1 3}     as in a run
 *                members 4               {0 1 2 3}
 *
 * Pairs meet in rounds, as in a tournament: in round k of n ranks every rank has one partner, so
 * no link is shared by two measured pairs of a round. */
#include "plan/measure/parts.h"

#include <math.h>
#include <string.h>

enum { SMALL_LINK_BYTES = 1 << 20, HOST_LINK_BYTES = 1 << 22, DEVICE_LINK_BYTES = 1 << 26 };
enum { COLLECTIVE_REPEATS = 7, PAIR_REPEATS = 15, SMALL_REPEATS = 500, LARGE_REPEATS = 15 };

typedef struct {
    Transfer t;
} TimedTransfer;

static Err finish(Measurer *m)
{
    return m->rt ? comm_sync(m->r->comm, (CommDevice){m->rt, m->context}, m->queue) : OK;
}

Err measure_transfer(Measurer *m, const Transfer *t)
{
    TRY(comm_do(m->r->comm, t));
    return finish(m);
}

static Err run_transfer(Measurer *m, void *work)
{
    return measure_transfer(m, &((TimedTransfer *)work)->t);
}

/* A collective of `bytes`, the whole value, in place where the kind has such a form. */
static Transfer collective(const Measurer *m, CommKind kind, RankList group, size_t bytes)
{
    const int me = m->r->rank;
    const int64_t count = (int64_t)(bytes / sizeof(float)) / group.n * group.n,
                  part = count / group.n;
    const Ref whole = {me, ARENA_LOOP, 0, count, F32};
    const Ref mine = {me, ARENA_LOOP, m->link_bytes, part, F32};
    Transfer t = {.kind = kind, .group = group, .from = whole, .to = whole};
    if (kind == COMM_ALL_GATHER) t.from = mine;
    if (kind == COMM_REDUCE_SCATTER) t.to = mine;
    return t;
}

static CostTable *table_of(Measurer *m, CommKind kind, CostGroup g)
{
    Measurement *o = m->out;
    for (int i = 0; i < o->n_tables; i++) {
        CostTable *t = &o->table[i];
        if (t->kind == kind && t->members == g.members && t->level == g.level &&
            t->inside == g.inside)
            return t;
    }
    if (o->n_tables == MAX_MEASURED_TABLES) return NULL;
    o->table[o->n_tables] = (CostTable){kind, g.members, g.level, g.inside, {0}};
    return &o->table[o->n_tables++];
}

/* Groups of `members` ranks, `stride` apart: the one of this rank. */
static RankList group_of(const Measurer *m, int members, int stride, int32_t *rank)
{
    const int block = members * stride, me = m->r->rank;
    const int first = me / block * block + me % stride;
    for (int i = 0; i < members; i++) rank[i] = first + i * stride;
    return (RankList){members, rank};
}

/* Two axes with groups at one position of the machine share a table: the mean of both. */
static Err measure_axis(Measurer *m, int members, int stride)
{
    static const CommKind kinds[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_REDUCE_SCATTER};
    const bool large = m->link_bytes > HOST_LINK_BYTES;
    const size_t sizes[] = {1 << 10, 1 << 14, 1 << 18, large ? HOST_LINK_BYTES : m->link_bytes,
                            m->link_bytes};
    const int n = large ? 5 : 4;
    int32_t *rank;
    TRY(ARENA_NEW(m->r->arena, members, &rank));
    const RankList group = group_of(m, members, stride, rank);
    const CostGroup at = cost_group(&m->out->rates, group);
    for (int k = 0; k < 3; k++) {
        CostTable *t = table_of(m, kinds[k], at);
        const Transfer whole = collective(m, kinds[k], group, m->link_bytes);
        TRY(comm_prepare(m->r->comm, &whole, 1));
        for (int i = 0; i < n; i++) {
            Measured row = {NULL, NULL, 0, 0};
            TimedTransfer one = {collective(m, kinds[k], group, sizes[i])};
            TRY(measure_repeat(m, run_transfer, &one, COLLECTIVE_REPEATS, &row));
            if (!t) continue;
            t->seconds.x[i] = (double)one.t.from.count > (double)one.t.to.count
                                  ? 4.0 * (double)one.t.from.count
                                  : 4.0 * (double)one.t.to.count;
            t->seconds.y[i] = t->seconds.n ? 0.5 * (t->seconds.y[i] + row.value) : row.value;
        }
        if (t) t->seconds.n = n;
    }
    return OK;
}

static Err measure_collectives(Measurer *m)
{
    const int ranks = m->r->ranks;
    measure_progress(m, "collectives by axis");
    for (int members = 2; members <= ranks; members++)
        for (int stride = 1; ranks % members == 0 && stride * members <= ranks; stride++)
            if (ranks / members % stride == 0) TRY(measure_axis(m, members, stride));
    return OK;
}

/* The partner of a rank in a round of a tournament of n players, n even: the last player stays, the
 * others turn. */
static int partner_of(int rank, int round, int n)
{
    if (rank == n - 1) return round % (n - 1);
    const int other = ((2 * round - rank) % (n - 1) + n - 1) % (n - 1);
    return other == rank ? n - 1 : other;
}

typedef struct {
    int partner;
    size_t bytes;
} PairMessage;

/* The messages of an exchange; both directions at once. */
static void exchange(const Measurer *m, const PairMessage *p, Transfer out[2])
{
    const int me = m->r->rank;
    const RankList group = {m->r->ranks, m->all};
    const int64_t count = (int64_t)(p->bytes / sizeof(float));
    const Ref from = {me, ARENA_LOOP, 0, count, F32},
              to = {me, ARENA_LOOP, m->link_bytes, count, F32};
    const Ref there = {.rank = p->partner, .count = count, .dtype = F32};
    out[0] = (Transfer){.kind = COMM_SEND, .group = group, .from = from, .to = there};
    out[1] = (Transfer){.kind = COMM_RECV, .group = group, .from = there, .to = to};
}

/* A rank without a partner takes part in nothing. */
static Err run_exchange(Measurer *m, void *work)
{
    const PairMessage *p = work;
    Transfer t[2];
    Ticket ticket[2];
    if (p->partner < 0) return OK;
    exchange(m, p, t);
    for (int i = 0; i < 2; i++) TRY(comm_begin(m->r->comm, &t[i], &ticket[i]));
    TRY(comm_wait(m->r->comm, ticket[1]));
    TRY(comm_wait(m->r->comm, ticket[0]));
    return finish(m);
}

/* Every rank shares its two numbers of the round; all ranks see all pairs. */
static Err share_round(Measurer *m, const double mine[2], double *all)
{
    const int me = m->r->rank, n = m->r->ranks;
    for (int i = 0; i < 2 * n; i++) all[i] = 0;
    all[2 * me] = mine[0];
    all[2 * me + 1] = mine[1];
    TRY(comm_register(m->r->comm, ARENA_SCORES, all, sizeof(double) * 2 * (size_t)n));
    const Ref ref = {me, ARENA_SCORES, 0, 2 * n, F64};
    return comm_do(
        m->r->comm,
        &(Transfer){.kind = COMM_ALL_REDUCE, .group = {n, m->all}, .from = ref, .to = ref});
}

typedef struct {
    double latency_s[MAX_LEVELS], Bps[MAX_LEVELS]; /* sums */
    int n[MAX_LEVELS];
} PairSums;

/* Keeps the numbers of two ranks, a < b: in the matrix, in the sums of their level. */
static void add_pair(Measurer *m, int a, int b, const double *seconds, PairSums *sums)
{
    const int32_t pair[] = {a, b};
    const int n = m->r->ranks, at = a * n - a * (a + 1) / 2 + b - a - 1;
    const int level = cost_group(&m->out->rates, (RankList){2, pair}).level;
    const double Bps = (double)m->link_bytes / fmax(seconds[1] - seconds[0], 0.1 * seconds[1]);
    if (m->out->pairs.n > 0) {
        m->out->pair_latency_s[at] = (float)seconds[0];
        m->out->pair_Bps[at] = (float)Bps;
    }
    sums->latency_s[level] += seconds[0];
    sums->Bps[level] += Bps;
    sums->n[level]++;
    if (m->out->slow_pair_Bps > 0 && Bps >= m->out->slow_pair_Bps) return;
    m->out->slow_pair_Bps = Bps;
    m->out->slow_pair[0] = pair[0];
    m->out->slow_pair[1] = pair[1];
}

static Err measure_round(Measurer *m, int round, double *all, PairSums *sums)
{
    const int n = m->r->ranks, even = n + n % 2;
    const int partner = partner_of(m->r->rank, round, even);
    double mine[2];
    for (int i = 0; i < 2; i++) {
        Measured row = {NULL, NULL, 0, 0};
        PairMessage p = {partner < n ? partner : -1, i ? m->link_bytes : sizeof(float)};
        Transfer t[2];
        exchange(m, &p, t);
        TRY(comm_prepare(m->r->comm, t, p.partner < 0 ? 0 : 2));
        TRY(measure_repeat(m, run_exchange, &p, PAIR_REPEATS, &row));
        mine[i] = row.value;
    }
    TRY(share_round(m, mine, all));
    for (int a = 0; a < n; a++) {
        const int b = partner_of(a, round, even);
        if (b < n && a < b) add_pair(m, a, b, &all[2 * a], sums);
    }
    return OK;
}

static Err measure_pairs(Measurer *m)
{
    PairSums sums = {{0}, {0}, {0}};
    const int even = m->r->ranks + m->r->ranks % 2;
    CostRates *r = &m->out->rates;
    double *all;
    measure_progress(m, "pairs of ranks");
    m->out->pairs.n = m->r->ranks <= MAX_CLUSTER_PAIRS ? m->r->ranks : 0;
    TRY(ARENA_NEW(m->r->arena, 2 * m->r->ranks, &all));
    for (int round = 0; round < even - 1; round++) TRY(measure_round(m, round, all, &sums));
    for (int l = 0; l < r->n_levels; l++) {
        if (sums.n[l] == 0) continue;
        r->level[l].pair_latency_s = sums.latency_s[l] / sums.n[l];
        r->level[l].pair_Bps = sums.Bps[l] / sums.n[l];
    }
    return OK;
}

/* ---- all links ---- */

static Err small_transfer(Measurer *m, void *work)
{
    (void)work;
    TRY(measure_all_reduce(m, ARENA_LOOP, 1, F32));
    return finish(m);
}

static Err large_transfer(Measurer *m, void *work)
{
    TRY(measure_all_reduce(m, ARENA_LOOP, *(int64_t *)work, F32));
    return finish(m);
}

/* Inverts the formulas of cost/transfer.c: an all-reduce of n ranks is 2 log2(n) latencies if it is
 * small, and 2 (n-1) latencies and 2 (n-1)/n S bytes if it is large. */
static Err measure_world(Measurer *m)
{
    const double n = m->r->ranks, rounds = ceil(log2(n)), bytes = 2 * (double)m->link_bytes;
    Measured small = {"latency", "us", 0, 0}, large = {"link", "GB/s", 0, 0};
    int64_t count = (int64_t)(2 * m->link_bytes / sizeof(float));
    const Transfer whole = collective(m, COMM_ALL_REDUCE, (RankList){m->r->ranks, m->all}, 4096);
    CostLink *link = &m->out->rates.level[m->out->rates.n_levels - 1];
    TRY(comm_prepare(m->r->comm, &whole, 1));
    TRY(measure_repeat(m, small_transfer, NULL, SMALL_REPEATS, &small));
    link->latency_s = small.value / (2 * rounds);
    measure_keep_time(m, small, link->latency_s);
    TRY(measure_repeat(m, large_transfer, &count, LARGE_REPEATS, &large));
    const double busy = fmax(large.value - 2 * (n - 1) * link->latency_s, 0.1 * large.value);
    link->Bps = 2 * (n - 1) / n * bytes / busy;
    large.value = busy;
    measure_keep(m, large, 2 * (n - 1) / n * bytes, 1e9);
    for (int l = 0; l < m->out->rates.n_levels - 1; l++) { /* tables have the rest */
        m->out->rates.level[l].latency_s = link->latency_s;
        m->out->rates.level[l].Bps = link->Bps;
    }
    return OK;
}

static Err measure_registered(Measurer *m)
{
    TRY(measure_world(m));
    TRY(measure_collectives(m));
    TRY(measure_pairs(m));
    measure_nodes(m->out);
    return measure_overlap(m);
}

/* Buffers where the programs of this device have theirs. */
Err measure_links(Measurer *m)
{
    void *at;
    if (m->r->ranks == 1) return OK;
    m->link_bytes = m->s->grid == GRID_SMALL ? SMALL_LINK_BYTES
                    : m->rt                  ? DEVICE_LINK_BYTES
                                             : HOST_LINK_BYTES;
    const size_t bytes = 2 * m->link_bytes;
    if (!m->rt) {
        TRY(arena_push(m->r->arena, bytes, &at));
        memset(at, 0, bytes);
        TRY(comm_register(m->r->comm, ARENA_LOOP, at, bytes));
        return measure_registered(m);
    }
    TRY(m->rt->alloc(m->context, bytes, &at));
    Err err = m->rt->set(m->queue, at, 0, bytes);
    const CommDevice device = {m->rt, m->context};
    if (err == OK) err = comm_register_device(m->r->comm, ARENA_LOOP, at, bytes, device);
    if (err == OK) err = measure_registered(m);
    world_leave(m->r, err); /* no other rank reads the buffers when they are freed */
    m->rt->free(m->context, at);
    return err;
}
