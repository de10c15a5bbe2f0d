/* standin.c -- the functions of NCCL, and the counters of the stand-in. */
#define _GNU_SOURCE
#include "nccl/standin_parts.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* State shared by threads, under the lock. */
static struct {
    pthread_mutex_t lock;
    NcclComm *comms;
    StandinCount count;
    int ids, version;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .version = 22809};

/* State of this thread: the open group, and the planted fault. */
static _Thread_local struct {
    int depth;
    Batch *batch;
    bool bad;
    StandinFault fault;
} mine;

EXPORT StandinSetFault standin_fault;
EXPORT StandinTakeCount standin_count;
EXPORT StandinSetVersion standin_version;

void standin_fault(StandinFault fault) { mine.fault = fault; }

void standin_version(int version) { all.version = version; }

StandinCount standin_count(void)
{
    pthread_mutex_lock(&all.lock);
    const StandinCount count = all.count;
    all.count = (StandinCount){.open = count.open};
    pthread_mutex_unlock(&all.lock);
    return count;
}

__attribute__((format(printf, 2, 3))) static NcclResult misuse(NcclComm *c, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&all.lock);
    if (all.count.misuses++ == 0) memcpy(all.count.misuse, text, sizeof text);
    pthread_mutex_unlock(&all.lock);
    if (c) snprintf(c->text, sizeof c->text, "%s", text);
    mine.bad = true;
    return NCCL_INVALID_USAGE;
}

static void count(int64_t *what, int64_t by)
{
    pthread_mutex_lock(&all.lock);
    *what += by;
    pthread_mutex_unlock(&all.lock);
}

#define CALL(what, arguments) EXPORT NcclResult nccl##what arguments;
NCCL_CALLS(CALL)
#undef CALL
EXPORT const char *ncclGetErrorString(NcclResult result);
EXPORT const char *ncclGetLastError(NcclComm *comm);

NcclResult ncclGetVersion(int *version)
{
    *version = all.version;
    return NCCL_OK;
}

NcclResult ncclGetUniqueId(NcclId *id)
{
    pthread_mutex_lock(&all.lock);
    snprintf(id->bytes, sizeof id->bytes, "/sheaf-standin-%d-%d", (int)getpid(), all.ids++);
    pthread_mutex_unlock(&all.lock);
    return NCCL_OK;
}

NcclResult ncclCommInitRankConfig(NcclComm **comm, int n, NcclId id, int rank, NcclConfig *config)
{
    NcclComm *c = calloc(1, sizeof *c);
    *comm = c;
    c->n = n;
    c->rank = rank;
    c->polls = 3;
    snprintf(c->name, sizeof c->name, "%.60s", id.bytes);
    const bool shared = config->version == NCCL_CONFIG_SHARED;
    if (config->size != (shared ? sizeof *config : NCCL_CONFIG_BYTES) ||
        config->magic != NCCL_CONFIG_MAGIC || config->blocking)
        return misuse(c, "a configuration that is none, or one that blocks");
    if (n < 1 || n > MAX_RANKS || rank < 0 || rank >= n) return misuse(c, "rank %d of %d", rank, n);
    pthread_mutex_lock(&all.lock);
    c->next = all.comms;
    all.comms = c;
    all.count.opened++;
    all.count.open++;
    pthread_mutex_unlock(&all.lock);
    if (mine.fault.what == FAULT_OPEN) atomic_store(&c->error, NCCL_REMOTE_ERROR);
    return meet_open(c) ? NCCL_IN_PROGRESS : misuse(c, "no shared memory for %s", c->name);
}

/* NCCL waits for graphs that contain launches of a communicator before it frees that. */
static void check_graphs(NcclComm *c)
{
    if (c->graphs > 0) misuse(c, "it ends while a graph has %d launches of it", (int)c->graphs);
}

static void end(NcclComm *c)
{
    check_graphs(c);
    c->ended = true;
    atomic_store(&c->aborted, true); /* batches in queues do nothing from now on */
    free(c->waiting);
    c->waiting = NULL;
    count(&all.count.open, -1);
}

NcclResult ncclCommFinalize(NcclComm *comm)
{
    if (comm->ended || comm->waiting) return misuse(comm, "finalize, with a launch in progress");
    comm->polls = 2;
    return NCCL_IN_PROGRESS;
}

