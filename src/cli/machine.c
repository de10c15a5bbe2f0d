/* machine.c -- queries of the operating system and of the device registry. */
#define _DEFAULT_SOURCE
#include "cli/machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/config/job.h"
#include "cli/config/keys.h"
#include "base/text.h"

/* True if a driver of NVIDIA cards is loaded: on Linux, on Tegra, in WSL. Without one the CUDA
 * libraries need not be opened to find no card; they would stay in the memory of every process. */
static bool has_driver(void)
{
    static const char *const node[] = {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-ctrl",
                                       "/dev/nvmap", "/dev/dxg"};
    for (size_t i = 0; i < sizeof node / sizeof *node; i++)
        if (access(node[i], F_OK) == 0) return true;
    return false;
}

Err machine_choice(const Config *c, Option *out)
{
    const Device *cuda;
    TRY(config_device(c, out));
    if (*out != DEVICE_AUTO) return OK;
    *out = has_driver() && device_open("cuda", NULL, &cuda) == OK ? DEVICE_CUDA : DEVICE_CPU;
    return *out == DEVICE_CUDA ? config_check_cuda(c) : OK;
}

void machine_set_cuda(int ranks, int ranks_here)
{
    if (ranks > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (ranks_here > 1) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (ranks_here > 1) setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

Err machine_device(const Config *c, const Device **out)
{
    Option device;
    TRY(machine_choice(c, &device));
    return device_open(option_text(device), NULL, out);
}

Err machine_card(const Device *d, DeviceInfo *out)
{
    DeviceContext *context;
    TRY(d->runtime->open(0, &context));
    const Err err = d->runtime->info(context, out);
    d->runtime->close(context);
    return err;
}

Err machine_attention(const Device *d, const Call *call, bool backward, char *out, size_t bytes)
{
    DeviceContext *context;
    out[0] = '\0';
    if (!d->runtime->attention) return OK;
    TRY(d->runtime->open(0, &context));
    d->runtime->attention(context, call, backward, out, bytes);
    d->runtime->close(context);
    return OK;
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

bool machine_profile_path(const Device *d, int ranks, int threads, char *out, size_t bytes)
{
    char name[64];
    if (d->runtime)
        snprintf(name, sizeof name, "profile-%s-%d.yaml", d->name, ranks);
    else
        snprintf(name, sizeof name, "profile-cpu-%dx%d.yaml", ranks, threads);
    return machine_cache_path(name, out, bytes);
}
