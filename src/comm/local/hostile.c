/* hostile.c -- adversarial completion of transfers, for tests.
 *
 *     early   posted and moved at once, as far as the other members allow
 *     late    posted after a random delay; the result stays in staging memory until the wait
 *
 * Until the result is written, `to` is filled with 0xFF. An in-place source, which that would
 * overwrite, is copied to staging memory first. Device memory is only delayed, not filled; the
 * shadow device of the tests randomizes its own queues. */
#include "comm/local/local_parts.h"

#include <string.h>
#include "base/clock.h"

enum { MAX_DELAY_US = 200 };

/* Staging memory is rewound only when no transfer holds any: transfers finish in any order. */
static Err take_staging(LocalComm *l, LocalFlight *f, size_t bytes, void **out)
{
    if (l->n_staged == 0) arena_rewind(&l->staging, 0);
    if (!f->held) l->n_staged++;
    f->held = true;
    return arena_push(&l->staging, bytes, out);
}

static bool overlap(const Ref *a, const Ref *b)
{
    return a->arena == b->arena && a->offset < b->offset + ref_bytes(b) &&
           b->offset < a->offset + ref_bytes(a);
}

Err hostile_begin(Comm *c, int slot)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    const PendingTransfer *p = &c->pending[slot];
    const uint64_t bits = random_bits(&l->random, (uint64_t)p->number);
    f->late = bits & 1;
    if (f->late) f->not_before_s = now_s() + 1e-6 * (double)((bits >> 8) % MAX_DELAY_US);
    if (f->device || f->by_transport || !transfer_writes(&p->t) || ref_bytes(&p->t.to) == 0)
        return OK;
    if (transfer_reads(&p->t, c->set.rank) && overlap(&p->t.from, &p->t.to)) {
        TRY(take_staging(l, f, ref_bytes(&p->t.from), &f->staged));
        memcpy(f->staged, comm_at(c, &p->t.from), ref_bytes(&p->t.from));
    }
    if (f->late) TRY(take_staging(l, f, ref_bytes(&p->t.to), &f->staged_to));
    memset(comm_at(c, &p->t.to), 0xFF, ref_bytes(&p->t.to));
    return OK;
}

void hostile_deliver(Comm *c, int slot)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    const Ref *to = &c->pending[slot].t.to;
    if (f->staged_to) memcpy(comm_at(c, to), f->staged_to, ref_bytes(to));
    if (f->held) l->n_staged--;
    f->held = false;
}
