/* map.h -- a file as bytes in memory, for reading. */
#ifndef DATA_MAP_H
#define DATA_MAP_H

#include "data/tokens.h"

/* Local. ERR_IO names the file and the reason. A file without bytes is mapped to none. Who cuts a
 * file short while it is mapped ends the process (SIGBUS); data files are not changed in a run. */
Err map_file(const char *path, Bytes *out);
void unmap(Bytes *map);
bool map_exists(const char *path);

#endif
