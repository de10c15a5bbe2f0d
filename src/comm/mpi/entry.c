/* entry.c -- start and end of the processes; mpi_parts.h has the protocol in between.
 *
 *     start   MPI_Init
 *     join    a new communicator per comm: messages that a failed comm left behind stay in its own
 *     close   LEFT to all
 *     stop    when all have left: MPI_Finalize */
#define _POSIX_C_SOURCE 200809L
#include "comm/mpi/mpi_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"

static const double DEPARTURE_S = 4; /* how long to wait for other ranks after a failure */

Err mpi_ok(int rc, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (rc == MPI_SUCCESS) return OK;
    MPI_Error_string(rc, text, &length);
    return err_fail(ERR_PEER, "mpi: %s: %s; did another rank end?", what, text);
}

/* True if this host has more ranks than processors. Its own affinity mask is not used: a launcher
 * may have bound this rank to some of the cores. */
static bool is_oversubscribed(void)
{
    MPI_Comm host;
    int ranks;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &ranks);
    MPI_Comm_free(&host);
    return ranks > sysconf(_SC_NPROCESSORS_ONLN);
}

static void world_abort(CommWorld *w, int status)
{
    (void)w;
    MPI_Abort(MPI_COMM_WORLD, status);
}

void world_leave(MpiProcess *w)
{
    for (int i = 0; i < w->base.ranks; i++)
        if (i != w->base.rank && control_send(w, i, LEFT, NULL) != OK) break;
    w->open = false;
}

static bool all_left(const MpiProcess *w)
{
    for (int i = 0; i < w->base.ranks; i++)
        if (i != w->base.rank && !w->left[i]) return false;
    return w->sent == NULL;
}

/* After comm_close: receives control messages until all other ranks have closed their comm. False
 * if the world has failed and some rank does not respond. */
static bool await_departures(MpiProcess *w)
{
    ControlMessage *buffer = &w->buffer;
    double idle_since_s = now_s();
    while (w->comm != MPI_COMM_NULL && !all_left(w)) {
        bool came = false;
        if (control_next(w, buffer, &came) != OK || control_reap(w) != OK) return false;
        if (came && buffer->post.what == LEFT) w->left[buffer->from] = 1;
        if (came && buffer->post.what == FAIL) w->failed = true;
        if (came) idle_since_s = now_s();
        if (w->failed && now_s() - idle_since_s > DEPARTURE_S) return false;
        if (!came) wait_backoff(now_s() - idle_since_s);
    }
    /* A failed communicator may hold messages that no rank receives: it stays until the process
     * ends. */
    if (w->comm != MPI_COMM_NULL && !w->failed) MPI_Comm_free(&w->comm);
    return true;
}

/* The second half of `all` counts the processes that pass each rank. */
static Err world_renumber(CommWorld *base, int rank)
{
    MpiProcess *w = (MpiProcess *)base;
    const int n = w->base.ranks;
    int *all;
    MUST(!w->open, "rank %d gets a new number with its comm open", w->base.rank);
    if (!await_departures(w)) /* the last comm has the old ranks */
        return err_fail(ERR_PEER, "mpi: the last comm failed, and some ranks hang in it");
    const size_t mark = arena_mark(&w->arena);
    TRY(ARENA_NEW(&w->arena, 2 * n, &all));
    TRY(mpi_ok(MPI_Allgather(&rank, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD), "renumber"));
    bool keep = false, twice = false;
    for (int i = 0; i < n; i++) {
        keep = keep || all[i] < 0;
        if (all[i] < 0 || all[i] >= n) continue;
        twice = twice || all[n + all[i]]++ > 0;
    }
    arena_rewind(&w->arena, mark);
    if (keep) return OK;
    if (twice || rank >= n)
        return err_fail(ERR_CONFIG, "mpi: two processes have the same rank; is mesh.nodes the same "
                                    "on all of them?");
    w->base.rank = rank;
    return OK;
}

