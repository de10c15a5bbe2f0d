/* machine.h -- this machine: its devices, its memory, the user's cache folder. */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "cli/config/config.h"
#include "device/registry.h"
#include "device/runtime.h"

/* Local. The device that config_device names; for auto, cuda if a driver is loaded and cuda opens,
 * else cpu. */
Err machine_choice(const Config *c, Option *out);
/* Local, before the first call of CUDA. Several ranks get a connection to the GPU for each queue.
 * Ranks that are threads of one process have kernels loaded and communicators connected at once:
 * either one later may wait for the whole device, and so for a transfer of another rank that waits
 * for this one. A value that the user has set stays. */
void machine_set_cuda(int ranks, int ranks_here);
/* Local. Opens that device. */
Err machine_device(const Config *c, const Device **out);
/* Local. Name, memory and peak rates of the first GPU; the device has a runtime. */
Err machine_card(const Device *d, DeviceInfo *out);
/* Local. Which attention of the device runs this call, and why; "" if it has only one. The device
 * has a runtime. */
Err machine_attention(const Device *d, const Call *call, bool backward, char *out, size_t bytes);
/* Local. The processor's name, in `buffer`, which is returned. */
const char *machine_processor(char *buffer, size_t bytes);
/* Local. Path of a file in the user's cache folder, XDG_CACHE_HOME/sheaf or ~/.cache/sheaf, which
 * is created. False if that is not possible. */
bool machine_cache_path(const char *name, char *out, size_t bytes);
/* Local. Path of the cluster file that `sheaf profile` keeps for that many ranks, of so many
 * threads if the device computes with those. False as above. */
bool machine_profile_path(const Device *d, int ranks, int threads, char *out, size_t bytes);

#endif
