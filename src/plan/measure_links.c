/* measure_links.c -- transfers: collectives along every axis that a mesh can have, and all pairs.
 *
 *     4 ranks    members 2, contiguous   {0 1} {2 3}     groups of one axis run at the same time,
 *                members 2, strided      {0 2} {1 3}     as in a run
 *                members 4               {0 1 2 3}
 *
 * Pairs meet in rounds, as in a tournament: in round k of n ranks every rank has one partner, so
 * no link is shared by two measured pairs of a round. */
#include "plan/measure_parts.h"

#include <math.h>

enum { LINK_BYTES = 1 << 22, COLLECTIVE_REPEATS = 7, PAIR_REPEATS = 15 };

typedef struct {
    Transfer t;
} TimedTransfer;

static Err run_transfer(Measurer *m, void *work)
{
    return comm_do(m->r->comm, &((TimedTransfer *)work)->t);
}

/* A collective of `bytes`, the whole value, in place where the kind has such a form. */
static Transfer collective(const Measurer *m, CommKind kind, RankList group, size_t bytes)
{
    const int me = m->r->rank;
    const int64_t count = (int64_t)(bytes / sizeof(float)) / group.n * group.n,
                  part = count / group.n;
    const Ref whole = {me, ARENA_LOOP, 0, count, F32};
    const Ref mine = {me, ARENA_LOOP, LINK_BYTES, part, F32};
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
    static const size_t sizes[] = {1 << 10, 1 << 14, 1 << 18, LINK_BYTES};
    int32_t *rank;
    TRY(ARENA_NEW(m->r->arena, members, &rank));
    const RankList group = group_of(m, members, stride, rank);
    const CostGroup at = cost_group(&m->out->rates, group);
    for (int k = 0; k < 3; k++) {
        CostTable *t = table_of(m, kinds[k], at);
        for (int i = 0; i < 4; i++) {
            Measured row = {NULL, NULL, 0, 0};
            TimedTransfer one = {collective(m, kinds[k], group, sizes[i])};
            TRY(measure_repeat(m, run_transfer, &one, COLLECTIVE_REPEATS, &row));
            if (!t) continue;
            t->seconds.x[i] = (double)one.t.from.count > (double)one.t.to.count
                                  ? 4.0 * (double)one.t.from.count
                                  : 4.0 * (double)one.t.to.count;
            t->seconds.y[i] = t->seconds.n ? 0.5 * (t->seconds.y[i] + row.value) : row.value;
        }
        if (t) t->seconds.n = 4;
    }
    return OK;
}

Err measure_collectives(Measurer *m)
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

/* Both directions at once; a rank without a partner takes part in nothing. */
static Err run_exchange(Measurer *m, void *work)
{
    const PairMessage *p = work;
    const int me = m->r->rank;
    const RankList group = {m->r->ranks, m->all};
    const int64_t count = (int64_t)(p->bytes / sizeof(float));
    const Ref from = {me, ARENA_LOOP, 0, count, F32}, to = {me, ARENA_LOOP, LINK_BYTES, count, F32};
    Ticket out, in;
    if (p->partner < 0) return OK;
    TRY(comm_begin(m->r->comm,
                   &(Transfer){.kind = COMM_SEND,
                               .group = group,
                               .from = from,
                               .to = {.rank = p->partner, .count = count, .dtype = F32}},
                   &out));
    TRY(comm_begin(m->r->comm,
                   &(Transfer){.kind = COMM_RECV,
                               .group = group,
                               .from = {.rank = p->partner, .count = count, .dtype = F32},
                               .to = to},
                   &in));
    TRY(comm_wait(m->r->comm, in));
    return comm_wait(m->r->comm, out);
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

static void add_pair(Measurer *m, int a, int b, const double *seconds, PairSums *sums)
{
    const int32_t pair[] = {a < b ? a : b, a < b ? b : a};
    const int level = cost_group(&m->out->rates, (RankList){2, pair}).level;
    const double Bps = LINK_BYTES / fmax(seconds[1] - seconds[0], 0.1 * seconds[1]);
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
        PairMessage p = {partner < n ? partner : -1, i ? LINK_BYTES : sizeof(float)};
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

Err measure_pairs(Measurer *m)
{
    PairSums sums = {{0}, {0}, {0}};
    const int even = m->r->ranks + m->r->ranks % 2;
    CostRates *r = &m->out->rates;
    double *all;
    measure_progress(m, "pairs of ranks");
    TRY(ARENA_NEW(m->r->arena, 2 * m->r->ranks, &all));
    for (int round = 0; round < even - 1; round++) TRY(measure_round(m, round, all, &sums));
    for (int l = 0; l < r->n_levels; l++) {
        if (sums.n[l] == 0) continue;
        r->level[l].pair_latency_s = sums.latency_s[l] / sums.n[l];
        r->level[l].pair_Bps = sums.Bps[l] / sums.n[l];
    }
    return OK;
}
