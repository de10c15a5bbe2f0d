/* standin_meet.c -- the rendezvous of the members of a communicator, in a file of shared memory. */
#define _GNU_SOURCE
#include "nccl/standin_parts.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t file_bytes(int n) { return sizeof(Shared) + (size_t)RING * (size_t)n * GIVEN_BYTES; }

/* The input of member `rank` in one batch. */
static char *given(const NcclComm *c, int64_t number, int rank)
{
    const size_t at = (size_t)(number % RING) * (size_t)c->n + (size_t)rank;
    return (char *)(c->shared + 1) + at * GIVEN_BYTES;
}

static Meeting *meeting(const NcclComm *c, int64_t number)
{
    return &c->shared->meeting[number % RING];
}

bool meet_open(NcclComm *c)
{
    const int file = shm_open(c->name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)file_bytes(c->n)) != 0) return false;
    void *at = mmap(NULL, file_bytes(c->n), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return false;
    c->shared = at;
    atomic_store(&c->shared->joined[c->rank], 1);
    return true;
}

/* The name is unlinked when all members have opened the file, or one aborts. */
bool meet_all_in(const NcclComm *c)
{
    for (int i = 0; i < c->n; i++)
        if (!atomic_load(&c->shared->joined[i])) return false;
    shm_unlink(c->name);
    return true;
}

void meet_close(NcclComm *c)
{
    shm_unlink(c->name);
    if (c->shared) munmap(c->shared, file_bytes(c->n));
    c->shared = NULL;
}

void meet_fail(NcclComm *c, const char *format, ...)
{
    int none = 0;
    va_list args;
    if (!atomic_compare_exchange_strong(&c->shared->failed, &none, 1)) return;
    va_start(args, format);
    vsnprintf(c->shared->text, sizeof c->shared->text, format, args);
    va_end(args);
    atomic_store(&c->shared->failed, 2);
}

size_t type_bytes(int32_t type)
{
    if (type == NCCL_U8) return 1;
    return type == NCCL_BF16 ? 2 : type == NCCL_F32 || type == NCCL_I32 ? 4 : 8;
}

static size_t gives_bytes(const NcclComm *c, const NcclCall *k)
{
    const size_t bytes = k->count * type_bytes(k->type);
    if (k->kind == REDUCE_SCATTER) return bytes * (size_t)c->n;
    if (k->kind == RECV || (k->kind == BROADCAST && k->root != c->rank)) return 0;
    return bytes;
}

/* False while some member still reads the batch that used this ring entry before. */
static bool publish(Batch *b)
{
    NcclComm *c = b->comm;
    Meeting *m = meeting(c, b->number);
    size_t at = 0;
    for (int i = 0; b->number > RING && i < c->n; i++)
        if (atomic_load(&m->consumed[i]) != b->number - RING) return false;
    for (int i = 0; i < b->n; i++) {
        const size_t bytes = gives_bytes(c, &b->call[i]);
        b->call[i].at = at;
        if (at + bytes > GIVEN_BYTES) {
            meet_fail(c, "rank %d gives more than %d bytes", c->rank, (int)GIVEN_BYTES);
            return false;
        }
        if (bytes > 0) memcpy(given(c, b->number, c->rank) + at, shadow_at(b->from[i]), bytes);
        at += bytes;
        m->call[c->rank][i] = b->call[i];
    }
    m->n_calls[c->rank] = b->n;
    atomic_store(&m->published[c->rank], b->number);
    return b->published = true;
}

static bool all_published(const Batch *b)
{
    Meeting *m = meeting(b->comm, b->number);
    for (int i = 0; i < b->comm->n; i++)
        if (atomic_load(&m->published[i]) != b->number) return false;
    return true;
}

static bool is_pair(const NcclCall *k) { return k->kind == SEND || k->kind == RECV; }

/* The `which`-th send (or receive) of `rank` with `peer`; NULL: there is none. */
static const NcclCall *pair_call(const Meeting *m, int rank, CallKind kind, int peer, int which)
{
    for (int i = 0; i < m->n_calls[rank]; i++) {
        const NcclCall *k = &m->call[rank][i];
        if (k->kind == (int32_t)kind && k->root == peer && which-- == 0) return k;
    }
    return NULL;
}

/* Checks that every send of a member has its receive, and vice versa. */
static bool pairs_agree(NcclComm *c, const Meeting *m, int rank, int number)
{
    for (int peer = 0; peer < c->n; peer++)
        for (int which = 0;; which++) {
            const NcclCall *s = pair_call(m, rank, SEND, peer, which);
            const NcclCall *r = pair_call(m, peer, RECV, rank, which);
            if (!s && !r) break;
            if (s && r && s->count == r->count && s->type == r->type) continue;
            meet_fail(
                c,
                "launch %d: rank %d sends %lld elements of type %d to rank %d, which receives "
                "%lld of type %d",
                number, rank, s ? (long long)s->count : -1ll, s ? s->type : -1, peer,
                r ? (long long)r->count : -1ll, r ? r->type : -1);
            return false;
        }
    return true;
}

