/* control.c -- short messages that nobody waits for: looked for whenever a rank waits, polls or
 * begins. */
#include "comm/mpi/mpi_parts.h"

#include <stdio.h>
#include <string.h>

static Err letter_new(World *w, Letter **out)
{
    if (w->unused) {
        *out = w->unused;
        w->unused = w->unused->next;
        return OK;
    }
    return ARENA_NEW(&w->arena, 1, out);
}

Err mail_send(World *w, int to, MailKind what, const char *text)
{
    Letter *l;
    TRY(letter_new(w, &l));
    memset(&l->mail.post, 0, sizeof l->mail.post);
    l->mail.post.what = what;
    const int room = sizeof l->mail.body;
    const int length = text ? snprintf(l->mail.body, (size_t)room, "%s", text) + 1 : 0;
    l->mail.body_bytes = length < room ? length : room;
    TRY(mpi_ok(MPI_Isend(&l->mail.post, (int)sizeof(Post) + l->mail.body_bytes, MPI_BYTE, to,
                         MAIL_TAG, w->comm, &l->request),
               "send mail"));
    l->next = w->sent;
    w->sent = l;
    return OK;
}

Err mail_reap(World *w)
{
    for (Letter **at = &w->sent; *at;) {
        Letter *l = *at;
        int over = 0;
        TRY(mpi_ok(MPI_Test(&l->request, &over, MPI_STATUS_IGNORE), "send mail"));
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

Err mail_next(World *w, Mail *room, bool *came)
{
    MPI_Status status;
    int there = 0, bytes;
    *came = false;
    TRY(mpi_ok(MPI_Iprobe(MPI_ANY_SOURCE, MAIL_TAG, w->comm, &there, &status), "look for mail"));
    if (!there) return OK;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    TRY(mpi_ok(MPI_Recv(&room->post, (int)(sizeof room->post + sizeof room->body), MPI_BYTE,
                        status.MPI_SOURCE, MAIL_TAG, w->comm, MPI_STATUS_IGNORE),
               "take mail"));
    room->from = status.MPI_SOURCE;
    room->body_bytes = bytes - (int)sizeof room->post;
    room->next = NULL;
    *came = true;
    return OK;
}

void world_fail(World *w, const char *text)
{
    if (w->failed) return;
    w->failed = true;
    w->failed_rank = w->rank;
    snprintf(w->failed_text, sizeof w->failed_text, "%s", text);
    for (int i = 0; i < w->ranks; i++)
        if (i != w->rank && mail_send(w, i, FAIL, text) != OK) break; /* then nobody can be told */
}

Err world_error(const World *w)
{
    return err_fail(ERR_PEER, "rank %d: %s", w->failed_rank, w->failed_text);
}

static Err handle(Comm *c, Mail *mail)
{
    Mpi *m = c->state;
    World *w = m->world;
    char text[STATUS_BYTES];
    switch ((MailKind)mail->post.what) {
    case POST:
        return post_arrives(c, mail);
    case FAIL:
        if (w->failed) break;
        w->failed = true;
        w->failed_rank = mail->from;
        snprintf(w->failed_text, sizeof w->failed_text, "%.*s", COMM_TEXT_BYTES - 1, mail->body);
        break;
    case LEFT:
        w->left[mail->from] = 1;
        break;
    case ASK:
        report_status(c, text);
        return mail_send(w, mail->from, ANSWER, text);
    case ANSWER:
        snprintf(m->answer + (size_t)mail->from * STATUS_BYTES, STATUS_BYTES, "%.*s",
                 STATUS_BYTES - 1, mail->body);
        break;
    }
    return OK;
}

static Err mail_new(Mpi *m, Mail **out)
{
    if (m->unused) {
        *out = m->unused;
        m->unused = m->unused->next;
        return OK;
    }
    void *room; /* not cleared: most bodies stay empty, and then take no memory */
    TRY(arena_push(&m->pool, sizeof(Mail), &room));
    *out = room;
    return OK;
}

Err mail_take(Comm *c, bool *moved)
{
    Mpi *m = c->state;
    World *w = m->world;
    if (w->sent) TRY(mail_reap(w));
    for (;;) {
        Mail *mail;
        bool came;
        TRY(mail_new(m, &mail));
        const Err err = mail_next(w, mail, &came);
        const bool keep = err == OK && came && mail->post.what == POST;
        const Err then = err == OK && came ? handle(c, mail) : err;
        if (!keep) {
            mail->next = m->unused;
            m->unused = mail;
        }
        TRY(then);
        if (!came) return OK;
        *moved = true;
        if (w->failed) return OK;
    }
}
