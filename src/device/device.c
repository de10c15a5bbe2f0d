/* device.c -- the names of the kernels, and the check that a device has them all. */
#include "device/device.h"

#include <stddef.h>

const char *kernel_name(KernelId id)
{
    static const char *const name[N_KERNELS] = {
        [KERNEL_NONE] = "none",
#define KERNEL(id) [KERNEL_##id] = #id,
#include "device/kernels.def"
#undef KERNEL
    };
    MUST((int)id >= 0 && id < N_KERNELS, "kernel %d of %d", (int)id, (int)N_KERNELS);
    return name[id];
}

Err device_check(const Device *d)
{
    for (KernelId id = KERNEL_NONE + 1; id < N_KERNELS; id++)
        if (d->kernel[id] == NULL)
            return err_fail(ERR_CHECK,
                            "device %s: no kernel `%s`, one of %d in device/kernels.def; add it to "
                            "the table of the device",
                            d->name, kernel_name(id), (int)N_KERNELS - 1);
    return OK;
}
