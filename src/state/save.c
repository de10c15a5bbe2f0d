/* save.c -- the writer thread and its requests.
 *
 *     the rank's thread                       the writer
 *     saver_begin    IDLE -> WRITING  ----->  writes, syncs         WRITING -> WRITTEN, FAILED
 *     saver_commit   -> COMMITTING    ----->  commits, on rank 0    COMMITTING -> COMMITTED, FAILED
 *     saver_end      -> IDLE
 *
 * One lock protects SaverShared. The snapshot and the scalars belong to the writer while it writes
 * or commits, else to the rank. */
#define _DEFAULT_SOURCE
#include "state/save.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "state/save_file.h"

/* Accessed by both threads, under the lock. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    SaverState state;
    bool ready; /* the writer has touched the snapshot's pages */
    bool ends;
    int64_t written;
    char text[1024];
} SaverShared;

struct Saver {
    SaverSettings set;
    SaveParts parts;
    StateScalars scalars;
    double blocked_s;
    Arena temp; /* strings of the scalars, then temporary memory of the writer */
    size_t mark;
    SaverShared *shared;
    pthread_t thread;
};

/* A rank that owns less than a buffer needs only that much. */
static int64_t memory_bytes(const SaveParts *p, SaveMemory memory)
{
    const int64_t all = p->at[p->parts.n];
    if (memory == SAVE_MEMORY_NONE) return 0;
    return memory == SAVE_MEMORY_SNAPSHOT || all < SAVE_BUFFER_BYTES ? all : SAVE_BUFFER_BYTES;
}

Err saver_bytes(const LinkedProgram *lp, int rank, SaveMemory memory, Arena *temp, int64_t *out)
{
    SaveParts p;
    const size_t mark = arena_mark(temp);
    TRY(save_parts_open(&p, lp, rank, temp));
    *out = memory_bytes(&p, memory);
    arena_rewind(temp, mark);
    return OK;
}

static void set_state(SaverShared *h, SaverState state)
{
    pthread_mutex_lock(&h->lock);
    h->state = state;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static Err write_once(Saver *s)
{
    const SaveFile f = {.rank = s->set.rank,
                        .checkpoints = s->set.checkpoints,
                        .step = s->scalars.step,
                        .hook = &s->set.hook,
                        .temp = &s->temp};
    int64_t written;
    save_point(&f, SAVE_SNAPSHOT);
    TRY(save_file_write(&s->parts, &f, &written));
    pthread_mutex_lock(&s->shared->lock);
    s->shared->written = written;
    pthread_mutex_unlock(&s->shared->lock);
    return OK;
}

static Err commit_once(Saver *s)
{
    const CommitSettings set = {.checkpoints = s->set.checkpoints,
                                .ranks = s->set.ranks,
                                .keep = s->set.keep,
                                .tensors = &s->parts.tensors,
                                .scalars = &s->scalars,
                                .hook = &s->set.hook,
                                .run_dir = s->set.run_dir,
                                .run_logs = s->set.run_logs};
    return folder_commit(&set, &s->temp);
}

static void work(Saver *s, SaverState request)
{
    arena_rewind(&s->temp, s->mark);
    const Err err = request == SAVER_WRITING ? write_once(s) : commit_once(s);
    if (err != OK) { /* read only after the state is SAVER_FAILED */
        pthread_mutex_lock(&s->shared->lock);
        snprintf(s->shared->text, sizeof s->shared->text, "%s", err_text());
        pthread_mutex_unlock(&s->shared->lock);
    }
    const SaverState done = request == SAVER_WRITING ? SAVER_WRITTEN : SAVER_COMMITTED;
    set_state(s->shared, err == OK ? done : SAVER_FAILED);
}

/* Waits for a request; IDLE: the thread must end. */
static SaverState next_request(SaverShared *h)
{
    pthread_mutex_lock(&h->lock);
    while (h->state != SAVER_WRITING && h->state != SAVER_COMMITTING && !h->ends)
        pthread_cond_wait(&h->changed, &h->lock);
    const bool request = h->state == SAVER_WRITING || h->state == SAVER_COMMITTING;
    const SaverState state = request ? h->state : SAVER_IDLE;
    pthread_mutex_unlock(&h->lock);
    return state;
}

/* Touches the snapshot's pages first, so that the kernel allocates them now and not while a
 * step waits. */
static void *writer_main(void *saver)
{
    Saver *s = saver;
    if (s->parts.snapshot) memset(s->parts.snapshot, 0, (size_t)s->parts.at[s->parts.parts.n]);
    pthread_mutex_lock(&s->shared->lock);
    s->shared->ready = true;
    pthread_cond_broadcast(&s->shared->changed);
    pthread_mutex_unlock(&s->shared->lock);
    for (SaverState request; (request = next_request(s->shared)) != SAVER_IDLE;) work(s, request);
    return NULL;
}

/* Starts the writer with all signals blocked: they are for the existing threads. */
static Err start(Saver *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&s->thread, NULL, writer_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0) return OK;
    return err_fail(ERR_NOMEM,
                    "no thread to write checkpoints with: %s; raise the limit (ulimit -u)",
                    strerror(code));
}

