/* open.h -- devices that need a foreign library: shared objects beside the program.
 *
 *     const Device *cuda;
 *     if (device_cuda_open(NULL, &cuda) != OK) puts(err_text());      why there is none
 *
 * sheaf-cuda.so is opened at run time, so one binary starts everywhere. */
#ifndef DEVICE_OPEN_H
#define DEVICE_OPEN_H

#include "device/device.h"

/* Local. Opens the shared object (NULL: sheaf-cuda.so beside the running program) and looks for a
 * GPU. ERR_CONFIG says what is missing: the object, the driver, or the card. Once open it stays. */
Err device_cuda_open(const char *path, const Device **out);
/* Local. Folders, as in PATH, whose Python packages may hold a newer cuDNN than the loader finds;
 * NULL: none. Effective for objects that are opened afterwards. The text must stay valid. */
void device_cuda_search(const char *path);
/* Local. In one line, for people: the card, or why there is none. */
const char *device_cuda_text(const char *path);

#endif
