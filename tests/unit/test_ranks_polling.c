/* test_ranks_polling.c -- hops of a ring finish while attention runs, because the rank polls its
 * comm between the tiles of the kernel.
 *
 *     rank 0   begin kv | attention: tile, tile, ... tile | wait kv
 *     rank 1   begin kv | attention: tile, tile, ... tile | wait kv
 *                                    ^ a barrier of all ranks in each tile
 *
 * The barriers keep all ranks inside their attention instructions, so bytes that arrive there were
 * moved by polls alone. Counts of transfers decide, not times. */
#define _POSIX_C_SOURCE 200809L
#include "support/expect.h"
#include "support/world.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { TILES = 40 };

static pthread_barrier_t barrier;
static _Thread_local const Rank *this_rank;
static atomic_int n_begun, n_finished; /* in flight when attention began; done when it ended */

static void remember(Rank *r) { this_rank = r; }

static int unfinished(int64_t before)
{
    const Recorder *recorder = comm_recorder(this_rank->settings.comm);
    int n = 0;
    for (int64_t i = 0; i < before; i++) {
        const Record *record = recorder_at(recorder, i);
        n += record && record->done_s < 0;
    }
    return n;
}

/* The pause is longer than the shortest time between polls. */
static void meet(void *work, int64_t tile)
{
    (void)work;
    (void)tile;
    pthread_barrier_wait(&barrier);
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static Err watched(int kernel, const Call *call)
{
    const int64_t before = comm_recorder(this_rank->settings.comm)->total;
    const int begun = unfinished(before);
    TRY(device_ref.kernel[kernel](call));
    team_run(call->team, TILES, meet, NULL);
    const int left = unfinished(before);
    pthread_barrier_wait(&barrier); /* a rank that goes on polls again, and others may finish */
    atomic_fetch_add(&n_begun, begun);
    atomic_fetch_add(&n_finished, begun - left);
    return OK;
}

static Err watched_forward(const Call *call) { return watched(KERNEL_attention, call); }
static Err watched_backward(const Call *call) { return watched(KERNEL_attention_dx, call); }

static World ring_of(int ranks)
{
    World w = world_of(test_job_settings("llama", JOB_STEP));
    w.set.dtype = F32;
    w.set.micros = 2;
    w.steps = 2;
    w.set.parallel.mesh.cp = ranks;
    w.set.parallel.context = CONTEXT_RING;
    w.set.parallel.tokens = TOKENS_ZIGZAG;
    return w;
}

/* Every hop is begun before a visit, and ends in it; results are those without polls. */
static void hops_finish_during_attention(void **state)
{
    static const int ranks[] = {2, 3, 4};
    Device device = device_ref;
    (void)state;
    device.kernel[KERNEL_attention] = watched_forward;
    device.kernel[KERNEL_attention_dx] = watched_backward;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        World w = ring_of(ranks[i]);
        WorldResult plain, polled;
        char what[128];
        DO(world_run_job(&w, &plain));
        w.device = &device;
        w.threads = 1;
        w.opened = remember;
        n_begun = n_finished = 0;
        pthread_barrier_init(&barrier, NULL, (unsigned)ranks[i]);
        DO(world_run_job(&w, &polled));
        pthread_barrier_destroy(&barrier);
        assert_true(n_begun >= ranks[i] * w.steps * w.set.micros * (ranks[i] - 1));
        if (n_finished != n_begun)
            fail_msg("%d ranks: %d of %d hops finished during attention", ranks[i], n_finished,
                     n_begun);
        if (!world_equal(&plain, &polled, what)) fail_msg("%d ranks: %s", ranks[i], what);
        world_result_close(&plain);
        world_result_close(&polled);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hops_finish_during_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
