/* prices.c -- work and transfers of the tapes, each once; their seconds on a cluster. */
#include "plan/clock/parts.h"

#include <string.h>

static uint64_t hash_price(const ClockPrice *p)
{
    uint64_t h = 1469598103934665603u, word;
    for (size_t i = 0; i + sizeof word <= sizeof *p; i += sizeof word) {
        memcpy(&word, (const char *)p + i, sizeof word);
        h = (h ^ word) * 1099511628211u;
        h ^= h >> 29;
    }
    return h;
}

static int find_slot(const StepClock *c, const ClockPrice *p)
{
    int at = (int)(hash_price(p) % (uint64_t)c->price_table_size);
    while (c->price_table[at] && memcmp(&c->price[c->price_table[at] - 1], p, sizeof *p) != 0)
        at = (at + 1) % c->price_table_size;
    return at;
}

static Err grow_prices(StepClock *c)
{
    ClockPrice *more;
    const int cap = c->cap_prices ? 2 * c->cap_prices : 256;
    TRY(ARENA_NEW(c->arena, cap, &more));
    if (c->n_prices) memcpy(more, c->price, (size_t)c->n_prices * sizeof *more);
    TRY(ARENA_NEW(c->arena, 2 * cap, &c->price_table)); /* zero */
    c->price = more;
    c->cap_prices = cap;
    c->price_table_size = 2 * cap;
    for (int i = 0; i < c->n_prices; i++) c->price_table[find_slot(c, &c->price[i])] = i + 1;
    return OK;
}

Err clock_price(StepClock *c, const ClockPrice *p, int32_t *out)
{
    if (c->n_prices == c->cap_prices) TRY(grow_prices(c));
    const int slot = find_slot(c, p);
    if (!c->price_table[slot]) {
        c->price[c->n_prices++] = *p;
        c->price_table[slot] = c->n_prices;
    }
    *out = c->price_table[slot] - 1;
    return OK;
}

int clock_find_work(const StepClock *c, const CostWork *work)
{
    ClockPrice price;
    memset(&price, 0, sizeof price);
    price.work = *work;
    price.channel = -1;
    return c->n_prices ? c->price_table[find_slot(c, &price)] - 1 : -1;
}

double clock_calls(const StepClock *c, const ClockChannel *k)
{
    return k->time == TIME_DP && c->in->dp_calls > 0 ? c->in->dp_calls : 1;
}

static double transfer_seconds(const StepClock *c, const CostRates *r, const ClockPrice *p)
{
    const ClockChannel *k = &c->channel[p->channel];
    const CostGroup group = cost_group(r, k->group);
    const double calls = clock_calls(c, k),
                 bytes = k->time == TIME_DP && c->in->dp_bytes > 0 ? c->in->dp_bytes : 1;
    return calls * cost_transfer_seconds(r, p->kind, group, bytes * p->bytes / calls);
}

double clock_seconds(const StepClock *c, const TapePlayer *p, const ClockEvent *e)
{
    const bool works = c->price[e->price].channel < 0; /* copies to and from the host, too */
    return works ? c->seconds[e->price] / p->speed : c->seconds[e->price];
}

void clock_price_all(const StepClock *c, const Cluster *cluster, double *seconds)
{
    for (int i = 0; i < c->n_prices; i++) {
        const ClockPrice *p = &c->price[i];
        const CostRates *r = &cluster->rates;
        if (c->measured && c->measured[i] > 0) {
            seconds[i] = c->measured[i];
            continue;
        }
        seconds[i] = p->channel < 0 ? cost_work_seconds(r, &p->work) : transfer_seconds(c, r, p);
    }
}