static Err open_memory(Saver *s, Arena *a)
{
    void *data;
    const LinkedProgram *lp = s->set.rank->settings.program;
    TRY(save_parts_open(&s->parts, lp, lp->rank, a));
    TRY(arena_push(a, (size_t)memory_bytes(&s->parts, s->set.memory), &data));
    if (s->set.memory == SAVE_MEMORY_SNAPSHOT)
        s->parts.snapshot = data;
    else
        s->parts.buffer = data;
    return ARENA_NEW(a, 1, &s->shared);
}

Err saver_open(const SaverSettings *set, Arena *a, Saver **out)
{
    Saver *s;
    TRY(ARENA_NEW(a, 1, &s));
    s->set = *set;
    TRY(arena_string(a, set->checkpoints, &s->set.checkpoints));
    TRY(open_memory(s, a));
    TRY(arena_open(&s->temp, "checkpoint writer", ARENA_PLENTY));
    pthread_mutex_init(&s->shared->lock, NULL);
    pthread_cond_init(&s->shared->changed, NULL);
    const Err err = start(s);
    if (err != OK) {
        arena_close(&s->temp);
        return err;
    }
    *out = s;
    return OK;
}

void saver_close(Saver *s)
{
    pthread_mutex_lock(&s->shared->lock);
    s->shared->ends = true;
    pthread_cond_broadcast(&s->shared->changed);
    pthread_mutex_unlock(&s->shared->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->shared->changed);
    pthread_mutex_destroy(&s->shared->lock);
    arena_close(&s->temp);
}

/* Copies the scalars and their strings. */
static Err copy_scalars(Saver *s, const StateScalars *from)
{
    s->scalars = *from;
    const char **text[] = {&s->scalars.optim,   &s->scalars.dtype,  &s->scalars.device,
                           &s->scalars.kernels, &s->scalars.config, &s->scalars.model};
    arena_rewind(&s->temp, 0);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        TRY(arena_string(&s->temp, *text[i], text[i]));
    s->mark = arena_mark(&s->temp);
    return OK;
}

Err saver_begin(Saver *s, const StateScalars *scalars)
{
    const double begin_s = now_s();
    pthread_mutex_lock(&s->shared->lock);
    while (!s->shared->ready) pthread_cond_wait(&s->shared->changed, &s->shared->lock);
    const SaverState state = s->shared->state;
    pthread_mutex_unlock(&s->shared->lock);
    MUST(state == SAVER_IDLE, "a save begins in state %d", (int)state);
    TRY(copy_scalars(s, scalars));
    if (s->parts.snapshot) TRY(save_parts_copy(&s->parts, s->set.rank));
    set_state(s->shared, SAVER_WRITING);
    s->blocked_s = now_s() - begin_s;
    return OK;
}

SaverState saver_poll(const Saver *s)
{
    pthread_mutex_lock(&s->shared->lock);
    const SaverState state = s->shared->state;
    pthread_mutex_unlock(&s->shared->lock);
    return state;
}

void saver_commit(Saver *s)
{
    MUST(saver_poll(s) == SAVER_WRITTEN, "a commit of what is not written");
    set_state(s->shared, SAVER_COMMITTING);
}

Err saver_end(Saver *s, bool failed)
{
    const SaverState state = saver_poll(s);
    MUST(state == SAVER_COMMITTED || state == SAVER_WRITTEN || state == SAVER_FAILED,
         "a save ends in state %d", (int)state);
    set_state(s->shared, SAVER_IDLE);
    if (!failed || s->set.rank->settings.program->rank != 0) return OK;
    return folder_abandon(s->set.checkpoints, s->scalars.step);
}

const char *saver_error(const Saver *s) { return s->shared->text; }

int64_t saver_written(const Saver *s)
{
    pthread_mutex_lock(&s->shared->lock);
    const int64_t written = s->shared->written;
    pthread_mutex_unlock(&s->shared->lock);
    return written;
}

double saver_blocked_s(const Saver *s) { return s->blocked_s; }
