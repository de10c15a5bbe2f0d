/* check_gemm.c -- checks GEMM on this machine: every micro-kernel that its CPU has, against ref.
 *
 *     build/release/bench/check_gemm                exit status 0: all results are right
 *
 *     cmake --build --preset release --target static_bench
 *     scp build/release/bench/static_* elsewhere:   static programs: this check, and bench/gemm
 *
 * The tests cover more (tests/unit/test_cpu_gemm*.c). This is one file to copy to a machine with a
 * CPU that the build machine lacks, for example one with AMX. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cpu/microkernels.h"

static uint64_t seed = 12345;

static float random_float(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) / 2147483648.0f;
}

/* A matrix with a gap of three elements after each row; unset elements are NaN. */
static Tensor matrix(DType type, int64_t rows, int64_t columns, bool filled)
{
    Tensor t = {.dtype = type, .ndim = 2, .n = {rows, columns}, .stride = {columns + 3, 1}};
    const size_t bytes = (size_t)(rows * (columns + 3)) * dtype_bytes(type);
    t.data = malloc(bytes);
    MUST(t.data, "no memory for a matrix");
    memset(t.data, 0xff, bytes);
    for (int64_t i = 0; filled && i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            const float x = random_float();
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            if (type == F32)
                ((float *)t.data)[i * t.stride[0] + j] = x;
            else
                ((uint16_t *)t.data)[i * t.stride[0] + j] = (uint16_t)(bits >> 16);
        }
    return t;
}

static double element(const Tensor *t, int64_t i, int64_t j)
{
    const int64_t at = i * t->stride[0] + j;
    if (t->dtype == F32) return (double)((const float *)t->data)[at];
    const uint32_t bits = (uint32_t)((const uint16_t *)t->data)[at] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* The largest difference relative to the largest entry; infinite if one is NaN. */
static double difference(const Tensor *got, const Tensor *want)
{
    double largest = 0, off = 0;
    for (int64_t i = 0; i < want->n[0]; i++)
        for (int64_t j = 0; j < want->n[1]; j++) {
            const double d = fabs(element(got, i, j) - element(want, i, j));
            largest = fmax(largest, fabs(element(want, i, j)));
            off = isnan(d) ? HUGE_VAL : fmax(off, d);
        }
    return off / largest;
}

typedef struct {
    int64_t m, n, k;
    bool ta, tb;
    DType in, out;
    bool prepacked; /* B is prepacked */
} Case;

static Tensor prepack(const Device *d, const Call *call)
{
    const Tensor *b = &call->in[1];
    const bool tb = call->attr.gemm.tb;
    Call c = {.in = {*b}, .n_in = 1, .n_out = 1, .attr = call->attr, .team = call->team};
    c.out[0].data = aligned_alloc(64, d->prepack->bytes(b->dtype, b->n[tb], b->n[!tb]));
    MUST(c.out[0].data && d->prepack->pack(&c) == OK, "prepack");
    return c.out[0];
}

/* True if the device agrees with ref. C starts from random numbers and keeps half of them. */
static bool check(const Device *d, const Case *x, Team *team)
{
    Call call = {.n_in = 2, .n_out = 1, .number = {0.5}, .team = team};
    call.attr.gemm.ta = x->ta;
    call.attr.gemm.tb = x->tb;
    call.in[0] = x->ta ? matrix(x->in, x->k, x->m, true) : matrix(x->in, x->m, x->k, true);
    call.in[1] = x->tb ? matrix(x->in, x->n, x->k, true) : matrix(x->in, x->k, x->n, true);
    const uint64_t start = seed;
    const Tensor got = matrix(x->out, x->m, x->n, true);
    seed = start;
    const Tensor want = matrix(x->out, x->m, x->n, true);
    call.out[0] = want;
    MUST(device_ref.kernel[KERNEL_gemm](&call) == OK, "ref");
    call.out[0] = got;
    const Tensor prepacked = x->prepacked ? prepack(d, &call) : (Tensor){0};
    call.prepacked = prepacked.data;
    MUST(d->kernel[KERNEL_gemm](&call) == OK, "gemm");
    const double off = difference(&got, &want);
    const double bound = ldexp((double)x->k + 16, -24) + (x->out == BF16 ? ldexp(1, -6) : 0);
    if (!(off <= bound))
        printf("  WRONG: %lld x %lld x %lld, ta %d, tb %d, prepacked %d: error %g, limit %g\n",
               (long long)x->m, (long long)x->n, (long long)x->k, x->ta, x->tb, x->prepacked, off,
               bound);
    free(prepacked.data);
    free(call.in[0].data), free(call.in[1].data), free(got.data), free(want.data);
    return off <= bound;
}

static int check_all(const Device *d, DType type, Team *team)
{
    static const int64_t size[][3] = {
        {17, 33, 31}, {64, 64, 64}, {45, 130, 700}, {300, 290, 1601}, {9, 515, 2050}};
    int wrong = 0;
    for (int i = 0; i < (int)(sizeof size / sizeof *size); i++)
        for (int t = 0; t < 16; t++) {
            const Case x = {size[i][0], size[i][1], size[i][2],         t & 1,
                            t & 2,      type,       t & 4 ? type : F32, t & 8};
            wrong += !check(d, &x, team);
        }
    return wrong;
}

int main(void)
{
    const Device *d;
    Team *team;
    MUST(device_cpu_open(NULL, &d) == OK && team_open(&team, 2, NULL) == OK, "%s", err_text());
    printf("%s\n", device_cpu_text((char[CPU_TEXT_BYTES]){0}));
    int wrong = check_all(d, F32, team);
    printf("f32: %s\n", wrong ? "WRONG" : "right");
    for (int u = 0; u < N_CPU_MICROKERNELS; u++) {
        if (!microkernel_available((CpuMicrokernel)u)) {
            printf("bf16 by %s: not available on this machine\n",
                   microkernel_text((CpuMicrokernel)u));
            continue;
        }
        microkernel_use((CpuMicrokernel)u);
        const int of_unit = check_all(d, BF16, team);
        printf("bf16 by %s: %s\n", microkernel_text((CpuMicrokernel)u),
               of_unit ? "WRONG" : "right");
        wrong += of_unit;
    }
    team_close(team);
    return wrong != 0;
}
