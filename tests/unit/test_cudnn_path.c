/* test_cudnn_path.c -- finds the newest cuDNN among the packages of several Pythons. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "device/cuda/attention/cudnn_path.c" /* part of sheaf-cuda.so, without CUDA */

static char root[] = "/tmp/sheaf-cudnn-XXXXXX";

static void shell(const char *command)
{
    char line[2048];
    snprintf(line, sizeof line, "cd %s && %s", root, command);
    assert_int_equal(system(line), 0);
}

/* Makes a Python of this name whose packages contain a cuDNN of some version. */
static void plant(const char *name, const char *kind, const char *package)
{
    char command[1024];
    snprintf(command, sizeof command,
             "mkdir -p %s/bin && touch %s/bin/python3 && chmod +x %s/bin/python3 && "
             "cd %s && mkdir -p lib/python3.12/%s-packages && cd lib/python3.12/%s-packages && "
             "mkdir -p nvidia/cudnn/lib %s.dist-info && touch nvidia/cudnn/lib/libcudnn.so.9",
             name, name, name, name, kind, kind, package);
    shell(command);
}

static void newest_is_found(void **state)
{
    (void)state;
    char path[512], file[512];
    snprintf(path, sizeof path, "/nowhere:%s/old/bin::%s/new/bin:%s/none/bin", root, root, root);
    assert_int_equal(cudnn_path_newest(path, file, sizeof file), 91900);
    assert_non_null(strstr(file, "/new/bin/../lib/python3.12/dist-packages/nvidia/cudnn/lib/"));
    snprintf(path, sizeof path, "%s/none/bin:%s/old/bin", root, root);
    assert_int_equal(cudnn_path_newest(path, file, sizeof file), 90805);
    assert_int_equal(cudnn_path_newest(path, file, 20), 0); /* the buffer is too short */
    snprintf(path, sizeof path, "%s/none/bin", root);
    assert_int_equal(cudnn_path_newest(path, file, sizeof file), 0);
    assert_int_equal(cudnn_path_newest("", file, sizeof file), 0);
    assert_int_equal(cudnn_path_newest(NULL, file, sizeof file), 0);
}

static void file_names_have_versions(void **state)
{
    (void)state;
    assert_int_equal(cudnn_path_version("/usr/lib/x86_64-linux-gnu/libcudnn.so.9.14.0"), 91400);
    assert_int_equal(cudnn_path_version("libcudnn.so.9"), 0);
    assert_int_equal(cudnn_path_version("libcudnn"), 0);
}

static int plant_all(void **state)
{
    (void)state;
    if (!mkdtemp(root)) return -1;
    plant("old", "site", "nvidia_cudnn_cu12-9.8.5.2");
    plant("new", "dist", "nvidia_cudnn_cu13-9.19.0.56");
    shell("mkdir -p none/bin && touch none/bin/python3 && chmod +x none/bin/python3");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    shell("rm -r old new none");
    return rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(newest_is_found),
                                       cmocka_unit_test(file_names_have_versions)};
    return cmocka_run_group_tests(tests, plant_all, tear_down);
}
