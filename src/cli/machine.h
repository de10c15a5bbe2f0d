/* machine.h -- what this machine is, as far as the command asks: devices, memory, folders of the
 * user. */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "cli/config.h"
#include "device/device.h"

/* Local. The device that config_device names, open. */
Err machine_device(const Config *c, const Device **out);
/* Local. The device in words: instruction set, library. */
const char *machine_device_text(const Device *d);
int64_t machine_memory_bytes(void);
/* Local. The processor's name, in `buffer`, which is returned. */
const char *machine_processor(char *buffer, size_t bytes);
/* Local. A file in the user's cache folder (XDG_CACHE_HOME or ~/.cache, then sheaf), which is made.
 * False when there is no such folder. */
bool machine_cache_path(const char *name, char *out, size_t bytes);

#endif
