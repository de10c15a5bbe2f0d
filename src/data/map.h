/* map.h -- maps a file into memory for reading. */
#ifndef DATA_MAP_H
#define DATA_MAP_H

#include "data/tokens.h"

/* Local. ERR_IO names the file and the reason. An empty file maps to no bytes. Installs a handler
 * of SIGBUS: if the file is truncated later, the pages that it has lost read as zeros. */
Err map_file(const char *path, Bytes *out);
/* Local. ERR_IO with the name of the file if a reader of this process has met a lost page, now or
 * before. Called after reading and before the bytes are used. Zeros at the end of the last page
 * that is left are not found. */
Err map_check(void);
void unmap(Bytes *map);
bool map_exists(const char *path);

#endif
