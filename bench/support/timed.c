/* timed.c -- times the kernels of another device. */
#define _DEFAULT_SOURCE
#include "support/timed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/clock.h"

enum { MAX_ROWS = 256 };

static struct {
    const Device *inner;
    Peaks peaks;
    TimedBy by;
    double (*seconds)(void); /* the clock */
    TimedRow row[MAX_ROWS];
    int n_rows;
} timed;

static void name_of(KernelId id, const Call *c, char *name, size_t cap_bytes)
{
    if (timed.by == TIMED_KERNELS || !(kernel_is_gemm(id) || work_is_grouped(id))) {
        snprintf(name, cap_bytes, "%s", kernel_name(id));
        return;
    }
    const Tensor *a = &c->in[0], *out = &c->out[0];
    const bool dw = id == KERNEL_grouped_gemm_dw; /* of each expert, from the rows of all */
    const bool ta = dw || c->attr.gemm.ta, tb = !dw && c->attr.gemm.tb;
    snprintf(name, cap_bytes, "%s %lld x %lld x %lld %c%c", kernel_name(id),
             (long long)out->n[dw ? 1 : 0], (long long)a->n[ta ? 0 : 1],
             (long long)out->n[dw ? 2 : 1], "NT"[ta], "NT"[tb]);
}

/* The row of that name. When the table is full, the last row collects all other shapes. */
static TimedRow *row_of(const char *name)
{
    for (int i = 0; i < timed.n_rows; i++)
        if (strcmp(timed.row[i].name, name) == 0) return &timed.row[i];
    if (timed.n_rows == MAX_ROWS) {
        TimedRow *const last = &timed.row[MAX_ROWS - 1];
        snprintf(last->name, sizeof last->name, "others");
        return last;
    }
    TimedRow *const r = &timed.row[timed.n_rows++];
    snprintf(r->name, sizeof r->name, "%s", name);
    return r;
}

static Err timed_run(Kernel kernel, const Call *call, const Work *work, const char *name)
{
    TimedRow *const r = row_of(name);
    const double start = timed.seconds();
    const Err err = kernel(call);
    r->seconds += timed.seconds() - start;
    r->calls++;
    r->flops += work->flops;
    r->bytes += work->bytes;
    r->floor_s += work_floor_s(work, &timed.peaks);
    return err;
}

static Err timed_call(KernelId id, const Call *call)
{
    const Work work = work_of(id, call); /* before the clock starts */
    char name[sizeof timed.row[0].name];
    name_of(id, call, name, sizeof name);
    return timed_run(timed.inner->kernel[id], call, &work, name);
}

static size_t prepacked_bytes(DType type, int64_t k, int64_t n)
{
    return timed.inner->prepack->bytes(type, k, n);
}

static Err timed_prepack(const Call *call)
{
    const double bytes =
        (double)tensor_count(&call->in[0]) * (double)dtype_bytes(call->in[0].dtype);
    const Work work = {.bytes = 2 * bytes, .type = call->in[0].dtype};
    return timed_run(timed.inner->prepack->pack, call, &work, "prepack");
}

static const DevicePrepack timed_prepack_table = {prepacked_bytes, timed_prepack};

#define KERNEL(id)                                                                                 \
    static Err timed_##id(const Call *call) { return timed_call(KERNEL_##id, call); }
#include "device/kernels.def"
#undef KERNEL

const Device timed_device = {
    .name = "cpu",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = timed_##id,
#include "device/kernels.def"
#undef KERNEL
        },
    .prepack = &timed_prepack_table,
};

void timed_open(const Device *inner, const Peaks *peaks, TimedBy by, double (*seconds)(void))
{
    timed.seconds = seconds;
    timed.inner = inner;
    timed.peaks = *peaks;
    timed.by = by;
    timed.n_rows = 0;
    memset(timed.row, 0, sizeof timed.row);
}

static int longer_first(const void *a, const void *b)
{
    const double x = ((const TimedRow *)a)->seconds, y = ((const TimedRow *)b)->seconds;
    return (x < y) - (x > y);
}

const TimedRow *timed_rows(int *n)
{
    qsort(timed.row, (size_t)timed.n_rows, sizeof *timed.row, longer_first);
    *n = timed.n_rows;
    return timed.row;
}
