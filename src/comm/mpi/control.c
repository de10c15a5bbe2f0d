/* control.c -- control messages. No rank blocks for one; they are received whenever a rank waits or
 * polls. */
#include "comm/mpi/mpi_parts.h"

#include <stdio.h>
#include <string.h>

static Err sent_new(MpiProcess *w, SentMessage **out)
{
    if (w->unused) {
        *out = w->unused;
        w->unused = w->unused->next;
        return OK;
    }
    return ARENA_NEW(&w->arena, 1, out);
}

Err control_send(MpiProcess *w, int to, ControlKind what, const char *text)
{
    SentMessage *l;
    TRY(sent_new(w, &l));
    memset(&l->message.post, 0, sizeof l->message.post);
    l->message.post.what = what;
    const int cap = sizeof l->message.body;
    const int length = text ? snprintf(l->message.body, (size_t)cap, "%s", text) + 1 : 0;
    l->message.body_bytes = length < cap ? length : cap;
    TRY(mpi_ok(MPI_Isend(&l->message.post, (int)sizeof(MpiPost) + l->message.body_bytes, MPI_BYTE,
                         to, CONTROL_TAG, w->comm, &l->request),
               "send a control message"));
    l->next = w->sent;
    w->sent = l;
    return OK;
}

Err control_reap(MpiProcess *w)
{
    for (SentMessage **at = &w->sent; *at;) {
        SentMessage *l = *at;
        int over = 0;
        TRY(mpi_ok(MPI_Test(&l->request, &over, MPI_STATUS_IGNORE), "send a control message"));
        if (over) {
            *at = l->next;
            l->next = w->unused;
            w->unused = l;
        } else {
            at = &l->next;
        }
    }
    return OK;
}

Err control_next(MpiProcess *w, ControlMessage *buffer, bool *came)
{
    MPI_Status status;
    int there = 0, bytes;
    *came = false;
    TRY(mpi_ok(MPI_Iprobe(MPI_ANY_SOURCE, CONTROL_TAG, w->comm, &there, &status),
               "look for control messages"));
    if (!there) return OK;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    TRY(mpi_ok(MPI_Recv(&buffer->post, (int)(sizeof buffer->post + sizeof buffer->body), MPI_BYTE,
                        status.MPI_SOURCE, CONTROL_TAG, w->comm, MPI_STATUS_IGNORE),
               "receive a control message"));
    buffer->from = status.MPI_SOURCE;
    buffer->body_bytes = bytes - (int)sizeof buffer->post;
    buffer->next = NULL;
    *came = true;
    return OK;
}

void world_fail(MpiProcess *w, const char *text)
{
    if (w->failed) return;
    w->failed = true;
    w->failed_rank = w->base.rank;
    snprintf(w->failed_text, sizeof w->failed_text, "%s", text);
    for (int i = 0; i < w->base.ranks; i++)
        if (i != w->base.rank && control_send(w, i, FAIL, text) != OK)
            break; /* MPI fails: no rank can be reached */
}

Err world_error(const MpiProcess *w)
{
    return err_fail(ERR_PEER, "rank %d: %s", w->failed_rank, w->failed_text);
}

/* A post is kept by post_arrives; the memory of other messages is free after this. */
static Err handle(Comm *c, ControlMessage *message)
{
    MpiComm *m = c->state;
    MpiProcess *w = m->world;
    char text[STATUS_BYTES];
    switch ((ControlKind)message->post.what) {
    case POST:
        return post_arrives(c, message);
    case FAIL:
        if (w->failed) break;
        w->failed = true;
        w->failed_rank = message->from;
        snprintf(w->failed_text, sizeof w->failed_text, "%.*s", COMM_TEXT_BYTES - 1, message->body);
        break;
    case LEFT:
        w->left[message->from] = 1;
        break;
    case QUERY:
        report_status(c, text);
        return control_send(w, message->from, STATUS, text);
    case STATUS:
        snprintf(m->status_text + (size_t)message->from * STATUS_BYTES, STATUS_BYTES, "%.*s",
                 STATUS_BYTES - 1, message->body);
        break;
    }
    return OK;
}

static Err message_new(MpiComm *m, ControlMessage **out)
{
    if (m->unused) {
        *out = m->unused;
        m->unused = m->unused->next;
        return OK;
    }
    void *buffer; /* not cleared: pages of bodies that stay empty take no memory */
    TRY(arena_push(&m->pool, sizeof(ControlMessage), &buffer));
    *out = buffer;
    return OK;
}

Err control_receive(Comm *c, bool *moved)
{
    MpiComm *m = c->state;
    MpiProcess *w = m->world;
    if (w->sent) TRY(control_reap(w));
    for (;;) {
        ControlMessage *message;
        bool came;
        TRY(message_new(m, &message));
        const Err err = control_next(w, message, &came);
        const bool keep = err == OK && came && message->post.what == POST;
        const Err then = err == OK && came ? handle(c, message) : err;
        if (!keep) {
            message->next = m->unused;
            m->unused = message;
        }
        TRY(then);
        if (!came) return OK;
        *moved = true;
        if (w->failed) return OK;
    }
}
