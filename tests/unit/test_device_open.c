/* test_device_open.c -- messages when the CUDA device cannot be opened; needs no CUDA. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/registry.h"

static void fails(const char *path, const char *words)
{
    const Device *device = NULL;
    char text[DEVICE_TEXT_BYTES];
    assert_int_equal(device_open("cuda", path, &device), ERR_CONFIG);
    assert_null(device);
    if (!strstr(err_text(), words)) fail_msg("\"%s\" does not say \"%s\"", err_text(), words);
    assert_non_null(strstr(device_open_text("cuda", path, text), words));
}

static void missing_files_are_named(void **state)
{
    (void)state;
    char path[] = "/tmp/sheaf_test_XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    assert_true(write(file, "no object", 9) == 9);
    close(file);
    fails("/nowhere/sheaf-cuda.so", "/nowhere/sheaf-cuda.so is not there");
    fails("/nowhere/sheaf-cuda.so", "or use the device cpu");
    fails(path, "does not open");
    unlink(path);
}

/* A shared object that is not a plugin: the C library. */
static void another_object_is_refused(void **state)
{
    (void)state;
    char line[512], path[512] = "";
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "libc.so") || strstr(line, "libc-")) {
            sscanf(strchr(line, '/'), "%511s", path);
            break;
        }
    fclose(maps);
    if (path[0] == '\0') skip();
    fails(path, "built from other sources");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(missing_files_are_named),
                                       cmocka_unit_test(another_object_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
