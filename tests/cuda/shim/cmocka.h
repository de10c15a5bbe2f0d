/* cmocka.h -- the part of cmocka that the tests of this folder use, for machines without it. run.sh
 * uses it; the CMake build uses the real one. A failure ends the program. */
#ifndef TESTS_CUDA_SHIM_CMOCKA_H
#define TESTS_CUDA_SHIM_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define fail_msg(...)                                                                              \
    do {                                                                                           \
        fprintf(stderr, "FAILED %s:%d: ", __FILE__, __LINE__);                                     \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        exit(1);                                                                                   \
    } while (0)
#define assert_true(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) fail_msg("%s", #condition);                                              \
    } while (0)
#define assert_non_null(pointer) assert_true((pointer) != NULL)
#define assert_int_equal(a, b) assert_true((a) == (b))
#define cmocka_unit_test(test)                                                                     \
    {                                                                                              \
#test, test                                                                                \
    }
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    shim_run(tests, sizeof(tests) / sizeof *(tests), setup, teardown)

static inline int shim_run(const struct CMUnitTest *test, size_t n, int (*setup)(void **),
                           int (*teardown)(void **))
{
    void *state = NULL;
    if (setup && setup(&state) != 0) return 1;
    for (size_t i = 0; i < n; i++) {
        test[i].run(&state);
        printf("ok  %s\n", test[i].name);
        fflush(stdout);
    }
    return teardown ? teardown(&state) : 0;
}

#endif
