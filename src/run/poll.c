/* poll.c -- advances transfers while a kernel runs on the host.
 *
 *     rank 0   begin kv ... | tile | tile | tile | tile | ... wait kv     a hop needs both members
 *                              ^      ^      ^      ^                     at the comm several times
 *                              comm_poll
 *
 * A comm moves bytes only inside of its calls. Between instructions alone, a hop would stop for as
 * long as an attention takes. A device moves bytes beside its kernels, so nothing is polled there.
 *
 * Polling changes when bytes move, never their order or the order of sums: results are the same
 * bits. */
#include "run/rank_parts.h"

#include "base/clock.h"

/* Shortest time between two polls. A poll without news takes about a microsecond, and the tiles of
 * small kernels are shorter than that. */
static const double POLL_S = 20e-6;

static void poll_between_tiles(void *rank)
{
    Rank *r = rank;
    if (r->poll.failed != OK) return; /* run_instr's caller returns it */
    const double at_s = now_s();
    if (at_s < r->poll.next_s) return;
    r->poll.failed = comm_poll(r->settings.comm);
    r->poll.n++;
    r->poll.next_s = now_s() + POLL_S;
}

void poll_begin(Rank *r)
{
    if (r->runtime || !r->settings.comm || r->tickets.n == 0) return;
    team_set_poll(r->settings.team, poll_between_tiles, r);
}

void poll_end(Rank *r) { team_set_poll(r->settings.team, NULL, NULL); }

Err poll_now(Rank *r)
{
    const Err failed = r->poll.failed;
    r->poll.failed = OK;
    if (failed != OK) return failed;
    return r->settings.comm && r->tickets.n > 0 ? comm_poll(r->settings.comm) : OK;
}
