/* test_measure_overlap.c -- factors of work beside a transfer: GEMMs that sleep, on an emulated
 * network whose transfers take their time whatever the ranks do. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <time.h>

#include "comm_test.h"
#include "plan/measure/parts.h"

enum { GEMM_MS = 40, TRANSFER_MS = 120 }; /* far above the delays of a loaded machine */

static Device sleepy;
static _Thread_local const Comm *comm; /* of this rank */

/* Twice as long while a transfer is in flight. */
static Err sleepy_gemm(const Call *call)
{
    const int times = comm_idle(comm) == OK ? 1 : 2;
    (void)call;
    nanosleep(&(struct timespec){0, times * GEMM_MS * 1000000}, NULL);
    return OK;
}

static Err measure_body(TestRank *r)
{
    static int32_t all[] = {0, 1};
    static _Thread_local double seconds[MAX_REPEATS], cell;
    static _Thread_local float moved[512];
    static _Thread_local Measurement out;
    Arena arena;
    TRY(arena_open(&arena, "operands", 1 << 26));
    WorldRank rank = {.rank = r->rank, .ranks = r->ranks, .comm = r->comm, .arena = &arena};
    const MeasureSettings set = {.device = &sleepy};
    Measurer m = {.s = &set, .r = &rank, .out = &out, .seconds = seconds, .cell = &cell};
    m.all = all;
    m.operands = &arena;
    comm = r->comm;
    out = (Measurement){0};
    TRY(comm_register(r->comm, ARENA_NUMBERS, &cell, sizeof cell));
    m.link_bytes = sizeof moved / 2;
    TRY(comm_register(r->comm, ARENA_LOOP, moved, sizeof moved));
    TRY(measure_overlap(&m));
    EXPECT(r, out.n == 2);
    EXPECT(r, fabs(out.slow_work / 2 - 1) < 0.3);
    EXPECT(r, out.slow_transfer >= 1 && out.slow_transfer < 1.5);
    arena_close(&arena);
    return OK;
}

static void factors_of_sleeping_work(void **state)
{
    (void)state;
    sleepy.kernel[KERNEL_gemm] = sleepy_gemm;
    ranks_run(&(TestWorld){.ranks = 2, .body = measure_body, .delay_s = 1e-3 * TRANSFER_MS});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(factors_of_sleeping_work)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
