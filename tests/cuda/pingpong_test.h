/* pingpong_test.h -- forces GEMMs onto the ping-pong kernel.
 *
 * The fusion of a GEMM is a number in the autotune file. A test first runs each GEMM by cuBLASLt
 * and saves the file. It then writes the number of the ping-pong kernel and an invalid cuBLASLt
 * algorithm, which cuBLASLt would refuse, loads the file, and runs the GEMM again. */
#ifndef TESTS_CUDA_PINGPONG_TEST_H
#define TESTS_CUDA_PINGPONG_TEST_H

#include "gpu_test.h"

#include <ctype.h>
#include <unistd.h>

#define OLD "autotune.old"
#define NEW_FILE "autotune.new"

/* From here on every known shape with an epilogue kind runs on the ping-pong kernel. */
static inline void force_pingpong(void)
{
    char line[4096];
    int lines = 0;
    gpu_ok(gpu.m->autotune->save(gpu.context, OLD));
    FILE *from = fopen(OLD, "r"), *to = fopen(NEW_FILE, "w");
    assert_true(from && to);
    for (; fgets(line, sizeof line, from); lines++) {
        char *fusion = strchr(line, ':');
        if (lines >= 2) {
            assert_true(fusion && fusion[3] == ' ');
            fusion[2] = '3';
            for (char *c = fusion + 5; *c; c++)
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
