/* agree.c -- agreement on an error after a phase that may fail on some ranks only. Without it the
 * other ranks would wait for ever for those that returned.
 *
 *     all-gather of the codes     mostly all are OK: one small transfer
 *     broadcast of the message    from the lowest rank that has an error */
#include "comm/backend.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { AGREEMENT = INT_MIN }; /* a separate group: the caller's sequence numbers do not change */

static Err gather_codes(Comm *c, RankList group, int32_t *codes)
{
    const int me = group_index(group, c->set.rank);
    Transfer t = {.kind = COMM_ALL_GATHER,
                  .group = group,
                  .purpose = AGREEMENT,
                  .from = {c->set.rank, COMM_OWN, sizeof *codes * (size_t)me, 1, I32},
                  .to = {c->set.rank, COMM_OWN, 0, group.n, I32},
                  .instr = -1,
                  .scalar = true};
    return comm_do(c, &t);
}

/* The whole buffer is sent: members do not know the length of the message. */
static Err spread_text(Comm *c, RankList group, int32_t root)
{
    const size_t at = c->memory[COMM_OWN].bytes - COMM_TEXT_BYTES;
    const Ref text = {c->set.rank, COMM_OWN, at, COMM_TEXT_BYTES / 4, I32};
    Transfer t = {.kind = COMM_BROADCAST,
                  .group = group,
                  .purpose = AGREEMENT,
                  .from = text,
                  .to = text,
                  .instr = -1,
                  .scalar = true};
    t.from.rank = root;
    return comm_do(c, &t);
}

Err comm_agree(Comm *c, RankList group, Err mine)
{
    int32_t *codes = (int32_t *)(void *)c->memory[COMM_OWN].base;
    char *text = c->memory[COMM_OWN].base + c->memory[COMM_OWN].bytes - COMM_TEXT_BYTES;
    const int me = group_index(group, c->set.rank);
    if (me < 0)
        return err_fail(ERR_CHECK,
                        "comm: rank %d agrees with a group of %d ranks that it is not in",
                        c->set.rank, group.n);
    codes[me] = mine;
    snprintf(text, COMM_TEXT_BYTES, "%s", mine == OK ? "" : err_text());
    TRY(gather_codes(c, group, codes));
    int first = -1;
    for (int i = 0; i < group.n; i++)
        if (codes[i] != OK && (first < 0 || group.rank[i] < group.rank[first])) first = i;
    if (first < 0) return OK;
    const Err err = (Err)codes[first];
    TRY(spread_text(c, group, group.rank[first]));
    if (first == me) return err_fail(err, "%s", text);
    return err_fail(err, "rank %d: %s", group.rank[first], text);
}
