/* folder_parts.h -- shared by folder.c and commit.c. */
#ifndef STATE_FOLDER_PARTS_H
#define STATE_FOLDER_PARTS_H

#include "state/folder.h"

enum { LATEST_BYTES = 96, QUARANTINE_BYTES = 64 };

/* Local. Writes "step-00000020 HASH HASH\n" to LATEST_BYTES: the hash of the manifest, and the hash
 * of the line before the second. */
void latest_line(const Generation *g, uint64_t manifest_hash, char *out);
/* Local. Removes a folder and its files; a missing folder is no error. Of a link to a
 * folder only the link is removed. `half`, unless NULL, is called when half of the files are
 * removed. */
Err folder_remove(const char *path, void (*half)(void *context), void *context);

#endif
