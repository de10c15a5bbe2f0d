/* channels.c -- counts the channels of a rank's transfers, which a device transport opens before
 * the first step. A program has few, and each transfer is compared with those found so far. */
#include "comm/channel_key.h"
#include "schedule/traffic.h"

typedef struct {
    int rank, n, cap;
    Transfer *t; /* one of each channel */
    Arena *arena;
    ChannelCount count;
} ChannelSearch;

static Err grow(ChannelSearch *s)
{
    Transfer *t;
    const int cap = s->cap ? 2 * s->cap : 16;
    TRY(ARENA_NEW(s->arena, cap, &t));
    for (int i = 0; i < s->n; i++) t[i] = s->t[i];
    s->t = t;
    s->cap = cap;
    return OK;
}

static Err add_channel(void *context, const Transfer *t, int64_t times)
{
    ChannelSearch *s = context;
    const ChannelKey key = channel_key(t, s->rank);
    (void)times;
    if (t->scalar) return OK; /* in host memory */
    for (int i = 0; i < s->n; i++) {
        const ChannelKey known = channel_key(&s->t[i], s->rank);
        if (channel_key_compare(&known, &key) == 0) return OK;
    }
    if (s->n == s->cap) TRY(grow(s));
    s->t[s->n++] = *t;
    if (key.pair[0] < 0)
        s->count.groups++;
    else
        s->count.pairs++;
    return OK;
}

Err linked_channels(const LinkedProgram *lp, Arena *temp, ChannelCount *out)
{
    const size_t mark = arena_mark(temp);
    ChannelSearch s = {.rank = lp->rank, .arena = temp};
    const Err err = linked_visit(lp, add_channel, &s);
    arena_rewind(temp, mark);
    *out = s.count;
    return err;
}
