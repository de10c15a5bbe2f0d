/* nccl_test.h -- ranks on devices with NCCL as device transport: on the shadow device with the
 * stand-in, as threads, or with SHEAF_TEST_MPI as processes; on a GPU with NCCL itself.
 *
 *     test_NAME                              the shadow device and the stand-in
 *     test_NAME SHEAF-CUDA.SO [LIBNCCL]      a GPU; exit status 77: there is none
 *
 * Ranks share the GPU if NCCL is 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1 is set; else one
 * rank runs, and a line says so.
 *
 * comm_test.h has the ranks; a rank's memory on its device is arena 1. */
#ifndef TESTS_NCCL_NCCL_TEST_H
#define TESTS_NCCL_NCCL_TEST_H

#include <dlfcn.h>
#include <unistd.h>

#include "base/fp8.h"
#include "comm/nccl.h"
#include "comm_test.h"
#include "device/registry.h"
#include "nccl/standin.h"
#include "support/shadow.h"

enum { DEVICE_ARENA = 1, FIRST_RANKS = 4, MOST_RANKS = 8 };

static struct {
    const Device *device;
    NcclLibrary nccl;
    int ranks; /* of tests that run on any number */
    bool many; /* 8 ranks too */
    bool on_shadow;
    StandinSetFault *fault;
    StandinTakeCount *count;
    StandinSetVersion *version;
} setup;

/* The device side of one rank. */
typedef struct {
    TestRank *r;
    const DeviceRuntime *m;
    DeviceContext *context;
    DeviceQueue *queue;
    char *device; /* TEST_BYTES on the device */
    char *host;   /* TEST_BYTES, to copy from and to */
} Side;

/* On a GPU: several ranks if they may share it. */
static inline void share_gpu(void)
{
    const char *on = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    setup.many = nccl_shares_gpus(setup.nccl.version) && on && strcmp(on, "1") == 0;
    setup.ranks = setup.many ? FIRST_RANKS : 1;
    if (!setup.many)
        printf("SKIPPED: several ranks: they share a GPU with NCCL 2.30 or newer and "
               "NCCL_MULTI_RANK_GPU_ENABLE=1\n");
}

static inline int graph_test_open(int argc, char **argv)
{
    const char *library = argc > 1 ? argc > 2 ? argv[2] : NULL : STANDIN_OBJECT;
    setup.on_shadow = argc <= 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    setup.device = &device_shadow;
    setup.ranks = setup.on_shadow ? FIRST_RANKS : 1;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    if (!setup.on_shadow && device_open("cuda", argv[1], &setup.device) != OK) {
        printf("SKIPPED: NCCL on a GPU: %s\n", err_text());
        return 77;
    }
    /* Next to the test, on a machine other than the one that built it. */
    const char *object = access(SHEAF_NCCL_OBJECT, R_OK) == 0 ? SHEAF_NCCL_OBJECT : NULL;
    if (nccl_open(object, library, &setup.nccl) != OK) {
        printf("%s: %s\n", setup.on_shadow ? "FAILED" : "SKIPPED", err_text());
        return setup.on_shadow ? 1 : 77;
    }
    char words[NCCL_VERSION_BYTES];
    printf("%s on device %s\n", nccl_version_text(setup.nccl.version, words), setup.device->name);
    if (!setup.on_shadow) share_gpu();
    if (setup.on_shadow) setenv("SHEAF_NCCL_THREADS", "1", 1); /* it has two devices */
    if (!setup.on_shadow) return 0;
    void *standin = dlopen(STANDIN_OBJECT, RTLD_NOW | RTLD_NOLOAD);
    *(void **)(void *)&setup.fault = dlsym(standin, "standin_fault");
    *(void **)(void *)&setup.count = dlsym(standin, "standin_count");
    *(void **)(void *)&setup.version = dlsym(standin, "standin_version");
    shadow_set(7, SHADOW_COIN);
    shadow_run_async(true);
    return 0;
}

