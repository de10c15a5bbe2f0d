/* advance.c -- the state machine of a transfer, and the CommTable.
 *
 *     WAITING     all members posted?          -> compare signatures; an eager one is done
 *     MOVING      all flows complete, or the part in a queue of the device?   -> FINISHED
 *     SELF_PAIR   other half begun?            -> FINISHED
 *
 * No call blocks. */
#include "comm/mpi/mpi_parts.h"

#include <stdio.h>
#include <string.h>

/* Fails the world with an error of this rank, or returns the error of the rank that failed before.
 * err_text is saved: cancelling may overwrite it. */
static Err fail_world(Comm *c, Err err)
{
    MpiComm *m = c->state;
    char text[COMM_TEXT_BYTES];
    if (m->world->failed) {
        cancel_all(c);
        return world_error(m->world);
    }
    strcpy(text, err_text());
    world_fail(m->world, text);
    cancel_all(c);
    return err_fail(err, "%s", text);
}

/* If a receive cannot be cancelled, MPI may write into memory that the caller will free: then all
 * processes must end. */
void cancel_all(Comm *c)
{
    MpiComm *m = c->state;
    for (int i = 0; i < c->set.in_flight; i++) {
        MpiFlight *f = &m->flight[i];
        if (f->state == FINISHED) continue;
        if (f->state != SELF_PAIR && !flow_cancel(c, i)) {
            fprintf(stderr, "sheaf: rank %d: %s; a transfer does not end, so all ranks do\n",
                    m->world->failed_rank, m->world->failed_text);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        f->state = FINISHED;
        m->active--;
    }
    m->scratch_slot = -1;
}

/* Checks that MPI has sent the posts: their memory is reused by the next transfer of the slot. */
static Err posts_sent(const MpiFlight *f, bool *sent)
{
    for (int i = 0; i < f->n; i++) {
        int over = 1;
        if (i != f->me)
            TRY(mpi_ok(MPI_Test(&f->peer[i].posted, &over, MPI_STATUS_IGNORE), "post a transfer"));
        *sent = *sent && over;
    }
    return OK;
}

static Err finish(Comm *c, int slot, bool *moved)
{
    MpiComm *m = c->state;
    MpiFlight *f = &m->flight[slot];
    bool sent = true;
    TRY(posts_sent(f, &sent));
    if (!sent) return OK;
    post_end(c, slot);
    f->state = FINISHED;
    m->active--;
    comm_progress(c, slot, DONE);
    *moved = true;
    return OK;
}

Err advance(Comm *c, int slot, bool *moved)
{
    MpiFlight *f = &((MpiComm *)c->state)->flight[slot];
    const PendingTransfer *p = &c->pending[slot];
    bool over = f->eager;
    if (f->state == FINISHED) return OK;
    if (f->state == SELF_PAIR) return post_self_pair(c, slot, moved);
    if (f->state == WAITING) {
        if (f->missing > 0) return OK;
        TRY(post_compare(c, slot));
        comm_progress(c, slot, MATCHED);
        if (f->eager)
            flow_eager(c, slot);
        else if (!p->by_transport)
            flow_split(c, slot);
        f->state = MOVING;
        *moved = true;
    }
    if (p->by_transport)
        TRY(c->transport->launch(c, slot, &over));
    else if (!f->eager)
        TRY(flow_move(c, slot, moved, &over));
    return over ? finish(c, slot, moved) : OK;
}

Err advance_all(Comm *c, bool *moved)
{
    const MpiComm *m = c->state;
    for (int i = 0; m->active > 0 && i < c->set.in_flight; i++)
        if (m->flight[i].state != FINISHED) TRY(advance(c, i, moved));
    return OK;
}

static Err mpi_begin(Comm *c, int slot)
{
    MpiComm *m = c->state;
    if (m->world->failed) return fail_world(c, ERR_PEER);
    const Err err = post_begin(c, slot);
    if (err != OK) return fail_world(c, err);
    m->active++;
    return OK;
}

static Err mpi_poll(Comm *c)
{
    MpiComm *m = c->state;
    bool moved = false;
    Err err = m->world->failed ? ERR_PEER : control_receive(c, &moved);
    if (err == OK && m->world->failed) err = ERR_PEER;
    if (err == OK) err = advance_all(c, &moved);
    return err == OK ? OK : fail_world(c, err);
}

/* ERR_CHECK for a send or receive of this rank with itself whose other half was not begun: the only
 * thread that could begin it waits here. */
static Err self_pair_check(Comm *c, int slot)
{
    const MpiComm *m = c->state;
    const PendingTransfer *p = &c->pending[slot];
    char name[TRANSFER_NAME_BYTES];
    bool moved = false;
    if (m->flight[slot].state != SELF_PAIR) return OK;
    const Err err = post_self_pair(c, slot, &moved);
    if (err != OK) return fail_world(c, err);
    if (moved) return OK;
    return err_fail(
        ERR_CHECK,
        "mpi: %s has no %s to meet on its group, and none can come from the rank that waits; begin "
        "both before waiting for either",
        transfer_name(&p->t, p->sequence, name),
        comm_kind_name(p->t.kind == COMM_SEND ? COMM_RECV : COMM_SEND));
}

static Err mpi_wait(Comm *c, int slot)
{
    MpiComm *m = c->state;
    if (m->flight[slot].state == FINISHED)
        return c->pending[slot].progress == DONE ? OK : world_error(m->world);
    TRY(self_pair_check(c, slot));
    m->waits = slot;
    const Err err = wait_over(c, slot);
    m->waits = -1;
    return err == OK ? OK : fail_world(c, err);
}

static void mpi_abort_world(Comm *c, Err err, const char *message)
{
    MpiComm *m = c->state;
    (void)err;
    world_fail(m->world, message);
    cancel_all(c);
}

static bool posts_left(const Comm *c)
{
    const MpiComm *m = c->state;
    bool sent = true;
    for (int i = 0; i < c->set.in_flight; i++)
        if (posts_sent(&m->flight[i], &sent) != OK) return true;
    return !sent;
}

static void mpi_close(Comm *c)
{
    MpiComm *m = c->state;
    char text[COMM_TEXT_BYTES];
    if (comm_unfinished(c, text) && !m->world->failed) world_fail(m->world, text);
    cancel_all(c);
    world_leave(m->world);
    if (!posts_left(c))
        arena_close(&m->pool); /* else MPI still reads it: it stays until the process ends */
}

const CommTable mpi_table = {.name = "mpi",
                             .begin = mpi_begin,
                             .wait = mpi_wait,
                             .close = mpi_close,
                             .poll = mpi_poll,
                             .abort = mpi_abort_world};
