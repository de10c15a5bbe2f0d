/* registry.c -- the table of devices. ref and cpu are part of the program; cuda is a plugin. */
#include "device/registry.h"

#include <stdio.h>
#include <string.h>
#include "base/plugin.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/cuda/entry.h"
#include "device/cuda_workspace.h"
#include "device/runtime.h"

static Err ref_open(const char *file, const Device **out)
{
    (void)file;
    *out = &device_ref;
    return OK;
}

static void ref_text(const Device *d, char text[DEVICE_TEXT_BYTES])
{
    snprintf(text, DEVICE_TEXT_BYTES, "%s: plain loops, right but not fast", d->name);
}

static Err cpu_open(const char *file, const Device **out)
{
    (void)file;
    return device_cpu_open(NULL, out);
}

static void cpu_text(const Device *d, char text[DEVICE_TEXT_BYTES])
{
    (void)d;
    device_cpu_text(text);
}

static const Plugin cuda_plugin = {
    .module = "cuda",
    .file = "sheaf-cuda.so",
    .symbol = CUDA_ENTRY_NAME,
    .abi = {{sizeof(Call), sizeof(Device), sizeof(DeviceRuntime)}},
    .missing = "build with nvcc (./x build cuda lists what is missing), or use the device cpu",
    .broken = "are the CUDA libraries it was built with on the library path?"};

static const char *cuda_search; /* see device_cuda_search */

void device_cuda_search(const char *path) { cuda_search = path; }

static Err cuda_open(const char *file, const Device **out)
{
    const void *plugin;
    TRY(plugin_open(&cuda_plugin, file, &plugin));
    const CudaEntry *entry = plugin;
    const Device *device = entry->device;
    entry->search(cuda_search);
    TRY(device_check(device));
    if (device->runtime->count() == 0) return err_is(ERR_CONFIG, 0); /* count has set err_text */
    *out = device;
    return OK;
}

/* "cuda: 8 x NVIDIA H200, 139.8 GiB"; the name alone if GPU 0 cannot be opened. */
static void gpu_text(const Device *d, char text[DEVICE_TEXT_BYTES])
{
    const DeviceRuntime *rt = d->runtime;
    DeviceContext *context;
    DeviceInfo info;
    char bytes[24];
    snprintf(text, DEVICE_TEXT_BYTES, "%s", d->name);
    if (rt->open(0, &context) != OK) return;
    if (rt->info(context, &info) == OK)
        snprintf(text, DEVICE_TEXT_BYTES, "%s: %d x %s, %s", d->name, rt->count(), info.name,
                 text_bytes((int64_t)info.total_bytes, bytes));
    rt->close(context);
}

static const DeviceEntry devices[] = {
    {.name = "ref", .open = ref_open, .text = ref_text},
    {.name = "cpu", .open = cpu_open, .text = cpu_text},
    {.name = "cuda",
     .own_memory = true,
     .workspace = &cuda_workspace,
     .open = cuda_open,
     .text = gpu_text},
};

const DeviceEntry *device_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(devices[i].name, name) == 0) return &devices[i];
    return NULL;
}

Err device_open(const char *name, const char *file, const Device **out)
{
    const DeviceEntry *entry = device_find(name);
    char names[64] = "";
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", devices[i].name);
    }
    if (!entry) return err_fail(ERR_CONFIG, "device %s: unknown; devices are %s", name, names);
    return entry->open(file, out);
}

const char *device_text(const Device *d, char text[DEVICE_TEXT_BYTES])
{
    const DeviceEntry *entry = device_find(d->name);
    if (entry)
        entry->text(d, text);
    else
        snprintf(text, DEVICE_TEXT_BYTES, "%s", d->name); /* a device of tests */
    return text;
}

const char *device_open_text(const char *name, const char *file, char text[DEVICE_TEXT_BYTES])
{
    const Device *d;
    if (device_open(name, file, &d) == OK) return device_text(d, text);
    snprintf(text, DEVICE_TEXT_BYTES, "%.*s", DEVICE_TEXT_BYTES - 1, err_text());
    return text;
}
