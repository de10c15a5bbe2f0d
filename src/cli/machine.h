/* machine.h -- what this machine is, as far as the command asks: devices, memory, folders of the
 * user. */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "cli/config/config.h"
#include "device/registry.h"
#include "device/runtime.h"

/* Local. What config_device names, and for auto: cuda where it and a card are there, else cpu. */
Err machine_choice(const Config *c, Option *out);
/* Local. That device, open. */
Err machine_device(const Config *c, const Device **out);
/* Local. What the first card of a device with memory of its own is. */
Err machine_card(const Device *d, DeviceInfo *out);
int64_t machine_memory_bytes(void);
/* Local. The processor's name, in `buffer`, which is returned. */
const char *machine_processor(char *buffer, size_t bytes);
/* Local. A file in the user's cache folder (XDG_CACHE_HOME or ~/.cache, then sheaf), which is made.
 * False when there is no such folder. */
bool machine_cache_path(const char *name, char *out, size_t bytes);

#endif