static void world_stop(CommWorld *base)
{
    MpiProcess *w = (MpiProcess *)base;
    MUST(!w->open, "rank %d stops with its comm open", w->base.rank);
    if (!await_departures(w)) {
        fprintf(stderr, "sheaf: rank %d ends all ranks: after a failure some do not respond\n",
                w->base.rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    arena_close(&w->arena);
    free(w);
}

static Err settings_check(const MpiProcess *w, const CommSettings *set)
{
    int *upper, found;
    if (set->rank != w->base.rank || set->ranks != w->base.ranks)
        return err_fail(ERR_CONFIG, "mpi: rank %d of %d joins as rank %d of %d", w->base.rank,
                        w->base.ranks, set->rank, set->ranks);
    if (set->hostile)
        return err_fail(ERR_CONFIG, "mpi: a hostile comm is only made of threads; use `local`");
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper, &found);
    if (found && set->in_flight > (*upper - DATA_TAG) / PHASES)
        return err_fail(ERR_CONFIG, "mpi: %d transfers in flight; this MPI has tags for at most %d",
                        set->in_flight, (*upper - DATA_TAG) / PHASES);
    return OK;
}

/* All ranks join, or none does. `in_flight` must be equal on all: it bounds the posts that others
 * may send, and so the memory for unexpected ones. */
static Err settings_agree(const MpiProcess *w, const CommSettings *set)
{
    const Err mine = settings_check(w, set);
    int least[3] = {set->in_flight, -set->in_flight, mine == OK};
    const int rc = MPI_Allreduce(MPI_IN_PLACE, least, 3, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    TRY(mine);
    TRY(mpi_ok(rc, "join"));
    if (!least[2]) return err_fail(ERR_PEER, "mpi: another rank could not join");
    if (least[0] != -least[1])
        return err_fail(ERR_CONFIG,
                        "mpi: ranks join with %d to %d transfers in flight; it must be the same "
                        "number on all",
                        least[0], -least[1]);
    return OK;
}

static size_t post_bytes(int ranks)
{
    const size_t one = sizeof(MpiPost) + MAX_EAGER_BYTES, each = sizeof(MpiPost) * (size_t)ranks;
    return align_up(one > each ? one : each);
}

static Err open_flights(MpiComm *m, int in_flight, int ranks)
{
    TRY(ARENA_NEW(&m->pool, in_flight, &m->flight));
    for (int i = 0; i < in_flight; i++) {
        void *peers, *message; /* not cleared: pages that are never written take no memory */
        TRY(arena_push(&m->pool, sizeof(Peer) * (size_t)ranks, &peers));
        TRY(arena_push(&m->pool, post_bytes(ranks), &message));
        m->flight[i].peer = peers;
        m->flight[i].message = message;
    }
    return OK;
}

/* Reserves addresses for the maximum: two messages per slot and peer, the flights, and scratch for
 * WINDOW chunks of every member. */
static Err open_pool(MpiComm *m, const CommSettings *set)
{
    const size_t ranks = (size_t)set->ranks, flights = (size_t)set->in_flight;
    const size_t others = ranks > 1 ? ranks - 1 : 1;
    size_t chunk = SCRATCH_BYTES / (WINDOW * others) / ARENA_ALIGN * ARENA_ALIGN;
    if (chunk > CHUNK_BYTES) chunk = CHUNK_BYTES;
    if (chunk < MIN_CHUNK_BYTES) chunk = MIN_CHUNK_BYTES;
    const size_t message = align_up(sizeof(ControlMessage)) * (2 * flights * others + 2);
    const size_t tables =
        flights * (sizeof *m->flight + sizeof(Peer) * ranks + post_bytes(set->ranks));
    const size_t scratch = WINDOW * ranks * chunk, each_rank = STATUS_BYTES + 256;
    void *buffer;
    TRY(arena_open(&m->pool, "mpi transfers",
                   message + tables + scratch + each_rank * ranks + 4096 + flights * 256));
    TRY(open_flights(m, set->in_flight, set->ranks));
    TRY(ARENA_NEW(&m->pool, set->ranks, &m->unexpected));
    TRY(ARENA_NEW(&m->pool, set->ranks, &m->latest));
    TRY(ARENA_NEW(&m->pool, set->ranks, &m->source));
    TRY(ARENA_NEW(&m->pool, set->ranks * STATUS_BYTES, &m->status_text));
    TRY(arena_push(&m->pool, scratch, &buffer));
    m->scratch = buffer;
    m->scratch_chunk = chunk;
    m->waits = m->scratch_slot = -1;
    for (int i = 0; i < set->ranks; i++) {
        m->unexpected[i].last = &m->unexpected[i].first;
        m->latest[i].group = -1;
    }
    return OK;
}

static Err open_comm(MpiProcess *w, Arena *a, const CommSettings *set, Comm **out)
{
    MpiComm *m;
    TRY(ARENA_NEW(a, 1, &m));
    m->world = w;
    TRY(open_pool(m, set));
    const Err err = comm_open(a, set, &mpi_table, m, out);
    if (err != OK) arena_close(&m->pool);
    return err;
}

static Err world_join(CommWorld *base, Arena *a, const CommSettings *set, Comm **out)
{
    MpiProcess *w = (MpiProcess *)base;
    MUST(!w->open, "rank %d has a comm open", w->base.rank);
    TRY(settings_agree(w, set));
    if (!await_departures(w))
        return err_fail(ERR_PEER, "mpi: the last comm failed, and some ranks hang in it");
    TRY(mpi_ok(MPI_Comm_split(MPI_COMM_WORLD, 0, w->base.rank, &w->comm), "join"));
    MPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN);
    w->failed = false;
    memset(w->left, 0, (size_t)w->base.ranks);
    const Err err = open_comm(w, a, set, out);
    w->open = err == OK;
    if (err != OK) {
        world_fail(w, err_text());
        world_leave(w);
    }
    return err;
}

static Err world_start(CommWorld **out)
{
    int given = MPI_THREAD_SINGLE, before = 0;
    MPI_Initialized(&before);
    if (before) return err_fail(ERR_CONFIG, "mpi: it was started before in this process");
    TRY(mpi_ok(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given), "start"));
    if (given < MPI_THREAD_FUNNELED) {
        MPI_Finalize();
        return err_fail(ERR_CONFIG, "mpi: this MPI does not support threads "
                                    "(MPI_THREAD_FUNNELED); use one that was built with them");
    }
    MpiProcess *w = calloc(1, sizeof *w);
    if (!w) return err_fail(ERR_NOMEM, "mpi: no memory for the world");
    w->base = (CommWorld){.name = "mpi",
                          .here = 1,
                          .processes = true,
                          .renumber = world_renumber,
                          .join = world_join,
                          .stop = world_stop,
                          .abort = world_abort};
    w->comm = MPI_COMM_NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &w->base.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &w->base.ranks);
    w->oversubscribed = is_oversubscribed();
    TRY(arena_open(&w->arena, "mpi world", ARENA_PLENTY));
    TRY(ARENA_NEW(&w->arena, w->base.ranks, &w->left));
    *out = &w->base;
    return OK;
}

const MpiEntry sheaf_mpi = {.abi = {{sizeof(Comm), sizeof(Transfer), sizeof(CommWorld)}},
                            .start = world_start};
