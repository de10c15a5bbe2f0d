/* map.h -- maps a file into memory for reading. */
#ifndef DATA_MAP_H
#define DATA_MAP_H

#include "data/tokens.h"

/* Local. ERR_IO names the file and the reason. An empty file maps to no bytes. Truncating a mapped
 * file ends the process with SIGBUS; data files must not change during a run. */
Err map_file(const char *path, Bytes *out);
void unmap(Bytes *map);
bool map_exists(const char *path);

#endif
