/* test_machine.c -- what is set for CUDA before its first call. */
#define _DEFAULT_SOURCE
#include "support/expect.h"

#include <stdlib.h>

#include "cli/machine.h"

static void ranks_of_one_process_load_kernels_at_once(void **state)
{
    (void)state;
    unsetenv("CUDA_MODULE_LOADING");
    machine_load_eagerly(1);
    assert_null(getenv("CUDA_MODULE_LOADING"));
    machine_load_eagerly(2);
    assert_string_equal(getenv("CUDA_MODULE_LOADING"), "EAGER");
    setenv("CUDA_MODULE_LOADING", "LAZY", 1); /* the user's choice */
    machine_load_eagerly(2);
    assert_string_equal(getenv("CUDA_MODULE_LOADING"), "LAZY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_of_one_process_load_kernels_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
