/* machine.h -- this machine: its devices, its memory, the user's cache folder. */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "cli/config/config.h"
#include "device/registry.h"
#include "device/runtime.h"

/* Local. The device that config_device names; for auto, cuda if it opens, else cpu. */
Err machine_choice(const Config *c, Option *out);
/* Local. Opens that device. */
Err machine_device(const Config *c, const Device **out);
/* Local. Name, memory and peak rates of the first GPU; the device has a runtime. */
Err machine_card(const Device *d, DeviceInfo *out);
int64_t machine_memory_bytes(void);
/* Local. The processor's name, in `buffer`, which is returned. */
const char *machine_processor(char *buffer, size_t bytes);
/* Local. Path of a file in the user's cache folder, XDG_CACHE_HOME/sheaf or ~/.cache/sheaf, which
 * is created. False if that is not possible. */
bool machine_cache_path(const char *name, char *out, size_t bytes);

#endif