NcclResult ncclCommDestroy(NcclComm *comm)
{
    if (comm->ended) return misuse(comm, "destroyed twice");
    end(comm);
    meet_close(comm); /* finalized: no batch of it is in a queue */
    return NCCL_OK;
}

/* The file stays mapped: batches in queues read `aborted` from it. */
NcclResult ncclCommAbort(NcclComm *comm)
{
    if (comm->ended) return misuse(comm, "aborted twice");
    end(comm);
    count(&all.count.aborted, 1);
    return NCCL_OK;
}

/* A launch may still be in a queue: the batch stays in the list of its communicator. */
static void drop(void *batch) { count(&((GraphBatch *)batch)->of->comm->graphs, -1); }

static void put_in_graph(Batch *b)
{
    GraphBatch *g = calloc(1, sizeof *g);
    g->of = b;
    g->next = b->comm->batches;
    b->comm->batches = g;
    count(&b->comm->graphs, 1);
    shadow_put_captured(b->queue, meet_try_again, drop, g);
}

static void enqueue(NcclComm *c)
{
    Batch *b = c->waiting;
    const bool breaks = b->breaks;
    c->waiting = NULL;
    if (b->number > 0)
        shadow_put(b->queue, meet_try, b);
    else
        put_in_graph(b);
    if (!breaks) return;
    snprintf(c->text, sizeof c->text, "a cable was pulled");
    atomic_store(&c->error, NCCL_REMOTE_ERROR);
}

NcclResult ncclCommGetAsyncError(NcclComm *comm, NcclResult *out)
{
    NcclComm *c = comm;
    if (c->ended) return misuse(c, "used after its end");
    const int failed = atomic_load(&c->shared->failed), own = atomic_load(&c->error);
    *out = NCCL_OK;
    if (failed == 2)
        *out = NCCL_INVALID_USAGE;
    else if (own)
        *out = (NcclResult)own;
    else if (c->polls > 0 && c->polls--)
        *out = NCCL_IN_PROGRESS;
    else if (!c->in && !(c->in = meet_all_in(c)))
        *out = NCCL_IN_PROGRESS;
    else if (c->waiting)
        enqueue(c);
    return NCCL_OK;
}

NcclResult ncclGroupStart(void)
{
    if (mine.depth++ == 0) mine.bad = false;
    return NCCL_OK;
}

/* True if this launch is the one with the planted fault. */
static StandinWhat fault_now(void)
{
    if (mine.fault.what == FAULT_NONE || mine.fault.what == FAULT_OPEN) return FAULT_NONE;
    if (mine.fault.after-- > 0) return FAULT_NONE;
    const StandinWhat what = mine.fault.what;
    mine.fault.what = FAULT_NONE;
    return what;
}

static NcclResult start(Batch *b)
{
    NcclComm *c = b->comm;
    const StandinWhat fault = fault_now();
    if (fault == FAULT_CALL) {
        free(b);
        snprintf(c->text, sizeof c->text, "planted by the test");
        return NCCL_REMOTE_ERROR;
    }
    b->never = fault == FAULT_NEVER;
    b->breaks = fault == FAULT_ASYNC;
    b->number = shadow_captures(b->queue) ? 0 : ++c->launched;
    c->waiting = b;
    c->polls = b->number == 1 ? 3 : (int)(b->number * 7 % 3);
    pthread_mutex_lock(&all.lock);
    all.count.launches++;
    all.count.grouped += b->n > 1;
    all.count.in_progress += c->polls > 0;
    pthread_mutex_unlock(&all.lock);
    if (c->polls > 0) return NCCL_IN_PROGRESS;
    enqueue(c);
    return NCCL_OK;
}

NcclResult ncclGroupEnd(void)
{
    if (mine.depth == 0) return misuse(NULL, "a group ends that was not begun");
    if (--mine.depth > 0) return NCCL_OK;
    Batch *b = mine.batch;
    mine.batch = NULL;
    if (!mine.bad) return b ? start(b) : NCCL_OK;
    free(b);
    return NCCL_INVALID_USAGE;
}

/* Checks that the elements that a call reads and writes on this member are in memory of its
 * device. */