static bool same(const NcclCall *a, const NcclCall *b)
{
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root &&
           a->count == b->count;
}

static bool agree(Batch *b)
{
    NcclComm *c = b->comm;
    const Meeting *m = meeting(c, b->number);
    for (int r = 0; r < c->n; r++) {
        if (m->n_calls[0] > 0 && is_pair(&m->call[0][0])) {
            if (!pairs_agree(c, m, r, (int)b->number)) return false;
            continue;
        }
        bool alike = m->n_calls[r] == m->n_calls[0];
        for (int i = 0; alike && i < m->n_calls[0]; i++)
            alike = same(&m->call[0][i], &m->call[r][i]);
        if (alike) continue;
        meet_fail(c,
                  "launch %d: rank 0 calls %d (of %d) with %llu elements of type %d, rank %d calls "
                  "%d (of %d) with %llu of type %d: another order?",
                  (int)b->number, m->call[0][0].kind, m->n_calls[0],
                  (unsigned long long)m->call[0][0].count, m->call[0][0].type, r,
                  m->call[r][0].kind, m->n_calls[r], (unsigned long long)m->call[r][0].count,
                  m->call[r][0].type);
        return false;
    }
    return true;
}

static DType dtype_of(int32_t type)
{
    switch (type) {
    case NCCL_F64:
        return F64;
    case NCCL_F32:
        return F32;
    case NCCL_BF16:
        return BF16;
    case NCCL_I32:
        return I32;
    default:
        return I64;
    }
}

/* Folds the inputs of all members, from byte `at` of each. */
static void fold_all(const Batch *b, int i, size_t at)
{
    const NcclComm *c = b->comm;
    const Meeting *m = meeting(c, b->number);
    const void *x[MAX_RANKS];
    void *out = b->to[i];
    for (int r = 0; r < c->n; r++) x[r] = given(c, b->number, r) + m->call[r][i].at + at;
    shadow_fold(&(DeviceFold){.dtype = dtype_of(b->call[i].type),
                              .max = b->call[i].op == NCCL_MAX,
                              .n = c->n,
                              .n_out = 1,
                              .x = x,
                              .out = &out,
                              .count = (int64_t)b->call[i].count});
}

static void take(const Batch *b, int i, int pair)
{
    const NcclComm *c = b->comm;
    const Meeting *m = meeting(c, b->number);
    const NcclCall *k = &b->call[i];
    const size_t bytes = k->count * type_bytes(k->type);
    char *to = shadow_at(b->to[i]);
    switch ((CallKind)k->kind) {
    case ALL_REDUCE:
        fold_all(b, i, 0);
        break;
    case REDUCE_SCATTER:
        fold_all(b, i, bytes * (size_t)c->rank);
        break;
    case REDUCE:
        if (k->root == c->rank) fold_all(b, i, 0);
        break;
    case ALL_GATHER:
        for (int r = 0; r < c->n; r++)
            memcpy(to + (size_t)r * bytes, given(c, b->number, r) + m->call[r][i].at, bytes);
        break;
    case BROADCAST:
        memcpy(to, given(c, b->number, k->root) + m->call[k->root][i].at, bytes);
        break;
    case RECV: {
        const NcclCall *s = pair_call(m, k->root, SEND, c->rank, pair);
        memcpy(to, given(c, b->number, k->root) + s->at, bytes);
        break;
    }
    case SEND:
        break;
    }
}

/* Number of receives from one peer among the calls before `i`. */
static int pair_number(const Batch *b, int i)
{
    int number = 0;
    for (int k = 0; k < i; k++)
        number += b->call[k].kind == RECV && b->call[k].root == b->call[i].root;
    return number;
}

bool meet_try(void *batch)
{
    Batch *b = batch;
    NcclComm *c = b->comm;
    if (atomic_load(&c->aborted)) {
        free(b);
        return true;
    }
    /* A GPU would wait as well, until the communicator is aborted. */
    if (b->never || b->breaks || atomic_load(&c->shared->failed) || atomic_load(&c->error))
        return false;
    if ((!b->published && !publish(b)) || !all_published(b) || !agree(b)) return false;
    for (int i = 0; i < b->n; i++) take(b, i, pair_number(b, i));
    atomic_store(&meeting(c, b->number)->consumed[c->rank], b->number);
    free(b);
    return true;
}

bool meet_try_again(void *batch)
{
    GraphBatch *b = batch;
    if (!b->now) {
        b->now = malloc(sizeof *b->now);
        *b->now = *b->of;
        b->now->number = ++b->of->comm->launched;
    }
    if (!meet_try(b->now)) return false;
    b->now = NULL;
    return true;
}
