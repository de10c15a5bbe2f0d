/* channels.c -- finds the channel of a transfer: one for each list of ranks and purpose. */
#include "plan/clock/parts.h"

#include <string.h>

static uint64_t hash_group(RankList group, int purpose)
{
    uint64_t h = 1469598103934665603u ^ (uint64_t)purpose;
    for (int i = 0; i < group.n; i++) h = (h ^ (uint64_t)group.rank[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static TimeKind time_of(const StepClock *c, RankList group, int purpose)
{
    const Mesh *mesh = c->in->mesh;
    switch (purpose) {
    case PURPOSE_GATHER:
    case PURPOSE_REDUCE:
        return TIME_DP;
    case PURPOSE_FORWARD:
    case PURPOSE_BACKWARD:
    case PURPOSE_FRAME:
        return TIME_PP;
    case PURPOSE_SCALAR:
        return TIME_UPDATE;
    case PURPOSE_D2H:
    case PURPOSE_H2D:
        return TIME_HOST;
    default: /* within units ranks along dp exchange nothing but rows of experts */
        if (group_axes(mesh, group) & mesh_axes(mesh, VIEW_DENSE, "dp")) return TIME_EP;
        return group_axes(mesh, group) & mesh_axes(mesh, VIEW_DENSE, "cp") ? TIME_CP : TIME_TP;
    }
}

/* The number of tapes that are played for the ranks of the group. Ranks of one tape differ along
 * whole axes, so the first rank of a tape is in every played group that has another of them. */
static int count_tapes(const StepClock *c, RankList group)
{
    int n = 0;
    for (int i = 0; i < group.n; i++) n += c->tape[c->tape_of[group.rank[i]]].rank == group.rank[i];
    return n;
}

static Err grow_table(StepClock *c)
{
    c->table_size = c->table_size ? 2 * c->table_size : 1024;
    TRY(ARENA_NEW(c->arena, c->table_size, &c->table));
    for (int i = 0; i < c->n_channels; i++) {
        int at = (int)(c->channel[i].hash % (uint64_t)c->table_size);
        while (c->table[at]) at = (at + 1) % c->table_size;
        c->table[at] = i + 1;
    }
    return OK;
}

static Err grow_channels(StepClock *c)
{
    ClockChannel *more;
    c->cap_channels = c->cap_channels ? 2 * c->cap_channels : 256;
    TRY(ARENA_NEW(c->arena, c->cap_channels, &more));
    if (c->n_channels) memcpy(more, c->channel, (size_t)c->n_channels * sizeof *more);
    c->channel = more;
    return OK;
}

static bool is_channel(const ClockChannel *k, uint64_t hash, RankList group, int purpose)
{
    return k->hash == hash && k->purpose == purpose && k->group.n == group.n &&
           memcmp(k->group.rank, group.rank, (size_t)group.n * sizeof *group.rank) == 0;
}

Err clock_channel(StepClock *c, RankList group, int purpose, int *out)
{
    const uint64_t hash = hash_group(group, purpose);
    int32_t *rank;
    if (2 * (c->n_channels + 1) > c->table_size) TRY(grow_table(c));
    int at = (int)(hash % (uint64_t)c->table_size);
    for (; c->table[at]; at = (at + 1) % c->table_size) {
        *out = c->table[at] - 1;
        if (is_channel(&c->channel[*out], hash, group, purpose)) return OK;
    }
    if (c->n_channels == c->cap_channels) TRY(grow_channels(c));
    TRY(ARENA_NEW(c->arena, group.n, &rank));
    memcpy(rank, group.rank, (size_t)group.n * sizeof *rank);
    c->channel[c->n_channels] = (ClockChannel){.hash = hash,
                                               .purpose = purpose,
                                               .group = {group.n, rank},
                                               .members = count_tapes(c, group),
                                               .time = time_of(c, group, purpose)};
    *out = c->n_channels++;
    c->table[at] = *out + 1;
    return OK;
}