static NcclResult check(const Batch *b, const NcclCall *k, const void *from, const void *to)
{
    NcclComm *c = b->comm;
    const size_t bytes = k->count * type_bytes(k->type), many = (size_t)c->n;
    const bool reads = k->kind != RECV && !(k->kind == BROADCAST && k->root != c->rank);
    const bool writes = k->kind != SEND && !(k->kind == REDUCE && k->root != c->rank);
    const bool floats = k->type == NCCL_F32 || k->type == NCCL_F64 || k->type == NCCL_BF16;
    if (k->op == NCCL_MAX && floats) return misuse(c, "a maximum of floats passes over NaNs");
    if (k->root < 0 || k->root >= c->n) return misuse(c, "rank %d of %d", k->root, c->n);
    if (k->count == 0) return misuse(c, "a call with no elements");
    if (reads && !shadow_owns(b->queue, from, bytes * (k->kind == REDUCE_SCATTER ? many : 1)))
        return misuse(c, "call %d of rank %d reads memory that is not of its device", k->kind,
                      c->rank);
    if (writes && !shadow_owns(b->queue, to, bytes * (k->kind == ALL_GATHER ? many : 1)))
        return misuse(c, "call %d of rank %d writes memory that is not of its device", k->kind,
                      c->rank);
    return NCCL_OK;
}

static NcclResult add(NcclComm *c, NcclCall k, const void *from, void *to, void *stream)
{
    if (c->ended || atomic_load(&c->aborted)) return misuse(c, "a launch after the end");
    if (c->waiting || c->polls > 0 || !c->in) return misuse(c, "a launch while one is in progress");
    (void)ncclGroupStart();
    if (!mine.batch) {
        mine.batch = calloc(1, sizeof *mine.batch);
        *mine.batch = (Batch){.comm = c, .queue = stream};
    }
    Batch *b = mine.batch;
    NcclResult result = check(b, &k, from, to);
    if (b->comm != c || b->queue != stream) result = misuse(c, "a group over two communicators");
    if (b->n == MAX_CALLS) result = misuse(c, "more than %d calls in a group", MAX_CALLS);
    if (result == NCCL_OK) {
        b->from[b->n] = from;
        b->to[b->n] = to;
        b->call[b->n++] = k;
    }
    const NcclResult ended = ncclGroupEnd();
    return result != NCCL_OK ? result : ended;
}

NcclResult ncclAllReduce(const void *from, void *to, size_t n, NcclType type, NcclOp op,
                         NcclComm *comm, void *stream)
{
    return add(comm, (NcclCall){ALL_REDUCE, (int)type, (int)op, 0, n, 0}, from, to, stream);
}

NcclResult ncclAllGather(const void *from, void *to, size_t n, NcclType type, NcclComm *comm,
                         void *stream)
{
    return add(comm, (NcclCall){ALL_GATHER, (int)type, 0, 0, n, 0}, from, to, stream);
}

NcclResult ncclReduceScatter(const void *from, void *to, size_t n, NcclType type, NcclOp op,
                             NcclComm *comm, void *stream)
{
    return add(comm, (NcclCall){REDUCE_SCATTER, (int)type, (int)op, 0, n, 0}, from, to, stream);
}

NcclResult ncclBroadcast(const void *from, void *to, size_t n, NcclType type, int root,
                         NcclComm *comm, void *stream)
{
    return add(comm, (NcclCall){BROADCAST, (int)type, 0, root, n, 0}, from, to, stream);
}

NcclResult ncclReduce(const void *from, void *to, size_t n, NcclType type, NcclOp op, int root,
                      NcclComm *comm, void *stream)
{
    return add(comm, (NcclCall){REDUCE, (int)type, (int)op, root, n, 0}, from, to, stream);
}

NcclResult ncclSend(const void *from, size_t n, NcclType type, int peer, NcclComm *comm,
                    void *stream)
{
    return add(comm, (NcclCall){SEND, (int)type, 0, peer, n, 0}, from, NULL, stream);
}

NcclResult ncclRecv(void *to, size_t n, NcclType type, int peer, NcclComm *comm, void *stream)
{
    return add(comm, (NcclCall){RECV, (int)type, 0, peer, n, 0}, NULL, to, stream);
}

const char *ncclGetErrorString(NcclResult result)
{
    return result == NCCL_REMOTE_ERROR    ? "remote process exited or there was a network error"
           : result == NCCL_INVALID_USAGE ? "invalid usage"
                                          : "no error";
}

const char *ncclGetLastError(NcclComm *comm)
{
    if (!comm) return "";
    return comm->shared && atomic_load(&comm->shared->failed) == 2 ? comm->shared->text
                                                                   : comm->text;
}
