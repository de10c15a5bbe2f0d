/* rounds.c -- the number of rounds that the rows of experts take, and what further ones sent.
 *
 * The host reads the offsets of all ranks that send, which are in memory of the device. All members
 * of the exchange have them, so each finds the same number. */
#include <stdlib.h>

#include "device/exchange.h"
#include "run/rank_parts.h"
#include "schedule/traffic.h"

static int64_t count(const Instr *in, const Tensor *all)
{
    Attr attr = {0};
    attr.exchange.ep = (int32_t)in->attr.rounds.ep;
    attr.exchange.room = in->attr.rounds.room;
    return exchange_rounds(&attr, all);
}

Err rounds_of(Rank *r, const Instr *in, const Tensor *all, int64_t *rounds)
{
    Tensor here = *all;
    const size_t bytes = (size_t)(all->n[0] * all->n[1]) * dtype_bytes(all->dtype);
    MUST(all->stride[1] == 1 && all->stride[0] == all->n[1], "offsets of ranks are apart");
    if (rank_on_host(r)) {
        *rounds = count(in, all);
        return OK;
    }
    here.data = malloc(bytes + 1);
    if (!here.data) return err_fail(ERR_NOMEM, "no memory for offsets of %zu bytes", bytes);
    const Err err = rank_read(r, all->data, bytes, here.data);
    *rounds = err == OK ? count(in, &here) : 0;
    free(here.data);
    return err;
}

void rounds_record(Rank *r, const LinkedAction *l, const Instr *in, const Program *body)
{
    r->rounds.sent_bytes += body_sent(body, r->settings.program->rank);
    r->rounds.n += in->op == OP_rounds && l->action.phase == PHASE_F;
}