static inline Err side_open(TestRank *r, Side *s)
{
    void *device;
    *s = (Side){.r = r, .m = setup.device->runtime};
    TRY(nccl_attach(&setup.nccl, r->comm));
    TRY(s->m->open(r->rank % s->m->count(), &s->context));
    s->queue = s->m->queue(s->context, QUEUE_COMPUTE);
    TRY(s->m->alloc(s->context, TEST_BYTES, &device));
    s->device = device;
    s->host = malloc(TEST_BYTES);
    return comm_register_device(r->comm, DEVICE_ARENA, device, TEST_BYTES,
                                (CommDevice){s->m, s->context});
}

static inline void side_close(Side *s)
{
    comm_release_device(s->r->comm);
    if (s->device) s->m->free(s->context, s->device);
    if (s->context) s->m->close(s->context);
    free(s->host);
}

static inline Err side_sync(const Side *s)
{
    return comm_sync(s->r->comm, (CommDevice){s->m, s->context}, s->queue);
}

/* Copies to the device, and back. After side_put the host's copy belongs to the queue; side_get
 * waits for it. */
static inline Err side_put(const Side *s)
{
    return s->m->copy(s->queue, s->device, s->host, TEST_BYTES);
}

static inline Err side_get(const Side *s)
{
    TRY(s->m->copy(s->queue, s->host, s->device, TEST_BYTES));
    return side_sync(s);
}

static inline Ref side_ref(const Side *s, size_t offset, int64_t count, DType dtype)
{
    return (Ref){s->r->rank, DEVICE_ARENA, offset, count, dtype};
}

/* The body of a rank with a device side: `arg` of its world points to a SideBody. A rank that fails
 * aborts the comm before it frees its memory. */
typedef Err SideBody(Side *s);

static inline Err with_side(TestRank *r)
{
    Side s;
    char text[2048];
    Err err = side_open(r, &s);
    if (err == OK) err = (*(SideBody *const *)r->of->arg)(&s);
    snprintf(text, sizeof text, "%s", err_text());
    if (err != OK) comm_abort(r->comm, err, text);
    side_close(&s);
    return err == OK ? OK : err_fail(err, "%s", text);
}

static inline double element_get(const char *at, DType t, int64_t i)
{
    uint32_t bits;
    float x;
    switch (t) {
    case F64:
        return ((const double *)(const void *)at)[i];
    case F32:
        return (double)((const float *)(const void *)at)[i];
    case BF16:
        bits = (uint32_t)((const uint16_t *)(const void *)at)[i] << 16;
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    case E4M3:
    case E5M2:
        return (double)fp8_get(t, ((const uint8_t *)at)[i]);
    case I32:
        return (double)((const int32_t *)(const void *)at)[i];
    default:
        return (double)((const int64_t *)(const void *)at)[i];
    }
}

/* For numbers that every type represents exactly. */
static inline void element_set(char *at, DType t, int64_t i, double value)
{
    uint32_t bits;
    const float x = (float)value;
    memcpy(&bits, &x, sizeof bits);
    if (t == F64) ((double *)(void *)at)[i] = value;
    if (t == F32) ((float *)(void *)at)[i] = x;
    if (t == BF16) ((uint16_t *)(void *)at)[i] = (uint16_t)(bits >> 16);
    if (dtype_is_fp8(t)) ((uint8_t *)at)[i] = fp8_of(t, x);
    if (t == I32) ((int32_t *)(void *)at)[i] = (int32_t)value;
    if (t == I64) ((int64_t *)(void *)at)[i] = (int64_t)value;
}

/* -4 to 4: sums of sixteen are exact in every type, in any order. */
static inline double element(int rank, int64_t i, int salt)
{
    return (double)(test_mix((uint64_t)rank << 40 ^ (uint64_t)salt << 32 ^ (uint64_t)i) % 9) - 4;
}

#endif
