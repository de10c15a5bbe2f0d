/* machine.c -- questions to the operating system. */
#define _DEFAULT_SOURCE
#include "cli/machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "device/cpu/cpu.h"

Err machine_device(const Config *c, const Device **out)
{
    const bool f64 = c->precision_compute == COMPUTE_F64;
    const bool ref = c->run_device == DEVICE_REF || (c->run_device == DEVICE_AUTO && f64);
    if (ref && c->precision_compute == COMPUTE_BF16)
        return err_fail(
            ERR_CONFIG,
            "%s: precision.compute=bf16: ref computes in f32 and f64; set run.device=cpu",
            c->origin[KEY_precision_compute]);
    if (!ref && f64)
        return err_fail(
            ERR_CONFIG,
            "%s: run.device=cpu computes in f32 and bf16; f64 runs on ref: set run.device=ref",
            c->origin[KEY_run_device]);
    *out = &device_ref;
    return ref ? OK : device_cpu_open(NULL, out);
}

const char *machine_device_text(const Device *d)
{
    return d == &device_ref ? "ref: plain loops, right but not fast" : device_cpu_text();
}

int64_t machine_memory_bytes(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

const char *machine_processor(char *buffer, size_t bytes)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(buffer, bytes, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        snprintf(buffer, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f) fclose(f);
    return buffer;
}

static bool make_folder(const char *path) { return mkdir(path, 0777) == 0 || errno == EEXIST; }

bool machine_cache_path(const char *name, char *out, size_t bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char top[512], folder[600];
    if (cache && cache[0] == '/')
        snprintf(top, sizeof top, "%s", cache);
    else if (home && home[0] == '/')
        snprintf(top, sizeof top, "%s/.cache", home);
    else
        return false;
    snprintf(folder, sizeof folder, "%s/sheaf", top);
    snprintf(out, bytes, "%s/%s", folder, name);
    return make_folder(top) && make_folder(folder);
}
