/* The choice of the device transport by all ranks: requests, available libraries, and the printed
 * line. Ranks are threads that pretend to be processes. */
#define _GNU_SOURCE
#include "support/expect.h"

#include "nccl/nccl_test.h"
#include "world/transport.h"

typedef struct {
    TransportSettings set;
    Err want;
    const char *want_text; /* part of the printed line or of the error */
    const char *transport; /* the resulting transport */
} Choice;

static char faults[8][512];

static Err choose(WorldRank *r, void *work)
{
    const Choice *k = work;
    char line[TRANSPORT_BYTES], *fault = faults[r->rank];
    const Err err = transport_open(r, &k->set, line);
    const char *text = err == OK ? line : err_text();
    if (err != k->want || !strstr(text, k->want_text) || (k->want_text[0] == '\0' && text[0]))
        snprintf(fault, 512, "rank %d: error %d: %.400s", r->rank, (int)err, text);
    else if (err == OK && strcmp(comm_transport_name(r->comm), k->transport) != 0)
        snprintf(fault, 512, "rank %d: %s moves", r->rank, comm_transport_name(r->comm));
    return OK;
}

static void expect(int ranks, const char *want_text, Err want, TransportSettings set,
                   const char *transport)
{
    Choice k = {set, want, want_text, transport};
    k.set.object = SHEAF_NCCL_OBJECT;
    if (!k.set.library) k.set.library = STANDIN_OBJECT;
    memset(faults, 0, sizeof faults);
    DO(world_run(&(WorldSettings){.ranks = ranks,
                                  .in_flight = 8,
                                  .records = 8,
                                  .timeout_s = 20,
                                  .body = choose,
                                  .work = &k}));
    for (int i = 0; i < ranks; i++)
        if (faults[i][0]) fail_msg("%s: %s", want_text, faults[i]);
}

/* The shadow device as a machine with one GPU. */
static Err one_card(int ordinal, uint64_t *out)
{
    (void)ordinal;
    *out = 77;
    return OK;
}

static void nccl_if_possible(void **state)
{
    (void)state;
    TransportSettings set = {.device = &device_shadow, .processes = true};
    expect(3, "device memory between ranks: NCCL 2.28.9", OK, set, "nccl");
    set.requested = TRANSPORT_NCCL;
    expect(2, "device memory between ranks: NCCL 2.28.9", OK, set, "nccl");
    set.processes = false;
    expect(1, "device memory between ranks: NCCL 2.28.9", OK, set, "nccl");
}

static void two_ranks_on_one_gpu(void **state)
{
    (void)state;
    DeviceRuntime memory = *device_shadow.runtime;
    Device device = device_shadow;
    memory.identify = one_card;
    device.runtime = &memory;
    TransportSettings set = {.device = &device, .processes = true};
    expect(
        2,
        "MPI, staged through host memory: ranks 0 and 1 are on one GPU, which NCCL 2.28.9 refuses",
        OK, set, "local");
    expect(1, "device memory between ranks: NCCL 2.28.9", OK, set, "nccl");
    set.requested = TRANSPORT_NCCL;
    expect(2, "run.comm=nccl: ranks 0 and 1 are on one GPU", ERR_CONFIG, set, "");
    setup.version(23003);
    expect(2,
           "refuses as the variable is not set (2.30 and newer allow it, with NCCL_MULTI_RANK_GPU",
           ERR_CONFIG, set, "");
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    expect(2, "device memory between ranks: NCCL 2.30.3", OK, set, "nccl");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    setup.version(22809);
}

static void no_library(void **state)
{
    (void)state;
    TransportSettings set = {
        .device = &device_shadow, .processes = true, .library = "libnccl-none.so.2"};
    expect(2, "nccl: libnccl-none.so.2 does not open", OK, set, "local");
    set.requested = TRANSPORT_NCCL;
    expect(2, "nccl: libnccl-none.so.2 does not open", ERR_CONFIG, set, "");
    setup.version(21300);
    set.library = NULL;
    expect(2, "is version 21300; 2.14.0", ERR_CONFIG, set, "");
    setup.version(22809);
}

static void requests(void **state)
{
    (void)state;
    expect(2, "MPI, staged through host memory: run.comm=mpi", OK,
           (TransportSettings){
               .device = &device_shadow, .processes = true, .requested = TRANSPORT_MPI},
           "local");
    expect(2, "ranks are threads", OK, (TransportSettings){.device = &device_shadow}, "local");
    expect(1, "", OK, (TransportSettings){.device = &device_shadow}, "local");
    expect(2, "", OK, (TransportSettings){.device = &device_ref, .processes = true}, "local");
    expect(2, "", OK, (TransportSettings){.device = NULL, .processes = true}, "local");
    expect(
        2, "device ref computes in host memory", ERR_CONFIG,
        (TransportSettings){.device = &device_ref, .processes = true, .requested = TRANSPORT_NCCL},
        "");
    expect(1, "the ranks are threads of one process", ERR_CONFIG,
           (TransportSettings){.device = &device_shadow, .requested = TRANSPORT_MPI}, "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nccl_if_possible),
                                       cmocka_unit_test(two_ranks_on_one_gpu),
                                       cmocka_unit_test(no_library), cmocka_unit_test(requests)};
    (void)argc;
    const int status = graph_test_open(1, argv);
    if (status != 0) return status;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    shadow_run_async(false);
    return failed;
}
