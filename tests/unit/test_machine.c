/* test_machine.c -- what is set for CUDA before its first call. */
#define _DEFAULT_SOURCE
#include "support/expect.h"

#include <stdlib.h>

#include "cli/machine.h"

static void ranks_of_one_process_load_kernels_at_once(void **state)
{
    (void)state;
    unsetenv("CUDA_MODULE_LOADING");
    machine_set_cuda(2, 1);
    assert_null(getenv("CUDA_MODULE_LOADING"));
    machine_set_cuda(2, 2);
    assert_string_equal(getenv("CUDA_MODULE_LOADING"), "EAGER");
    setenv("CUDA_MODULE_LOADING", "LAZY", 1); /* the user's choice */
    machine_set_cuda(2, 2);
    assert_string_equal(getenv("CUDA_MODULE_LOADING"), "LAZY");
}

static void queues_of_several_ranks_have_connections(void **state)
{
    (void)state;
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    machine_set_cuda(1, 1);
    assert_null(getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
    machine_set_cuda(2, 1);
    assert_string_equal(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_of_one_process_load_kernels_at_once),
                                       cmocka_unit_test(queues_of_several_ranks_have_connections)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
