/* random_fill.c -- random numbers in the work arena of a device, as operands for autotuning.
 *
 * A GPU multiplies zeros faster than random numbers, because they draw less power; the fastest
 * algorithm for zeros need not be the fastest for weights. */
#include <string.h>

#include "base/philox.h"
#include "run/rank_parts.h"

enum { RANDOM_COUNT = 1 << 20 }; /* numbers drawn; copies of them fill the rest */

static void put_number(void *at, DType dtype, int64_t i, double x)
{
    const float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (dtype == BF16)
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    else
        ((uint32_t *)at)[i] = bits;
}

static size_t first_bytes(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const size_t bytes = RANDOM_COUNT * dtype_bytes(lp->model->dtype);
    return bytes < lp->bytes[ARENA_WORK] ? bytes : lp->bytes[ARENA_WORK];
}

/* Copies them over the whole arena, doubling the filled part each time. */
Err random_fill_spread(Rank *r)
{
    const size_t bytes = r->settings.program->bytes[ARENA_WORK];
    char *work = r->base[ARENA_WORK];
    size_t done = first_bytes(r);
    TRY(rank_write(r, work, done, r->staging));
    for (size_t more; done < bytes; done += more) {
        more = bytes - done < done ? bytes - done : done;
        TRY(r->runtime->copy(r->queue, work + done, work, more));
    }
    return OK;
}

Err random_fill_make(Rank *r)
{
    const DType dtype = r->settings.program->model->dtype;
    const Random random = random_named(1, "random fill");
    void *staging;
    TRY(memory_staging(r, &staging));
    MUST(RANDOM_COUNT * dtype_bytes(dtype) <= STAGING_BYTES, "the staging buffer is too small");
    for (int64_t i = 0; i < RANDOM_COUNT; i += 64) {
        uint64_t index[64];
        double x[64];
        for (int k = 0; k < 64; k++) index[k] = (uint64_t)(i + k);
        random_normals(&random, index, 64, x);
        for (int k = 0; k < 64; k++) put_number(staging, dtype, i + k, x[k]);
    }
    return random_fill_spread(r);
}
