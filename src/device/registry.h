/* registry.h -- the devices by name: ref, cpu, cuda.
 *
 *     const Device *d;
 *     char text[DEVICE_TEXT_BYTES];
 *     if (device_open("cuda", NULL, &d) != OK) puts(err_text());      why it cannot be used
 *     else puts(device_text(d, text));                                "cuda: 1 x NVIDIA H200, ..."
 *
 * A new device is a new row in registry.c. Code that needs CUDA is a plugin, sheaf-cuda.so
 * (base/plugin.h). */
#ifndef DEVICE_REGISTRY_H
#define DEVICE_REGISTRY_H

#include "device/device.h"
#include "device/workspace.h"

enum { DEVICE_TEXT_BYTES = 512 };

typedef struct {
    const char *name;
    /* True if the device has memory of its own, that is a runtime table. Known without opening the
     * device: programs for GPUs are compiled and explained on machines that have none. */
    bool own_memory;
    const DeviceWorkspace *workspace; /* of a device with own memory, without opening it either */
    Err (*open)(const char *file, const Device **out);
    /* Writes one line for people; the device is open. */
    void (*text)(const Device *d, char text[DEVICE_TEXT_BYTES]);
} DeviceEntry;

/* Local. The row of a device; NULL: there is none of that name. */
const DeviceEntry *device_find(const char *name);
/* Local. Opens the device; it stays open until the process ends, and opening it again returns the
 * same. `file`: the plugin of cuda; NULL: the one next to the program. ERR_CONFIG names what is
 * missing: the file, the driver, the GPU. */
Err device_open(const char *name, const char *file, const Device **out);
/* Local. Folders, as in PATH, whose Python packages may contain a newer cuDNN than the loader
 * finds; NULL: none. Takes effect when cuda is opened. The text must stay valid. */
void device_cuda_search(const char *path);
/* Local. A line for people, in `text`, which is returned: instruction set and library, or GPUs and
 * their memory. Opens a context on GPU 0 for a moment. */
const char *device_text(const Device *d, char text[DEVICE_TEXT_BYTES]);
/* Local. The same of a device that may not open: then the reason. */
const char *device_open_text(const char *name, const char *file, char text[DEVICE_TEXT_BYTES]);

#endif
