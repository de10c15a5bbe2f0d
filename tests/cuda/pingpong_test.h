/* pingpong_test.h -- products by our own kernel, wanted by name.
 *
 * Which way a product is run by is a number in the file of choices. A test has the library run each product;
 * then the number of the relay is written into the file, and over the library's algorithm what is none, so
 * that the library would refuse; it is read, and the product runs again. */
#ifndef TESTS_CUDA_RELAY_TEST_H
#define TESTS_CUDA_RELAY_TEST_H

#include "gpu_test.h"

#include <ctype.h>
#include <unistd.h>

#define OLD "autotune.old"
#define NEW_FILE "autotune.new"

/* Every shape that was met is run by the relay from here on, if it has a point. */
static inline void force_pingpong(void)
{
    char line[4096];
    int lines = 0;
    gpu_ok(gpu.m->autotune->save(gpu.context, OLD));
    FILE *from = fopen(OLD, "r"), *to = fopen(NEW_FILE, "w");
    assert_true(from && to);
    for (; fgets(line, sizeof line, from); lines++) {
        char *way = strchr(line, ':');
        if (lines >= 2) {
            assert_true(way && way[3] == ' ');
            way[2] = '3';
            for (char *c = way + 5; *c; c++)
                if (isxdigit((unsigned char)*c)) *c = 'f';
        }
        fputs(line, to);
    }
    fclose(from);
    fclose(to);
    gpu_ok(gpu.m->autotune->load(gpu.context, NEW_FILE));
    assert_true(lines > 2 && unlink(OLD) == 0 && unlink(NEW_FILE) == 0);
}

static inline bool has_pingpong(void)
{
    DeviceInfo info;
    gpu_ok(gpu.m->info(gpu.context, &info));
    if (strstr(info.name, "sm_90")) return true;
    printf("SKIPPED, nothing was tested: %s has no ping-pong kernel\n", info.name);
    return false;
}

#endif
