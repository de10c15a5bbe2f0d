/* folder_parts.h -- what folder.c and commit.c share. */
#ifndef STATE_FOLDER_PARTS_H
#define STATE_FOLDER_PARTS_H

#include "state/folder.h"

enum { LATEST_BYTES = 96, QUARANTINE_BYTES = 64 };

/* Local. "step-00000020 HASH HASH\n" in LATEST_BYTES: the manifest's, and that of what stands before
 * it in the line. */
void latest_line(const Generation *g, uint64_t manifest_hash, char *out);
/* Local. A folder and the files in it; it may be gone. `half`, unless NULL, is called when half of
 * them are. */
Err folder_remove(const char *path, void (*half)(void *context), void *context);

#endif
